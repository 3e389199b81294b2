"""The retained states of workers, servers and clients; the will of each turns its state into `lost`.

On the wire an incarnation is called "boot".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from itertools import islice
from typing import Annotated, Any, ClassVar, Self

from msgspec import Meta, Struct, field, to_builtins
from xxhash import xxh3_64_intdigest

from mqinfer.protocol.decoding import MAX_STATE_BYTES, prepare, read_json, write_json
from mqinfer.protocol.topics import ModelName, Name, RequestId, TopicKind, Topics, check_same
from mqinfer.protocol.types import Buffer, Count


class WorkerStatus(StrEnum):
    """What a worker's state reports: `lost` comes from the broker (the will), `crashed` from the worker's server.

    A worker that is lost may only have lost its connection; of one that crashed the process has ended by itself.
    `crashed` is not retained: by the time that another client comes the process may have been started again.
    """

    READY = "ready"
    DRAINING = "draining"
    STOPPED = "stopped"
    LOST = "lost"
    CRASHED = "crashed"


AT_WORK = frozenset({WorkerStatus.READY, WorkerStatus.DRAINING})
"""Statuses of workers that answer what they have accepted."""


class ProcessStatus(StrEnum):
    """What a server's or client's state reports: `lost` comes from the broker (the will), the others from itself.

    `claiming` is never retained: a process asks whether another one has its name.
    """

    CLAIMING = "claiming"
    READY = "ready"
    STOPPED = "stopped"
    LOST = "lost"


Share = Annotated[int, Meta(ge=0, le=100)]
_OPTIONAL = ("share", "precision", "backend", "device")
"""Fields of a served model that are written only where they have a value."""


class ServedModel(Struct, frozen=True):
    """A model version that a worker serves.

    Attributes:
        name: Name of the model.
        version: The version.
        default: Whether it serves the requests that name no version.
        share: As a canary: per cent of the requests that name no version that clients send to it instead.
        precision: Of the computation, such as `fp32`; this and the two below are empty where the worker does not state
            them. They may differ from the card's, which is of one worker.
        backend: The engine that runs it, with its version.
        device: The device that it runs on, such as `cpu` or `cuda:0`.
    """

    name: ModelName
    version: str = ""
    default: bool = True
    share: Share = 0
    precision: str = ""
    backend: str = ""
    device: str = ""


class _State(Struct, frozen=True):
    """A state, whose first field is the name of its worker, server or client, and says which of them it is."""

    KIND: ClassVar[str]
    """Its topics, among `Topics`."""
    OMITTED: ClassVar[Mapping[str, object]] = {}
    """Fields that are left out of the JSON where they have this value."""

    def to_json(self) -> bytes:
        """Return it as JSON, without the fields that are not stated."""
        fields = self._fields()
        for key, nothing in self.OMITTED.items():
            if getattr(self, key) == nothing:
                del fields[key]
        kind = self.__struct_fields__[0]
        return write_json(fields, f"state of {kind} {fields[kind]!r}")

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = to_builtins(self)
        return fields

    @classmethod
    def from_json(cls, payload: Buffer) -> Self:
        """Decode it from JSON.

        Raises:
            BadEnvelope: A field is missing or has the wrong type, or a name breaks the naming rules.
            LimitExceeded: It is longer than 64 KiB.
        """
        return read_json(payload, cls, f"{cls.__struct_fields__[0]} state", MAX_STATE_BYTES)

    @classmethod
    def read(cls, topics: Topics, topic: str, payload: Buffer) -> tuple[str, Self | None]:
        """Return the name in a state topic of this kind, and the state; None where an empty payload removes it.

        Raises:
            BadTopic: The topic is of another kind, or the state names another worker, server or client.
            BadEnvelope, LimitExceeded: As for `from_json`.
        """
        kind: TopicKind = getattr(topics, cls.KIND)
        ((field, name),) = kind.parse(topic).items()
        state = cls.from_json(payload) if payload else None
        return check_same(field, name, getattr(state, field) if state else name), state


class WorkerState(_State, frozen=True):
    """The state of a worker.

    Attributes:
        worker: Its name.
        status: Whether it accepts requests.
        incarnation: Its start number, larger for a later start ("boot" on the wire). The will repeats it, so that the
            will of an earlier process of that name is not taken for one of the running process.
        models: The versions that it serves.
        capacity: Most requests that it accepts at once; it rejects the others.
        depth: Requests that it has accepted and not answered.
        service_time_us: Smoothed time of one request, in microseconds.
        counters: What it has counted since its start, by name.
        running: Of a process that crashed: the requests that it worked on when it ended; empty where its server does
            not know them all.
        clients: Requests that it has accepted of late, by client: of the 16 that sent most; None of a worker that does
            not state it.
    """

    KIND: ClassVar = "worker_state"
    OMITTED: ClassVar = {"running": (), "clients": None}

    worker: Name
    status: WorkerStatus
    incarnation: Count = field(name="boot")
    models: tuple[ServedModel, ...] = ()
    capacity: Count = 0
    depth: Count = 0
    service_time_us: Count = 0
    counters: Mapping[str, Count] = {}
    running: tuple[RequestId, ...] = ()
    clients: Mapping[str, Count] | None = None

    @property
    def serves(self) -> set[str]:
        """Names of the models that it serves; none unless it is at work."""
        return {model.name for model in self.models} if self.status in AT_WORK else set()

    def _fields(self) -> dict[str, Any]:
        fields = super()._fields()
        for model in fields["models"]:
            for key in _OPTIONAL:
                if not model[key]:
                    del model[key]
        return fields


class ServerState(_State, frozen=True):
    """The state of a server: a supervisor with its workers.

    Attributes:
        server: Its name.
        status: Whether it accepts orders.
        incarnation: As for workers.
        take_over: Whether it takes the name from a server that started earlier.
    """

    KIND: ClassVar = "control_state"
    OMITTED: ClassVar = {"take_over": False}

    server: Name
    status: ProcessStatus
    incarnation: Count = field(name="boot")
    take_over: bool = False


class PendingRequests(Struct, frozen=True):
    """The requests of a client to one model that have no outcome, when its state was published.

    Attributes:
        model: Name of the model.
        queued: Requests that are not published.
        in_flight: Requests that are published and not answered.
        oldest_ms: Age of the oldest one, in milliseconds.
    """

    model: ModelName
    queued: Count = 0
    in_flight: Count = 0
    oldest_ms: Count = 0

    @property
    def count(self) -> int:
        """How many there are."""
        return self.queued + self.in_flight


Rate = Annotated[float, Meta(ge=0.0)]


class StreamState(Struct, frozen=True):
    """What became of one stream of an edge for one model, when its state was published; counts are since its start.

    Attributes:
        source: Name of the stream, as in the capture of its requests.
        model: The model that it is sent to.
        rate: Frames read a second, over the time since the state before.
        window: Most requests that it may have in flight now.
        queued: Frames that were read and have not been sent.
        in_flight: Frames that were sent and have no outcome.
        outcomes: Frames by outcome, those that were answered on the edge included.
        dropped: Frames without a result by reason: the code of their error, or `superseded`.
        spooled: Frames that are on the disk now.
        previews: Previews that were published.
        previews_dropped: Previews that were due and were not published.
    """

    source: str
    model: str = ""
    rate: Rate = 0.0
    window: Count = 0
    queued: Count = 0
    in_flight: Count = 0
    outcomes: Mapping[str, Count] = {}
    dropped: Mapping[str, Count] = {}
    spooled: Count = 0
    previews: Count = 0
    previews_dropped: Count = 0


_MOST_STREAMS = 32
_MOST_STREAM_BYTES = 32 * 1024
"""A state has at most 64 KiB, and states what is pending too."""


def fitting_streams(streams: Iterable[StreamState]) -> tuple[StreamState, ...]:
    """Return the first of some streams that fit into a client's state: at most 32, and at most 32 KiB as JSON."""
    kept: list[StreamState] = []
    room = _MOST_STREAM_BYTES
    for stream in islice(streams, _MOST_STREAMS):
        room -= len(write_json(to_builtins(stream), f"state of stream {stream.source[:80]!r}"))
        if room < 0:
            break
        kept.append(stream)
    return tuple(kept)


