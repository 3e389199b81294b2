"""What servers, workers and clients report, put together: what `mqinfer status` shows."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import AsyncIterator, Collection, Container, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from msgspec import Struct, ValidationError, convert, to_builtins

from mqinfer.cli.options import ConnectionOptions
from mqinfer.client.aio import AsyncClient
from mqinfer.client.control import AsyncControl, ControlReply
from mqinfer.metrics.lag import add_site, follow_site, lag, to_record
from mqinfer.metrics.process_usage import ProcessUsage
from mqinfer.protocol.control import Call, Duration, ModelState, ModelStatistics, Operation
from mqinfer.protocol.errors import BadEnvelope, MqinferError, NotAuthorized, NoWorker
from mqinfer.protocol.states import AT_WORK, PendingRequests, ProcessStatus, ServedModel, WorkerStatus
from mqinfer.protocol.topics import instead_of

_OF_PROCESS = ("cpu_cores", "memory_bytes", "gpu_memory_bytes", "gpu_ratio")
"""What an entry of a process holds of its use of the machine; None where its server does not state it."""
_STAGES = ("queue", "compute_input", "compute_infer", "compute_output")
_FIGURES = ("rate", "p50_ms", *(f"{stage}_ms" for stage in _STAGES), "rows", "runs", "memory_bytes", "ok", "failed")
"""What an entry of a model holds of its statistics; None where its server does not state it."""


def _stated(found: ModelStatistics) -> dict[str, Any]:
    return {
        "p50_ms": round(found.recent_ns[0] / 1e6, 3) if found.recent_ns else None,
        "ok": found.stages.success.count,
        "failed": found.stages.fail.count,
        "rows": found.inference_count,
        "runs": found.execution_count,
        "memory_bytes": found.memory_bytes,
        **{f"{stage}_ms": _mean_ms(getattr(found.stages, stage)) for stage in _STAGES},
    }


def _mean_ms(duration: Duration) -> float | None:
    return round(duration.ns / duration.count / 1e6, 3) if duration.count else None


def _statistics(reply: ControlReply) -> dict[tuple[str, str, str], dict[str, Any]]:
    """Read a server's statistics, by server, model and version, without those of which it means something else."""
    found = {}
    for entry in _entries(reply.content.get("model_stats") if isinstance(reply.content, dict) else None):
        with suppress(BadEnvelope):
            (name, version), statistics = ModelStatistics.from_record(entry)
            if "inference_stats" in entry:
                found[reply.server, name, version] = _stated(statistics)
    return found


def _entries(content: object, texts: Collection[str] = ()) -> list[dict[str, Any]]:
    """Return the objects of a list that have these texts."""
    listed = content if isinstance(content, list) else []
    return [each for each in listed if isinstance(each, dict) and all(isinstance(each.get(key), str) for key in texts)]


_OF_INDEX = ("name", "version", "state", "server", "reason")


class _Server(Struct, frozen=True):
    """What a server states of itself; nothing of that which another one leaves out.

    Attributes:
        version: Of mqinfer.
        host: Name of its machine.
        model_hashes: Content hash of the model of each of its processes, by process.
        processes: What each of them uses.
    """

    version: str = ""
    host: str = ""
    model_hashes: dict[str, str] = {}
    processes: dict[str, ProcessUsage] = {}


def _age_s(incarnation: int) -> int:
    """Return for how many seconds a process has run, by the number of its start, which is a time."""
    return max(0, round(time.time() - incarnation / 1e6))


@dataclass(slots=True)
class ServerReplies:
    """What the servers replied, and when.

    Attributes:
        at: The clock's reading.
        index: Entries of their repositories.
        statistics: By server, model and version: requests that succeeded and failed, and their times.
        servers: What each server states of itself, by server.
        problems: Why a server did not reply, by server; under the empty name why none was asked.
        is_refused: Whether this login may not ask servers.
    """

    at: float = field(default_factory=time.monotonic)
    index: list[dict[str, Any]] = field(default_factory=list)
    statistics: dict[tuple[str, str, str], dict[str, Any]] = field(default_factory=dict)
    servers: defaultdict[str, _Server] = field(default_factory=lambda: defaultdict(_Server))
    problems: dict[str, str] = field(default_factory=dict)
    is_refused: bool = False


