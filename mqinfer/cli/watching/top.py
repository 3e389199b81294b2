"""`mqinfer top`: models, workers, streams and what was dropped, again and again."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import count
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from mqinfer.cli.options import ConnectionOptions, plain_console, with_connection
from mqinfer.cli.watching.overview import ServerReplies, observe
from mqinfer.cli.watching.status import cell, counts, label_text, print_table
from mqinfer.logs import printable
from mqinfer.protocol.types import Outcome

_LEAST_ROWS = 3
"""Rows of each table in a terminal, however low it is."""
_OVERHEAD = 3
"""Lines of a table beside its rows: an empty one, its head, and how many rows are left out."""
_Show = Callable[[dict[str, Any]], None]


@with_connection
def top(
    connection: ConnectionOptions,
    every: Annotated[float, typer.Option(help="Seconds between two pictures.", min=0.2, max=3600)] = 2,
    rounds: Annotated[
        int | None, typer.Option("--count", help="Pictures to show; without end by default.", min=1)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the servers' replies.", min=0.001, max=1e6)] = 5,
) -> None:
    """Show models, workers, streams and dropped requests until Ctrl-C; in a pipe as plain text, again and again.

    Rates are those since the picture before; p50 is the median time in a worker, of the slowest server. Pending are
    the requests without an outcome: what clients state that have a state (edges, gateways), and what workers have.
    """
    with _shown(as_json=as_json) as show:
        asyncio.run(_run(connection, show, every, rounds, timeout))


async def _run(connection: ConnectionOptions, show: _Show, every: float, rounds: int | None, timeout: float) -> None:  # noqa: ASYNC109
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    async with observe(connection) as observer:
        before = ServerReplies()
        for shown in count(1):
            now = await observer.ask(timeout)
            show(observer.overview(before, now))
            before = now
            if shown == rounds:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(stop.wait(), every)
            if stop.is_set():
                return


@contextmanager
def _shown(*, as_json: bool) -> Iterator[_Show]:
    """Yield what shows a picture: in place of the one before on a terminal, else behind it."""
    console = plain_console()
    if as_json:
        yield lambda overview: typer.echo(json.dumps(overview))
    elif console.is_terminal:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            yield lambda overview: live.update(_picture(overview, console.height), refresh=True)
    else:
        yield _print


@dataclass(frozen=True, slots=True)
class _Table:
    """A table: names of its columns, how many of them hold text, and its rows with the most important first."""

    columns: Sequence[str]
    texts: int
    rows: Sequence[Sequence[str]]


def _print(overview: dict[str, Any]) -> None:
    for line in _head(overview):
        typer.echo(line)
    for each in _tables(overview):
        typer.echo("")
        print_table(each.columns, each.rows)
    typer.echo("")


def _picture(overview: dict[str, Any], height: int) -> RenderableType:
    """Return what fits on a screen: of each table as many rows as there is room for."""
    head, tables = _head(overview), _tables(overview)
    parts: list[RenderableType] = [Text(line, overflow="fold") for line in head]
    room = height - len(head)
    for number, each in enumerate(tables):
        most = max(_LEAST_ROWS, room // (len(tables) - number) - _OVERHEAD)
        shown = each.rows if len(each.rows) <= most + 1 else each.rows[:most]
        parts += [Text(""), _drawn(each, shown)]
        if left := len(each.rows) - len(shown):
            parts.append(Text(f"... and {left} more", style="dim"))
        room -= len(shown) + _OVERHEAD
    return Group(*parts)


def _drawn(table: _Table, rows: Sequence[Sequence[str]]) -> Table:
    """Return a table of one line a row: where there is no room, names are cut and numbers are not."""
    widths = [max((len(row[number]) for row in rows), default=0) for number in range(len(table.columns))]
    columns = [
        Column(name) if number < table.texts else Column(name, justify="right", min_width=widths[number])
        for number, name in enumerate(table.columns)
    ]
    drawn = Table(*columns, box=None, header_style="bold", pad_edge=False, collapse_padding=True)
    for row in rows:
        cells = [cell(text) for text in row]
        for each in cells:
            each.no_wrap, each.overflow = True, "ellipsis"
        drawn.add_row(*cells)
    return drawn


def _head(overview: dict[str, Any]) -> list[str]:
    servers, processes = overview["servers"], overview["processes"]
    clients = len({each["client"] for each in overview["clients"]})
    head = f"{datetime.now():%H:%M:%S}  servers: {counts(servers)}; workers: {counts(processes)}; clients: {clients}"  # noqa: DTZ005 - the operator's own time
    problems = filter(None, (overview["problem"], *(each["problem"] for each in servers)))
    return [head, *map(printable, problems)]


def _tables(overview: dict[str, Any]) -> list[_Table]:
    """Return the tables that are not empty."""
    tables = (_models(overview), _workers(overview["processes"]), _streams(overview["clients"]), _dropped(overview))
    return [each for each in tables if each.rows]


def _models(overview: dict[str, Any]) -> _Table:
    entries, processes = _by_version(overview["models"]), _by_version(overview["processes"])
    lag = dict(overview["lag"])
    rows = []
    for key in sorted(entries.keys() | processes.keys()):
        behind = lag.pop(key[0], {})  # a model's is stated once, beside its first version
        rows.append(_model_row(key, entries.get(key, []), processes.get(key, []), behind))
    columns = ("model", "label", "workers", "rate/s", "p50 ms", "depth", "pending", "oldest ms", "ok", "failed")
    return _Table(columns, 2, rows)


def _by_version(listed: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Group models that have processes, or processes that have a model, by model and version."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in listed:
        if each["model"] and each.get("processes", 1):
            found.setdefault((each["model"], each["version"]), []).append(each)
    return found


def _model_row(
    key: tuple[str, str], entries: list[dict[str, Any]], processes: list[dict[str, Any]], lag: dict[str, Any]
) -> tuple[str, ...]:
    ready = sum(each["state"] == "ready" for each in processes)
    return (
        " ".join(key),
        label_text(entries[0]) if entries else "-",
        f"{ready}/{len(processes)}",
        _number(_sum(entries, "rate")),
        _number(max((each["p50_ms"] for each in entries if each["p50_ms"] is not None), default=None)),
        str(sum(each["depth"] for each in processes)),
        str(lag.get("pending", "")),
        str(lag.get("oldest_ms", "")),
        _number(_sum(entries, "ok")),
        _number(_sum(entries, "failed")),
    )


def _workers(processes: Sequence[dict[str, Any]]) -> _Table:
    rows = [
        (
            each["process"],
            each["state"],
            f"{each['model']} {each['version']}".strip(),
            f"{each['depth']}/{each['capacity']}",
            f"{each['service_time_us'] / 1e3:.1f}",
            str(each["counters"].get(Outcome.OK, 0)),
        )
        for each in sorted(processes, key=lambda each: (each["state"] == "ready", -each["depth"], each["process"]))
    ]
    return _Table(("worker", "state", "model", "depth", "service ms", "ok"), 3, rows)


def _streams(clients: Sequence[dict[str, Any]]) -> _Table:
    rows = [
        tuple(str(each[key]) for key in ("client", "source", "model", "queued", "in_flight", "window", "oldest_ms"))
        for each in sorted(clients, key=lambda each: (-each["oldest_ms"], each["client"]))
    ]
    return _Table(("client", "source", "model", "queued", "in flight", "window", "oldest ms"), 3, rows)


def _dropped(overview: dict[str, Any]) -> _Table:
    """Return what was dropped, refused or failed, by reason, and the worker with most of it."""
    sums: Counter[str] = Counter()
    most: dict[str, tuple[int, str]] = {}
    for each in overview["processes"]:
        for reason, number in each["counters"].items():
            if number and (reason.startswith("dropped_") or (reason in set(Outcome) and reason != Outcome.OK)):
                sums[reason] += number
                most[reason] = max(most.get(reason, (0, "")), (number, each["process"]))
    rows = [(reason.replace("_", " "), most[reason][1], str(number)) for reason, number in sums.most_common()]
    return _Table(("dropped or failed", "most at", "requests"), 2, rows)


def _sum(entries: Sequence[dict[str, Any]], key: str) -> float | None:
    values = [each[key] for each in entries if each[key] is not None]
    return sum(values) if values else None


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}".removesuffix(".0")