class ClientState(_State, frozen=True):
    """The state of a client that dashboards list, such as an edge or a gateway.

    Attributes:
        client: Its name.
        status: Whether it is connected.
        incarnation: As for workers.
        source: What it reads, such as the name of a bag.
        model: The model that it asks.
        window: Most requests that it has in flight.
        take_over: Whether it takes the name from a client that started earlier.
        pending: What it waits for, by model; None of a client that does not state it.
        streams: What it reads and what becomes of it, of an edge; None of a client that does not state it.
    """

    KIND: ClassVar = "client_state"
    OMITTED: ClassVar = {"take_over": False, "pending": None, "streams": None}

    client: Name
    status: ProcessStatus
    incarnation: Count = field(name="boot")
    source: str = ""
    model: str = ""
    window: Count = 0
    take_over: bool = False
    pending: tuple[PendingRequests, ...] | None = None
    streams: tuple[StreamState, ...] | None = None


def is_for_canary(request_id: str, share: int) -> bool:
    """Return whether a request that names no version goes to the canary; all clients and attempts decide alike.

    Args:
        request_id: Its id.
        share: The canary's share, in per cent.
    """
    return xxh3_64_intdigest(request_id.encode()) % 100 < share


class AnyState(Struct):
    """What all states have.

    Attributes:
        incarnation: Start number of the process.
        status: What it reports.
        take_over: Whether it takes the name from a process that started earlier.
    """

    incarnation: Count = field(name="boot")
    status: str
    take_over: bool = False


def read_any_state(payload: Buffer) -> AnyState:
    """Return what any of these states says of its process.

    Raises:
        BadEnvelope: A field is missing or of the wrong type.
        LimitExceeded: The state is longer than 64 KiB.
    """
    return read_json(payload, AnyState, "state", MAX_STATE_BYTES)


prepare(WorkerState, ServerState, ClientState, AnyState)
