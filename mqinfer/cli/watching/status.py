"""`mqinfer status`: the servers, models, workers and streams of a broker, once or again and again."""

from __future__ import annotations

import asyncio
import json
import signal
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.live import Live
from rich.table import Column, Table
from rich.text import Text

from mqinfer.cli.exit_codes import ExitCode
from mqinfer.cli.options import (
    AsJson,
    ConnectionOptions,
    MetricsBind,
    MetricsPort,
    plain_console,
    table_console,
    with_connection,
    with_group,
)
from mqinfer.cli.watching.overview import observe
from mqinfer.logs import printable
from mqinfer.metrics.endpoint import LOOPBACK, serving_metrics
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.shadow import read_shadows
from mqinfer.protocol.states import WorkerStatus
from mqinfer.protocol.types import Outcome

_COLOURS = {"ready": "green", "lost": "red", "unavailable": "red"}
"""Colour of a cell that holds this word, in any case; other states are yellow."""
_STATES = frozenset({"ready", "lost", "unavailable", "draining", "loading", "unloading"})
_LEAST_ROWS = 3
"""Rows of each table in a terminal, however low it is."""
_OVERHEAD = 3
"""Lines of a table beside its rows: an empty one, its head, and how many rows are left out."""
_HASH = len("sha256:12345678")
"""Characters of a model's hash that tables show, its kind included."""
_Show = Callable[[dict[str, Any]], None]


@dataclass(frozen=True, slots=True)
class OverviewOptions:
    """What is shown, and how often; each field is an option of `status`."""

    model: Annotated[str, typer.Argument(help="Name of a model, to show what concerns it; all by default.")] = ""
    as_json: AsJson = False
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every --interval seconds, until Ctrl-C.")] = False
    interval: Annotated[
        float, typer.Option(help="Seconds over which rates are counted, and between two refreshes.", min=0.1, max=3600)
    ] = 1
    rounds: Annotated[
        int | None, typer.Option("--count", help="With --watch, number of refreshes; without end by default.", min=1)
    ] = None
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the servers' replies.", min=0.001, max=1e6)] = 5
    metrics_port: MetricsPort = None
    metrics_bind: MetricsBind = LOOPBACK

    def __post_init__(self) -> None:
        if self.rounds and not self.watch:
            raise ConfigError("--count is the number of refreshes of --watch; add --watch")


@with_connection
@with_group("asked", OverviewOptions)
def status(connection: ConnectionOptions, asked: OverviewOptions) -> None:
    """Show servers, models, workers, streams and what was dropped. Exit code 1 if nothing is served.

    With --metrics-port Prometheus reads what waits for each model, as at a gateway, until Ctrl-C.

    Pending counts the requests without an outcome that edges, gateways and workers report; oldest is the age of the
    oldest of them. p50 is the median time in the worker of the newest requests, on the slowest server; the stages after
    it are means. Rates, times and hashes need a login that may ask servers (operator); a dashboard's login sees states.
    """
    with _shown(as_json=asked.as_json, is_live=asked.watch) as show:
        last = asyncio.run(_run(connection, asked, show))
    if asked.watch or asked.metrics_port is not None:
        return
    if last is None:
        raise typer.Exit(ExitCode.INTERRUPTED)
    if not any(each["state"] == WorkerStatus.READY for each in last["processes"]):
        raise typer.Exit(ExitCode.FAILED)


async def _run(connection: ConnectionOptions, asked: OverviewOptions, show: _Show) -> dict[str, Any] | None:
    """Show so many pictures, or until a signal; return the last one, None where a signal came first."""
    stop = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    last = None
    async with observe(connection) as observer:
        with serving_metrics(observer.read_metrics, asked.metrics_port, asked.metrics_bind):
            before = await observer.ask(asked.timeout)
            for _ in count() if asked.watch and asked.rounds is None else range(asked.rounds or 1):
                if await _is_set(stop, asked.interval):
                    return last
                now = await observer.ask(asked.timeout)
                last = observer.overview(asked.model, before, now)
                show(last)
                before = now
            if asked.metrics_port is not None:
                await stop.wait()
    return last


async def _is_set(stop: asyncio.Event, interval: float) -> bool:
    """Wait for a while, or until the event is set; return whether it is."""
    with suppress(TimeoutError):
        await asyncio.wait_for(stop.wait(), interval)
    return stop.is_set()


