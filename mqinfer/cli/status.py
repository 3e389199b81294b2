"""`mqinfer status`: the servers, processes and models of a broker at a glance."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from rich.table import Column, Table
from rich.text import Text

from mqinfer.cli.options import Connection, plain_console, table_console, until_signal, with_connection
from mqinfer.client.control import ControlClient
from mqinfer.logs import printable
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import MqinferError, NoWorker
from mqinfer.protocol.states import ServedModel, WorkerStatus
from mqinfer.protocol.types import Outcome

__all__ = ["print_table", "status"]

_COLOURS = {"ready": "green", "lost": "red", "unavailable": "red"}
"""Of a cell that holds this word, in any case; other states are yellow."""
_STATES = frozenset({"ready", "lost", "unavailable", "draining", "loading", "unloading"})


@with_connection
def status(
    connection: Connection,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON: one object, or one a line with --watch.")
    ] = False,
    watch: Annotated[
        float | None, typer.Option(help="Print again every N seconds, until Ctrl-C.", min=0.5, max=86400)
    ] = None,
    interval: Annotated[float, typer.Option(help="Seconds over which the rate is counted.", min=0.1, max=3600)] = 1,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for the servers' replies.", min=0.001, max=1e6)] = 5,
) -> None:
    """Show servers, processes and models with their states, load and rate. Exit code 1 if nothing is served.

    A rate counts the replies of the last --interval (or --watch) seconds; p50 is the median time that the newest
    requests spent in the worker. What a server reports needs a login that may ask it (operator, dashboard).
    """
    stop = threading.Event() if watch is None else until_signal()
    with ControlClient(connection.address(), name=connection.name, root=connection.root) as control:
        control.watch_workers()
        before, serves, pause = _ask(control, timeout), True, interval
        while not stop.wait(pause):
            now = _ask(control, timeout)
            overview = _overview(control, before, now)
            _print_overview(overview, as_json=as_json, again=watch is not None)
            before, serves = now, any(each["state"] == WorkerStatus.READY for each in overview["processes"])
            if watch is None:
                break
            pause = watch
    if not serves:
        raise typer.Exit(1)


def print_table(columns: Iterable[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table, in the width of the terminal or, elsewhere, of its cells; none is cut, or read as markup."""
    console = table_console()
    table = Table(*(Column(name, overflow="fold") for name in columns), box=None, header_style="bold", pad_edge=False)
    for row in rows:
        table.add_row(*(Text(printable(cell), style=_style(cell)) for cell in row))
    with console.capture() as printed:
        console.print(table)
    typer.echo("\n".join(line.rstrip() for line in printed.get().splitlines()))


def _style(cell: str) -> str:
    return _COLOURS.get(cell.lower(), "yellow") if cell.lower() in _STATES else ""


@dataclass(frozen=True, slots=True)
class _Figures:
    ok: int = 0
    failed: int = 0
    p50_ms: float | None = None

    @property
    def done(self) -> int:
        return self.ok + self.failed


def _read(entry: dict[str, Any]) -> _Figures:
    """Read the statistics of a model; what another server leaves out, or means otherwise, counts as nothing."""
    try:
        stages, response = entry["inference_stats"], entry.get("response_time") or {"count": 0}
        median_ms = round(response["p50_ns"] / 1e6, 3) if response["count"] else None
        return _Figures(int(stages["success"]["count"]), int(stages["fail"]["count"]), median_ms)
    except (KeyError, TypeError, ValueError):
        return _Figures()


_OF_INDEX = ("name", "version", "state", "server", "reason")


def _list(content: object) -> list[Any]:
    return content if isinstance(content, list) else []


def _is_entry(entry: object, texts: Iterable[str]) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in texts)


@dataclass(slots=True)
class _Replies:
    """What the servers replied, and when.

    Attributes:
        at: The clock's reading.
        index: Entries of their repositories.
        statistics: By server, model and version: requests that succeeded and failed, and the median time.
        problems: Why a server did not reply, by server; under the empty name why none was asked.
    """

    at: float = field(default_factory=time.monotonic)
    index: list[dict[str, Any]] = field(default_factory=list)
    statistics: dict[tuple[str, str, str], _Figures] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)


