"""What servers, workers and clients report, put together: what `mqinfer status` and `mqinfer top` show."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from msgspec import to_builtins

from mqinfer.cli.options import ConnectionOptions
from mqinfer.client.aio import AsyncClient
from mqinfer.client.control import AsyncControl, ControlReply
from mqinfer.client.registry import Registry
from mqinfer.metrics.lag import lag, to_record
from mqinfer.protocol.control import Call, ModelState, Operation
from mqinfer.protocol.errors import MqinferError, NotAuthorized, NoWorker
from mqinfer.protocol.states import PendingRequests, ServedModel, WorkerStatus


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


def _statistics(reply: ControlReply) -> dict[tuple[str, str, str], _Figures]:
    """Read a server's statistics, by server, model and version."""
    listed = _list(reply.content.get("model_stats") if isinstance(reply.content, dict) else None)
    entries = [entry for entry in listed if _is_entry(entry, ("name", "version"))]
    return {(reply.server, entry["name"], entry["version"]): _read(entry) for entry in entries}


def _is_entry(entry: object, texts: Iterable[str]) -> bool:
    return isinstance(entry, dict) and all(isinstance(entry.get(key), str) for key in texts)


@dataclass(slots=True)
class ServerReplies:
    """What the servers replied, and when.

    Attributes:
        at: The clock's reading.
        index: Entries of their repositories.
        statistics: By server, model and version: requests that succeeded and failed, and the median time.
        problems: Why a server did not reply, by server; under the empty name why none was asked.
        is_refused: Whether this login may not ask servers.
    """

    at: float = field(default_factory=time.monotonic)
    index: list[dict[str, Any]] = field(default_factory=list)
    statistics: dict[tuple[str, str, str], _Figures] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    is_refused: bool = False


class Observer:
    """Asks servers, and puts together what they and the states on the broker report.

    Args:
        known: What the broker keeps, with the states of clients.
        control: Asks the servers.
    """

    def __init__(self, known: Registry, control: AsyncControl) -> None:
        self._known, self._control = known, control

    async def ask(self, timeout: float) -> ServerReplies:  # noqa: ASYNC109  part of the result: who has not replied in time
        """Ask all servers for their models and statistics; a server that fails is no error."""
        found = ServerReplies()
        try:
            for reply in await self._control.ask(Call(Operation.INDEX), timeout=timeout):
                found.index += [entry for entry in _list(reply.content) if _is_entry(entry, _OF_INDEX)]
                if reply.error:
                    found.problems[reply.server] = str(reply.error)
            if len(found.problems) < len(self._known.servers):
                for reply in await self._control.ask(Call(Operation.ALL_STATS), timeout=timeout):
                    found.statistics |= _statistics(reply)
        except NoWorker:  # no server, but there may be states
            pass
        except NotAuthorized:
            found.problems[""], found.is_refused = _STATES_ALONE, True
        except MqinferError as error:
            found.problems[""] = str(error)
        found.at = time.monotonic()
        return found

    def overview(self, before: ServerReplies, now: ServerReplies) -> dict[str, Any]:
        """Put together what is shown, as JSON types; rates are those between two rounds of replies."""
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
            for _, state in sorted(self._known.workers.items())
            for model in state.models or (ServedModel(""),)
        ]
        servers = [
            {"server": name, "state": str(state.status), "problem": now.problems.get(name, "")}
            for name, state in sorted(self._known.servers.items())
        ]
        index = _stated_index(processes) if now.is_refused else now.index
        return {
            "servers": servers,
            "processes": processes,
            "models": [self._model(entry, processes, before, now) for entry in index],
            "clients": self._clients(),
            "streams": self._streams(),
            "lag": to_record(lag(self._known, time.monotonic())),
            "problem": now.problems.get("", ""),
        }

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
        of_it = [each for each in processes if _key(each) == key and each["state"] in _SERVING]
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
            **_rates(found, earlier, now.at - before.at),
            "reason": entry["reason"],
        }


def _rates(found: _Figures | None, earlier: _Figures | None, seconds: float) -> dict[str, float | None]:
    if found is None:
        return {"rate": None, "p50_ms": None, "ok": None, "failed": None}
    rate = round(max(0, found.done - earlier.done) / seconds, 1) if earlier else None
    return {"rate": rate, "p50_ms": found.p50_ms, "ok": found.ok, "failed": found.failed}


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
    async with AsyncClient(connection.address(), name=connection.name, root=connection.root) as client:
        client.connection.registry.watches_clients = True
        yield Observer(client.connection.registry.known, AsyncControl(client))


_STATES_ALONE = (
    "this login may not ask servers, as that of a dashboard: shown is what states say, without rates and times; an "
    "operator's login shows all (mqinfer broker add DIR operator NAME)"
)
_SERVING = (WorkerStatus.READY, WorkerStatus.DRAINING)