@contextmanager
def _shown(*, as_json: bool, is_live: bool) -> Iterator[_Show]:
    """Yield what shows a picture: in place of the one before on a terminal, else behind it."""
    console = plain_console()
    if as_json:
        yield lambda overview: typer.echo(json.dumps(overview, indent=None if is_live else 2))
    elif is_live and console.is_terminal:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            yield lambda overview: live.update(_picture(overview, console.height), refresh=True)
    else:
        yield _print


def print_table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, in the width of the terminal or, elsewhere, of its cells; none is cut, or read as markup."""
    console = table_console()
    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*map(_cell, row))
    with console.capture() as printed:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def _cell(text: str) -> Text:
    """Return a cell of a table, which is not read as markup; states are coloured."""
    style = _COLOURS.get(text.lower(), "yellow") if text.lower() in _STATES else ""
    return Text(printable(text), style=style)


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
        cells = [_cell(text) for text in row]
        for each in cells:
            each.no_wrap, each.overflow = True, "ellipsis"
        drawn.add_row(*cells)
    return drawn


def _head(overview: dict[str, Any]) -> list[str]:
    servers, workers, models = (_counts(overview[part]) for part in ("servers", "processes", "models"))
    clients = len({each["client"] for each in overview["clients"]})
    head = f"servers: {servers}; workers: {workers}; model versions: {models}; clients: {clients}"
    problems = filter(None, (overview["problem"], *(each["problem"] for each in overview["servers"])))
    return [f"{datetime.now():%H:%M:%S}  {head}", *map(printable, problems)]  # noqa: DTZ005 - the operator's own time


def _counts(entries: Sequence[dict[str, Any]]) -> str:
    """Return how many entries are in each state."""
    states = [each["state"].lower() for each in entries]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states))) or "none"


def _tables(overview: dict[str, Any]) -> list[_Table]:
    """Return the tables that are not empty."""
    tables = (
        _servers(overview),
        *_models(overview),
        _shadows(overview["processes"]),
        _workers(overview["processes"]),
        _streams(overview["clients"]),
        _dropped(overview),
        _reasons(overview["models"]),
    )
    return [each for each in tables if each.rows]


def _servers(overview: dict[str, Any]) -> _Table:
    rows = []
    for each in overview["servers"]:
        own = {one["process"]: one["state"] for one in overview["processes"] if one["server"] == each["server"]}
        ready = sum(state == WorkerStatus.READY for state in own.values())
        row = (each["server"], each["state"], each["host"] or "-", each["mqinfer"] or "-")
        rows.append((*row, f"{ready}/{len(own)}", _duration(each["uptime_s"])))
    return _Table(("server", "state", "host", "mqinfer", "workers", "up"), 4, rows)


def _duration(seconds: int | None) -> str:
    return "-" if seconds is None else str(timedelta(seconds=seconds))


def _models(overview: dict[str, Any]) -> tuple[_Table, _Table]:
    """Return a table of what models have to do, and one of the time that it takes in their workers."""
    entries, processes = _by_version(overview["models"]), _by_version(overview["processes"])
    lag = dict(overview["lag"])
    rows, times = [], []
    for key in sorted(entries.keys() | processes.keys()):
        behind = lag.pop(key[0], {})  # a model's is stated once, beside its first version
        rows.append(_model_row(key, entries.get(key, []), processes.get(key, []), behind))
        if (row := _times_row(key, entries.get(key, []))) is not None:
            times.append(row)
    rows += [
        (name, "-", "-", "0/0", "-", "-", str(each["pending"]), str(each["oldest_ms"]), "-", "-")
        for name, each in lag.items()
    ]
    columns = ("model", "label", "state", "workers", "rate/s", "depth", "pending", "oldest ms", "ok", "failed")
    stages = ("p50 ms", "queue ms", "input ms", "infer ms", "output ms", "rows", "runs", "MiB")
    return _Table(columns, 3, rows), _Table(("model", *stages), 1, times)


def _by_version(listed: Iterable[dict[str, Any]]) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Group models, or processes that have one, by model and version."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for each in listed:
        if each["model"]:
            found.setdefault((each["model"], each["version"]), []).append(each)
    return found


def _model_row(
    key: tuple[str, str], entries: list[dict[str, Any]], processes: list[dict[str, Any]], lag: dict[str, Any]
) -> tuple[str, ...]:
    ready = sum(each["state"] == "ready" for each in processes)
    states = dict.fromkeys(each["state"].lower() for each in entries)
    return (
        " ".join(key).strip(),
        _label(entries[0]) if entries else "-",
        ", ".join(states) or "-",
        f"{ready}/{len(processes)}",
        _number(_sum(entries, "rate")),
        str(sum(each["depth"] for each in processes)),
        str(lag.get("pending", "")),
        str(lag.get("oldest_ms", "")),
        _number(_sum(entries, "ok")),
        _number(_sum(entries, "failed")),
    )


def _times_row(key: tuple[str, str], entries: list[dict[str, Any]]) -> tuple[str, ...] | None:
    """Return the times of a version, those of the slowest server; None where no server states any."""
    if not _sum(entries, "runs"):
        return None
    times = ("p50_ms", "queue_ms", "compute_input_ms", "compute_infer_ms", "compute_output_ms")
    slowest = (max((each[time] for each in entries if each[time] is not None), default=None) for time in times)
    shown = ("-" if each is None else f"{each:.3f}" for each in slowest)
    counts = (_number(_sum(entries, each)) for each in ("rows", "runs"))
    return (" ".join(key), *shown, *counts, f"{(_sum(entries, 'memory_bytes') or 0) / 2**20:.0f}")


def _label(each: dict[str, Any]) -> str:
    """Return a version's label, with its share of the requests where these are split; `-` for none."""
    share = "" if each["share"] is None else f" {each['share']} %"
    return f"{each['label']}{share}" or "-"