class Observer:
    """Asks servers, and puts together what they and the states on the broker report.

    Args:
        client: Its registry has the states of clients, too.
    """

    def __init__(self, client: AsyncClient) -> None:
        self.read_metrics = partial(add_site, client)
        self._connection, self._control = client.connection, AsyncControl(client)
        self._known = client.connection.registry.known

    async def ask(self, timeout: float) -> ServerReplies:  # noqa: ASYNC109  part of the result: who has not replied in time
        """Ask all servers for their models and statistics; a server that fails is no error."""
        found = ServerReplies()
        try:
            for reply in await self._control.ask(Call(Operation.INDEX), timeout=timeout):
                found.index += _entries(reply.content, _OF_INDEX)
                if reply.error:
                    found.problems[reply.server] = str(reply.error)
            if len(found.problems) < len(self._known.servers):
                for reply in await self._control.ask(Call(Operation.ALL_STATS), timeout=timeout):
                    found.statistics |= _statistics(reply)
                for reply in await self._control.ask(Call(Operation.SERVER), timeout=timeout):
                    with suppress(ValidationError):
                        found.servers[reply.server] = convert(reply.content, _Server)
        except NoWorker:  # no server, but there may be states
            pass
        except NotAuthorized:
            found.problems[""], found.is_refused = _STATES_ALONE, True
        except MqinferError as error:
            found.problems[""] = str(error)
        found.at = time.monotonic()
        return found

    def overview(self, model: str, before: ServerReplies, now: ServerReplies) -> dict[str, Any]:
        """Put together what is shown of one model, or of all for an empty name; rates are since the replies before."""
        processes = self._processes(before, now)
        index = _stated_index(processes) if now.is_refused else now.index
        found = {
            "servers": self._servers(now),
            "processes": processes,
            "models": [self._model(entry, processes, before, now) for entry in index],
            "clients": self._clients(),
            "streams": self._streams(),
            "lag": to_record(lag(self._known, time.monotonic())),
            "problem": now.problems.get("", ""),
        }
        return _of_model(model, found) if model else found

    def _servers(self, now: ServerReplies) -> list[dict[str, Any]]:
        return [
            {
                "server": name,
                "state": str(state.status),
                "host": now.servers[name].host,
                "mqinfer": now.servers[name].version,
                "uptime_s": _age_s(state.incarnation) if state.status is ProcessStatus.READY else None,
                "problem": now.problems.get(name, ""),
            }
            for name, state in sorted(self._known.servers.items())
        ]

    def _processes(self, before: ServerReplies, now: ServerReplies) -> list[dict[str, Any]]:
        return [
            {
                "process": state.worker,
                "server": (server := state.worker.rpartition(".")[0]),
                "state": str(state.status),
                "uptime_s": _age_s(state.incarnation) if state.status in AT_WORK else None,
                "model": model.name,
                "version": model.version,
                "hash": now.servers[server].model_hashes.get(state.worker, ""),
                "device": model.device,
                "precision": model.precision,
                "backend": model.backend,
                "depth": state.depth,
                "capacity": state.capacity,
                "service_time_us": state.service_time_us,
                "counters": dict(state.counters),
                **_usage(state.worker, before, now),
            }
            for _, state in sorted(self._known.workers.items())
            for model in state.models or (ServedModel(""),)
        ]

    def _clients(self) -> list[dict[str, Any]]:
        """List the clients that publish a state, once for each model that they wait for."""
        now = time.monotonic()
        return [
            {
                "client": name,
                "source": seen.state.source,
                "model": each.model,
                "window": seen.state.window,
                "queued": each.queued,
                "in_flight": each.in_flight,
                "oldest_ms": round(each.oldest_ms + (now - seen.at) * 1e3) if each.count else 0,
            }
            for name, seen in sorted(self._known.clients.items())
            for each in seen.state.pending or (PendingRequests(seen.state.model or "-"),)
        ]

    def _streams(self) -> list[dict[str, Any]]:
        """List the streams of the edges that state them."""
        clients = sorted(self._known.clients.items())
        return [{"client": name, **to_builtins(each)} for name, seen in clients for each in seen.state.streams or ()]

    def _model(
        self, entry: dict[str, Any], processes: Sequence[dict[str, Any]], before: ServerReplies, now: ServerReplies
    ) -> dict[str, Any]:
        server, name, version = key = entry["server"], entry["name"], entry["version"]
        of_it = [each for each in processes if _key(each) == key and each["state"] in AT_WORK]
        found, earlier = now.statistics.get(key), before.statistics.get(key)
        card = self._known.card(name)
        labels, traffic = (card.parameters.labels, card.parameters.traffic) if card else ({}, {})
        return {
            "model": name,
            "version": version,
            "label": {labelled: label for label, labelled in labels.items()}.get(version, ""),
            "share": traffic.get(version),
            "state": entry["state"],
            "server": server,
            "processes": len(of_it),
            "depth": sum(each["depth"] for each in of_it),
            **_figures(found, earlier, now.at - before.at),
            "reason": entry["reason"],
        }


