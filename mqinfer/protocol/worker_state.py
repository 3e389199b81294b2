"""What a worker says of itself: its retained state, which its will turns into `lost`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from mqinfer.protocol.errors import BadEnvelope
from mqinfer.protocol.fields import Record, boolean, integer, record, records, text
from mqinfer.protocol.json_text import MAX_STATE_BYTES, parse_object, write_object
from mqinfer.protocol.types import Buffer

__all__ = ["ServedModel", "WorkerState", "WorkerStatus"]


class WorkerStatus(StrEnum):
    """`lost` is the will: the broker says it, not the worker. A clean end is `stopped`."""

    READY = "ready"
    DRAINING = "draining"
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
            "boot": self.incarnation,
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
            status=_status(fields, where),
            incarnation=integer(fields, "boot", where),
            models=tuple(_served(model, f"{where}, models") for model in models),
            capacity=integer(fields, "capacity", where, 0),
            depth=integer(fields, "depth", where, 0),
            service_time_us=integer(fields, "service_time_us", where, 0),
            counters={name: integer(counters, name, f"{where}, counters") for name in counters},
        )


def _served(model: Record, where: str) -> ServedModel:
    return ServedModel(
        text(model, "name", where), text(model, "version", where, ""), boolean(model, "default", where, default=True)
    )


def _status(fields: Record, where: str) -> WorkerStatus:
    name = text(fields, "status", where)
    try:
        return WorkerStatus(name)
    except ValueError:
        known = ", ".join(WorkerStatus)
        raise BadEnvelope(f"{where}: unknown status {name[:40]!r}; known are {known}") from None
