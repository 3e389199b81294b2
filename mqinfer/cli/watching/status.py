"""`mqinfer status`: the servers, processes and models of a broker at a glance."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Sequence
from operator import itemgetter
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from mqinfer.cli.options import ConnectionOptions, plain_console, table_console, with_connection
from mqinfer.cli.watching.overview import observe
from mqinfer.logs import printable
from mqinfer.protocol.states import WorkerStatus
from mqinfer.protocol.types import Outcome

_COLOURS = {"ready": "green", "lost": "red", "unavailable": "red"}
"""Colour of a cell that holds this word, in any case; other states are yellow."""
_STATES = frozenset({"ready", "lost", "unavailable", "draining", "loading", "unloading"})


@with_connection
def status(
    connection: ConnectionOptions,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
    interval: Annotated[float, typer.Option(help="Seconds over which the rate is counted.", min=0.1, max=3600)] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the servers' replies.", min=0.001, max=1e6)] = 5,
) -> None:
    """Show servers, processes and models with their states, load and rate. Exit code 1 if nothing is served.

    A rate counts the replies of --interval seconds; p50 is the median time that the newest requests spent in the
    worker. Rates and times need a login that may ask servers (operator): with a dashboard's login states are shown.

    See also: `mqinfer top`.
    """
    overview = asyncio.run(_read(connection, interval, timeout))
    if as_json:
        typer.echo(json.dumps(overview, indent=2))
    else:
        _print_overview(overview)
    if not any(each["state"] == WorkerStatus.READY for each in overview["processes"]):
        raise typer.Exit(1)


async def _read(connection: ConnectionOptions, interval: float, timeout: float) -> dict[str, Any]:  # noqa: ASYNC109
    async with observe(connection) as observer:
        before = await observer.ask(timeout)
        await asyncio.sleep(interval)
        return observer.overview(before, await observer.ask(timeout))


def print_table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, in the width of the terminal or, elsewhere, of its cells; none is cut, or read as markup."""
    console = table_console()
    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*map(cell, row))
    with console.capture() as printed:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def cell(text: str) -> Text:
    """Return a cell of a table, which is not read as markup; states are coloured."""
    style = _COLOURS.get(text.lower(), "yellow") if text.lower() in _STATES else ""
    return Text(printable(text), style=style)


def _print_overview(overview: dict[str, Any]) -> None:
    console = plain_console()
    servers, processes, models = overview["servers"], overview["processes"], overview["models"]
    console.print(
        f"servers: {counts(servers)}; processes: {counts(processes)}; model versions: {counts(models)}",
        soft_wrap=True,
    )
    for problem in filter(None, (overview["problem"], *(each["problem"] for each in servers))):
        console.print(printable(problem), soft_wrap=True)
    for columns, rows in (
        (_SERVER_COLUMNS, [_server_row(each, processes) for each in servers]),
        (_PROCESS_COLUMNS, [_process_row(each) for each in processes]),
        (_MODEL_COLUMNS, [_version_row(each) for each in models]),
    ):
        if rows:
            typer.echo("")
            print_table(columns, rows)
    for each in filter(itemgetter("reason"), models):
        what = f"{each['model']} version {each['version']}" if each["version"] else each["model"]
        typer.echo("\n" + printable(f"{what} on {each['server']}: {each['reason']}"))


_SERVER_COLUMNS = ("server", "state", "processes")
_PROCESS_COLUMNS = ("process", "state", "model", "version", "depth", "service ms", "ok", "failed")
_MODEL_COLUMNS = (
    "model",
    "version",
    "label",
    "state",
    "server",
    "processes",
    "depth",
    "rate/s",
    "p50 ms",
    "ok",
    "failed",
)


def counts(entries: Sequence[dict[str, Any]]) -> str:
    """Return how many entries are in each state."""
    states = [each["state"].lower() for each in entries]
    return ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states))) or "none"


def _server_row(server: dict[str, Any], processes: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    own = {each["process"]: each["state"] for each in processes if each["server"] == server["server"]}
    ready = sum(state == WorkerStatus.READY for state in own.values())
    return server["server"], server["state"], f"{ready} of {len(own)} ready" if own else "none"


def _process_row(each: dict[str, Any]) -> tuple[str, ...]:
    counters = each["counters"]
    failed = sum(count for what, count in counters.items() if what in set(Outcome) and what != Outcome.OK)
    return (
        each["process"],
        each["state"],
        each["model"],
        each["version"],
        f"{each['depth']}/{each['capacity']}",
        f"{each['service_time_us'] / 1e3:.3f}",
        str(counters.get(Outcome.OK, 0)),
        str(failed),
    )


def _version_row(each: dict[str, Any]) -> tuple[str, ...]:
    figures = ("processes", "depth", "rate", "p50_ms", "ok", "failed")
    texts = ["-" if each[key] is None else str(each[key]) for key in figures]
    return (each["model"], each["version"], label_text(each), each["state"], each["server"], *texts)


def label_text(each: dict[str, Any]) -> str:
    """Return a version's label, with its share of the requests where these are split; `-` for none."""
    share = "" if each["share"] is None else f" {each['share']} %"
    return f"{each['label']}{share}" or "-"