_USED = {
    "cpu %": ("cpu_cores", 100),
    "MiB": ("memory_bytes", 2**-20),
    "gpu %": ("gpu_ratio", 100),
    "gpu MiB": ("gpu_memory_bytes", 2**-20),
}
"""What a process uses, of one core and of all GPUs, and what its cell multiplies; a column where any states it."""


def _workers(processes: Sequence[dict[str, Any]]) -> _Table:
    used = {title: _USED[title] for title in _USED if any(each.get(_USED[title][0]) is not None for each in processes)}
    rows = [
        (
            each["process"],
            each["state"],
            f"{each['model']} {each['version']}".strip(),
            each["hash"][:_HASH].removeprefix("sha256:") or "-",
            each["device"] or "-",
            each["precision"] or "-",
            f"{each['depth']}/{each['capacity']}",
            f"{each['service_time_us'] / 1e3:.1f}",
            *("-" if each.get(key) is None else f"{each[key] * factor:.0f}" for key, factor in used.values()),
            str(each["counters"].get(Outcome.OK, 0)),
            str(sum(each["counters"].get(outcome, 0) for outcome in Outcome if outcome is not Outcome.OK)),
        )
        for each in sorted(processes, key=lambda each: (each["state"] == "ready", -each["depth"], each["process"]))
    ]
    columns = ("worker", "state", "model", "hash", "device", "precision", "depth", "service ms", *used, "ok", "failed")
    return _Table(columns, 6, rows)


def _shadows(processes: Sequence[dict[str, Any]]) -> _Table:
    """Return how the answers of shadow versions compare to those of the versions beside them."""
    sums: defaultdict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for each in processes:
        sums[each["model"], each["version"]].update(each["counters"])
    rows = [
        (
            f"{model} {shadow}",
            f"{model} {version}",
            _by_reason(counts.failed),
            _by_reason(counts.dropped),
            *map(str, (counts.requests, counts.agreed, counts.differed)),
            *(f"{ns / max(1, counts.agreed + counts.differed) / 1e6:.3f}" for ns in (counts.own_ns, counts.beside_ns)),
        )
        for (model, version), counters in sorted(sums.items())
        for shadow, counts in sorted(read_shadows(counters).items())
    ]
    columns = ("shadow", "beside", "failed", "dropped", "requests", "agreed", "differed", "mean ms", "beside ms")
    return _Table(columns, 4, rows)


def _by_reason(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count}" for reason, count in sorted(counts.items())) or "0"


def _reasons(models: Iterable[dict[str, Any]]) -> _Table:
    """Return why servers do not serve models, or not as their folders are now."""
    rows = [
        (f"{each['model']} {each['version']}".strip(), each["server"], each["reason"])
        for each in models
        if each["reason"]
    ]
    return _Table(("model", "server", "reason"), 3, rows)


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
