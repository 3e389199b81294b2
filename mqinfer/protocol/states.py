"""The retained states of workers, servers and clients; the will of each turns its state into `lost`.

On the wire an incarnation is called "boot".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from mqinfer.protocol.errors import BadEnvelope
from mqinfer.protocol.fields import Record, boolean, integer, record, records, text
from mqinfer.protocol.json_text import MAX_STATE_BYTES, parse_object, write_object
from mqinfer.protocol.types import Buffer

__all__ = [
    "ClientState",
    "ClientStatus",
    "ServedModel",
    "ServerState",
    "ServerStatus",
    "WorkerState",
    "WorkerStatus",
    "read_incarnation",
]

_INCARNATION = "boot"
_Status = TypeVar("_Status", bound=StrEnum)


class WorkerStatus(StrEnum):
    """What a worker's state reports: `lost` comes from the broker (the will), the others from the worker."""

    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"


class ServerStatus(StrEnum):
    """What a server's state reports: `lost` comes from the broker (the will), the others from the server."""

    READY = "ready"
    STOPPED = "stopped"
    LOST = "lost"


class ClientStatus(StrEnum):
    """What a client's state reports: `lost` comes from the broker (the will), the others from the client."""

    READY = "ready"
    STOPPED = "stopped"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model version that a worker serves.

    Attributes:
        name: Of the model.
        version: The version.
        default: Whether requests that name no version are for it.
    """

    name: str
    version: str
    default: bool = True


@dataclass(frozen=True, slots=True)
class WorkerState:
    """One worker's state.

    Attributes:
        worker: Its name.
        status: Whether it takes requests.
        incarnation: Its start number, larger for a later start ("boot" on the wire). The will repeats it, so that the
            will of an earlier process of that name is not taken for one of the running process.
        models: The versions that it serves.
        capacity: Requests that it takes at once; above it answers `rejected`.
        depth: Requests in hand.
        service_time_us: Smoothed time of one request, in microseconds.
        counters: Whatever it counts, by name, since its start.
    """

    worker: str
    status: WorkerStatus
    incarnation: int
    models: tuple[ServedModel, ...] = ()
    capacity: int = 0
    depth: int = 0
    service_time_us: int = 0
    counters: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> bytes:
        """Write it as JSON."""
        fields = {
            "worker": self.worker,
            "status": self.status,
            _INCARNATION: self.incarnation,
            "models": [
                {"name": model.name, "version": model.version, "default": model.default} for model in self.models
            ],
            "capacity": self.capacity,
            "depth": self.depth,
            "service_time_us": self.service_time_us,
            "counters": dict(self.counters),
        }
        return write_object(fields, f"state of worker {self.worker!r}")

    @classmethod
    def from_json(cls, payload: Buffer) -> WorkerState:
        """Read it from JSON.

        Raises:
            BadEnvelope: It is no worker state: what is missing or of the wrong type is named.
            LimitExceeded: It is longer than 64 KiB.
        """
        where = "worker state"
        fields = parse_object(payload, where, MAX_STATE_BYTES)
        models = records(fields, "models", where)
        counters = record(fields, "counters", where)
        return cls(
            worker=text(fields, "worker", where),
            status=_status(fields, WorkerStatus, where),
            incarnation=integer(fields, _INCARNATION, where),
            models=tuple(_served(model, f"{where}, models") for model in models),
            capacity=integer(fields, "capacity", where, 0),
            depth=integer(fields, "depth", where, 0),
            service_time_us=integer(fields, "service_time_us", where, 0),
            counters={name: integer(counters, name, f"{where}, counters") for name in counters},
        )


@dataclass(frozen=True, slots=True)
class ServerState:
    """The state of a server: a supervisor with its workers.

    Attributes:
        server: Its name.
        status: Whether it accepts orders.
        incarnation: As for workers.
    """

    server: str
    status: ServerStatus
    incarnation: int

    def to_json(self) -> bytes:
        """Write it as JSON."""
        fields = {"server": self.server, "status": self.status, _INCARNATION: self.incarnation}
        return write_object(fields, f"state of server {self.server!r}")

    @classmethod
    def from_json(cls, payload: Buffer) -> ServerState:
        """Read it from JSON.

        Raises:
            BadEnvelope: It is no server state: what is missing or of the wrong type is named.
            LimitExceeded: It is longer than 64 KiB.
        """
        where = "server state"
        fields = parse_object(payload, where, MAX_STATE_BYTES)
        status = _status(fields, ServerStatus, where)
        return cls(text(fields, "server", where), status, integer(fields, _INCARNATION, where))


@dataclass(frozen=True, slots=True)
class ClientState:
    """The state of a client that shows itself to dashboards, such as an edge.

    Attributes:
        client: Its name.
        status: Whether it is there.
        incarnation: As for workers.
        source: What it reads, such as the name of a bag.
        model: The model that it asks.
        window: The most requests that it has in flight.
    """

    client: str
    status: ClientStatus
    incarnation: int
    source: str = ""
    model: str = ""
    window: int = 0

    def to_json(self) -> bytes:
        """Write it as JSON."""
        fields = {
            "client": self.client,
            "status": self.status,
            _INCARNATION: self.incarnation,
            "source": self.source,
            "model": self.model,
            "window": self.window,
        }
        return write_object(fields, f"state of client {self.client!r}")


def read_incarnation(payload: Buffer) -> tuple[int, str]:
    """Read the incarnation and the status of any of these states.

    Raises:
        BadEnvelope: One of the two is missing or of the wrong type.
        LimitExceeded: The state is longer than 64 KiB.
    """
    fields = parse_object(payload, "state", MAX_STATE_BYTES)
    return integer(fields, _INCARNATION, "state"), text(fields, "status", "state")


def _served(model: Record, where: str) -> ServedModel:
    return ServedModel(
        text(model, "name", where), text(model, "version", where, ""), boolean(model, "default", where, default=True)
    )


def _status(fields: Record, kind: type[_Status], where: str) -> _Status:
    name = text(fields, "status", where)
    try:
        return kind(name)
    except ValueError:
        raise BadEnvelope(f"{where}: unknown status {name[:40]!r}; expected one of {', '.join(kind)}") from None