def _usage(worker: str, before: ServerReplies, now: ServerReplies) -> dict[str, float | None]:
    """Return what a process uses, its CPU in cores since the replies before; None where its server states none."""
    server = worker.rpartition(".")[0]
    found, earlier = (each.servers[server].processes.get(worker) for each in (now, before))
    if found is None:
        return dict.fromkeys(_OF_PROCESS)
    seconds = now.at - before.at
    is_same = earlier is not None and earlier.pid == found.pid and seconds > 0
    cores = round((found.cpu_s - earlier.cpu_s) / seconds, 2) if earlier and is_same else None
    gpu = (found.gpu_memory_bytes, found.gpu_ratio) if found.gpu_memory_bytes else (None, None)
    return dict(zip(_OF_PROCESS, (cores, found.memory_bytes, *gpu), strict=True))


def _of_model(model: str, overview: dict[str, Any]) -> dict[str, Any]:
    """Return the part of an overview that concerns a model, with the models that there are where none of it does."""
    known = {each["model"] for part in ("processes", "models") for each in overview[part]}
    parts = ("processes", "models", "clients", "streams")
    found = {part: _select(overview[part], "model", {model}) for part in parts}
    servers = {each["server"] for part in ("processes", "models") for each in found[part]}
    return {
        **overview,
        **found,
        "servers": _select(overview["servers"], "server", servers),
        "lag": {name: each for name, each in overview["lag"].items() if name == model},
        "problem": overview["problem"]
        or ("" if servers else f"there is no model {model!r}; models there: {instead_of(model, known)}"),
    }


def _select(entries: Iterable[dict[str, Any]], key: str, values: Container[str]) -> list[dict[str, Any]]:
    return [each for each in entries if each[key] in values]


def _figures(found: dict[str, Any] | None, earlier: dict[str, Any] | None, seconds: float) -> dict[str, Any]:
    """Return a model's statistics, with the requests a second since earlier ones."""
    figures: dict[str, Any] = dict.fromkeys(_FIGURES) | (found or {})
    if found and earlier:
        done, before = (each["ok"] + each["failed"] for each in (found, earlier))
        figures["rate"] = round(max(0, done - before) / seconds, 1)
    return figures


def _key(process: dict[str, Any]) -> tuple[str, str, str]:
    return process["server"], process["model"], process["version"]


def _stated_index(processes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what stands in for the servers' index: the versions that the states of their processes name."""
    found: dict[tuple[str, str, str], dict[str, Any]] = {}
    for each in processes:
        if each["model"]:
            key = _key(each)
            made = {"server": key[0], "name": key[1], "version": key[2], "state": ModelState.UNAVAILABLE, "reason": ""}
            entry = found.setdefault(key, made)
            if each["state"] == WorkerStatus.READY:
                entry["state"] = ModelState.READY
    return list(found.values())


@asynccontextmanager
async def observe(connection: ConnectionOptions) -> AsyncIterator[Observer]:
    """Connect an observer.

    Raises:
        LinkError: The broker is away, or refuses the login.
        ConfigError: The address is wrong.
    """
    async with follow_site(connection.address(), connection.name, connection.root) as client:
        yield Observer(client)


_STATES_ALONE = (
    "this login may not ask servers, as that of a dashboard: shown is what states say, without rates and times; an "
    "operator's login shows all (mqinfer broker add DIR operator NAME)"
)