def _ask(control: ControlClient, timeout: float) -> _Replies:
    """Ask all servers for their models and statistics; a server that fails is no error."""
    found = _Replies()
    try:
        for reply in control.ask(Call(Operation.INDEX), timeout=timeout):
            found.index += [entry for entry in _list(reply.content) if _is_entry(entry, _OF_INDEX)]
            if reply.error:
                found.problems[reply.server] = str(reply.error)
        if len(found.problems) < len(control.servers):
            for reply in control.ask(Call(Operation.ALL_STATS), timeout=timeout):
                for entry in _list(reply.content.get("model_stats") if isinstance(reply.content, dict) else None):
                    if _is_entry(entry, ("name", "version")):
                        found.statistics[reply.server, entry["name"], entry["version"]] = _read(entry)
    except NoWorker:  # no server, but there may be states
        pass
    except MqinferError as error:
        found.problems[""] = str(error)
    found.at = time.monotonic()
    return found


def _overview(control: ControlClient, before: _Replies, now: _Replies) -> dict[str, Any]:
    """Put together what is printed, as JSON types."""
    processes = [
        {
            "process": state.worker,
            "server": state.worker.rpartition(".")[0],
            "state": str(state.status),
            "model": model.name,
            "version": model.version,
            "depth": state.depth,
            "capacity": state.capacity,
            "service_time_us": state.service_time_us,
            "counters": dict(state.counters),
        }
        for _, state in sorted(control.workers.items())
        for model in state.models or (ServedModel(""),)
    ]
    servers = [
        {"server": name, "state": str(state), "problem": now.problems.get(name, "")}
        for name, state in sorted(control.servers.items())
    ]
    models = [_model(entry, processes, before, now) for entry in now.index]
    return {"servers": servers, "processes": processes, "models": models, "problem": now.problems.get("", "")}


def _model(
    entry: dict[str, Any], processes: Sequence[dict[str, Any]], before: _Replies, now: _Replies
) -> dict[str, Any]:
    server, name, version = key = entry["server"], entry["name"], entry["version"]
    of_it = [
        each
        for each in processes
        if (each["server"], each["model"], each["version"]) == key and each["state"] in _SERVING
    ]
    found, earlier = now.statistics.get(key), before.statistics.get(key)
    rate = round(max(0, found.done - earlier.done) / (now.at - before.at), 1) if found and earlier else None
    return {
        "model": name,
        "version": version,
        "state": entry["state"],
        "server": server,
        "processes": len(of_it),
        "depth": sum(each["depth"] for each in of_it),
        "rate": rate,
        "p50_ms": found.p50_ms if found else None,
        "ok": found.ok if found else None,
        "failed": found.failed if found else None,
        "reason": entry["reason"],
    }


_SERVING = (WorkerStatus.READY, WorkerStatus.DRAINING)


def _print_overview(overview: dict[str, Any], *, as_json: bool, again: bool) -> None:
    if as_json:
        typer.echo(json.dumps(overview, indent=None if again else 2))
        return
    console = plain_console()
    if again:
        console.clear()  # on a terminal only
    servers, processes, models = overview["servers"], overview["processes"], overview["models"]
    console.print(
        f"servers: {_counts(servers)}; processes: {_counts(processes)}; model versions: {_counts(models)}",
        soft_wrap=True,
    )
    for problem in filter(None, (overview["problem"], *(each["problem"] for each in servers))):
        console.print(printable(problem), soft_wrap=True)
    for columns, rows in (
        (_SERVER_COLUMNS, [_server_row(each, processes) for each in servers]),
        (_PROCESS_COLUMNS, [_process_row(each) for each in processes]),
        (_MODEL_COLUMNS, [_model_row(each) for each in models]),
    ):
        if rows:
            typer.echo("")
            print_table(columns, rows)
    for each in models:
        if each["reason"]:
            what = f"{each['model']} version {each['version']}" if each["version"] else each["model"]
            typer.echo("\n" + printable(f"{what} on {each['server']}: {each['reason']}"))


_SERVER_COLUMNS = ("server", "state", "processes")
_PROCESS_COLUMNS = ("process", "state", "model", "version", "depth", "service ms", "ok", "failed")
_MODEL_COLUMNS = ("model", "version", "state", "server", "processes", "depth", "rate/s", "p50 ms", "ok", "failed")


def _counts(entries: Sequence[dict[str, Any]]) -> str:
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


def _model_row(each: dict[str, Any]) -> tuple[str, ...]:
    figures = ("processes", "depth", "rate", "p50_ms", "ok", "failed")
    texts = ["-" if each[key] is None else str(each[key]) for key in figures]
    return (each["model"], each["version"], each["state"], each["server"], *texts)
