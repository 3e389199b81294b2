"""Orders to servers and to workers, and what their replies are made of.

A server is a supervisor with its worker processes. The rest of a control topic, behind the server's and the client's
name, is the path that the protocol's REST form has behind `v2/`; `server` stands for `v2` itself. Statistics are those
of Triton (https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import zip_longest
from operator import add
from statistics import median
from typing import Any, Self, cast

from msgspec import Struct, field, to_builtins
from msgspec.structs import astuple, replace

from mqinfer.protocol.decoding import MAX_STATE_BYTES, check, prepare, read_json, write_json
from mqinfer.protocol.errors import BadEnvelope, BadTopic
from mqinfer.protocol.topics import ModelName, RequestId, check_name, check_version
from mqinfer.protocol.types import Buffer, Count, Outcome


class Operation(StrEnum):
    """Operations of a server, and those of an edge, `OF_EDGES`; the values are their paths."""

    SERVER = "server"
    LIVE = "health/live"
    READY = "health/ready"
    INDEX = "repository/index"
    LOAD = "repository/models/{model}/load"
    UNLOAD = "repository/models/{model}/unload"
    TRAFFIC = "repository/models/{model}/traffic"
    ROLLBACK = "repository/models/{model}/rollback"
    METADATA = "models/{model}"
    MODEL_READY = "models/{model}/ready"
    CONFIG = "models/{model}/config"
    STATS = "models/{model}/stats"
    ALL_STATS = "models/stats"
    DRAIN = "workers/{worker}/drain"
    UNDRAIN = "workers/{worker}/undrain"
    REPLY = "reply"
    """The reply to an earlier call of the same client, by its Correlation Data, where that may have been lost."""
    CASCADE = "cascade"
    """The settings of an edge's cascade, and changes to them."""
    COLLECT = "collect"
    """What an edge has collected, and orders to collect the next frames."""


OF_EDGES = (Operation.CASCADE, Operation.COLLECT)
"""Operations of an edge, not of a server."""

CHANGES = frozenset(
    {
        Operation.LOAD,
        Operation.UNLOAD,
        Operation.TRAFFIC,
        Operation.ROLLBACK,
        Operation.DRAIN,
        Operation.UNDRAIN,
    }
)
"""Operations that may take long and whose replies a server keeps; the others are asked anew."""

BEHALF = "on_behalf_of"
"""User property of a call: whom its sender makes it for. It gives no right, and stands in the log alone."""


def _pattern(operation: Operation) -> re.Pattern[str]:
    """Return what the paths of an operation match; of those below `models` a version may be stated, too."""
    version = "(?:/versions/(?P<version>[^/]*))?" if operation.startswith("models/") else ""
    path = operation.replace("{model}", f"(?P<model>[^/]*){version}").replace("{worker}", "(?P<worker>[^/]*)")
    return re.compile(path)


_PATTERNS = {operation: _pattern(operation) for operation in sorted(Operation, key=lambda each: "{" in each)}
"""Those without a name come first: `models/stats` is no model's."""
_MOST_TIMES = 4096
"""Response times that a record's median stands for, at most: a server states those of the newest requests."""
_REASONS = (Outcome.CANCELLED, Outcome.SUPERSEDED)


@dataclass(frozen=True, slots=True)
class Call:
    """A call to a server.

    Attributes:
        operation: What it asks for.
        model: The model that it concerns; empty for none.
        version: Of the model; None for the default one, or for all.
        worker: A server, which stands for all its worker processes, or one of these; empty for none.
    """

    operation: Operation
    model: str = ""
    version: str | None = None
    worker: str = ""

    @property
    def path(self) -> str:
        """The part of the topic behind the client's name; raises BadTopic if a name or the version breaks the rules."""
        model = check_name("model", self.model) if "{model}" in self.operation else ""
        if self.version is not None:
            model += f"/versions/{check_version(self.version)}"
        worker = check_name("worker", self.worker) if "{worker}" in self.operation else ""
        return self.operation.format(model=model, worker=worker)


def read_path(path: str) -> Call:
    """Return the call that the part of a control topic behind the client's name stands for.

    Raises:
        BadTopic: There is no such operation, or a name or version breaks the rules.
    """
    for operation, pattern in _PATTERNS.items():
        if found := pattern.fullmatch(path):
            call = Call(operation, **found.groupdict())
            if call.path == path:  # which checks the names
                return call
    known = ", ".join(operation for operation in Operation)
    raise BadTopic(f"{path[:200]!r} is not a control operation; expected one of {known}")


class ModelState(StrEnum):
    """The Open Inference Protocol's states of a model version."""

    READY = "READY"
    UNAVAILABLE = "UNAVAILABLE"
    LOADING = "LOADING"
    UNLOADING = "UNLOADING"


class IndexEntry(Struct, frozen=True):
    """One line of a repository's index.

    Attributes:
        name: The model.
        version: Empty where the folder has no version that could be served.
        state: Whether it is served.
        reason: Why it is not, or why the last attempt to reload it failed.
    """

    name: str
    version: str
    state: ModelState
    reason: str = ""

    def to_record(self) -> dict[str, str]:
        """Return the JSON object."""
        return cast("dict[str, str]", to_builtins(self))


class Summed(Struct, frozen=True):
    """Figures that are added field by field."""

    def __add__(self, other: Self) -> Self:
        return type(self)(*map(add, astuple(self), astuple(other)))


class Duration(Summed, frozen=True):
    """How often something happened, and its total time in nanoseconds."""

    count: Count = 0
    ns: Count = 0


class BatchStatistics(Summed, frozen=True):
    """Times of one batch size: decoding and pre-processing its requests, the engine, splitting the outputs."""

    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()


class StageTimes(Summed, frozen=True):
    """Times of requests.

    Attributes:
        success: Requests with a result, from receipt to reply.
        fail: Requests without a result.
        queue: Time that successful requests waited.
        compute_input: Decoding and pre-processing.
        compute_infer: The engine; each request of a batch counts the whole time of the batch.
        compute_output: Splitting, post-processing and encoding.
    """

    success: Duration = Duration()
    fail: Duration = Duration()
    queue: Duration = Duration()
    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()


class ModelStatistics(Struct, frozen=True):
    """Counts of one version of a model since its processes started; those of several processes can be added.

    Attributes:
        last_inference: Time of the last result, in milliseconds since the epoch; 0 for none.
        inference_count: Rows inferred: a batch of 8 counts 8.
        execution_count: Runs of the model: a batch counts 1.
        stages: Times of the requests.
        batches: Times by number of rows.
        memory_bytes: Resident memory of the processes.
        recent_ns: Times of the newest successful requests of each process, from receipt to reply, in nanoseconds.
        counters: What the processes count, by name: replies by outcome, what was dropped by reason, and others.
        histograms: By `success`, `queue`, `compute_input`, `compute_infer` and `compute_output`: at index n how many
            of the successful requests' times had n bits, in nanoseconds.
        depth: Requests accepted and not answered.
        capacity: Requests that the processes accept at a time.
        oldest_ns: Age of the oldest request that is queued, in nanoseconds.
        steps: Of an ensemble, name and version of the model of each step, and what it has run; not part of sums.
    """

    last_inference: int = 0
    inference_count: int = 0
    execution_count: int = 0
    stages: StageTimes = StageTimes()
    batches: Mapping[int, BatchStatistics] = field(default_factory=dict)
    memory_bytes: int = 0
    recent_ns: tuple[int, ...] = ()
    counters: Mapping[str, int] = field(default_factory=dict)
    histograms: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    depth: int = 0
    capacity: int = 0
    oldest_ns: int = 0
    steps: Sequence[tuple[str, int, ModelStatistics]] = ()

    def ended(self) -> ModelStatistics:
        """Return what stays of a process that has ended: what it has counted."""
        return replace(self, memory_bytes=0, recent_ns=(), depth=0, capacity=0, oldest_ns=0)

    def __add__(self, other: ModelStatistics) -> ModelStatistics:
        nothing = BatchStatistics()
        sizes = sorted(self.batches.keys() | other.batches.keys())
        return ModelStatistics(
            max(self.last_inference, other.last_inference),
            self.inference_count + other.inference_count,
            self.execution_count + other.execution_count,
            self.stages + other.stages,
            {size: self.batches.get(size, nothing) + other.batches.get(size, nothing) for size in sizes},
            self.memory_bytes + other.memory_bytes,
            self.recent_ns + other.recent_ns,
            dict(Counter(self.counters) + Counter(other.counters)),
            _add_up(self.histograms, other.histograms),
            self.depth + other.depth,
            self.capacity + other.capacity,
            max(self.oldest_ns, other.oldest_ns),
        )

    @classmethod
    def from_record(cls, record: object) -> tuple[tuple[str, str], ModelStatistics]:
        """Return the name and version of an entry of `model_stats`, and its counts.

        The entry has the median of its response times alone; it stands for all of them.

        Raises:
            BadEnvelope: A field is missing or has the wrong type.
        """
        found = check(record, _Record, "entry of 'model_stats'")
        times = found.response_time
        batches = {
            batch.batch_size: BatchStatistics(batch.compute_input, batch.compute_infer, batch.compute_output)
            for batch in found.batch_stats
        }
        return (found.name, found.version), cls(
            found.last_inference,
            found.inference_count,
            found.execution_count,
            found.inference_stats,
            batches,
            sum(each.byte_size for each in found.memory_usage),
            (times.p50_ns,) * min(times.count, _MOST_TIMES),
        )

    def to_record(self, name: str, version: str) -> dict[str, Any]:
        """Return an entry of `model_stats`."""
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_inference,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": to_builtins(self.stages),
            "batch_stats": [{"batch_size": size} | to_builtins(each) for size, each in sorted(self.batches.items())],
            "memory_usage": [{"type": "CPU", "id": 0, "byte_size": self.memory_bytes}],
            "response_time": {"count": len(self.recent_ns), "p50_ns": round(median(self.recent_ns or (0,)))},
        }


class _Batch(BatchStatistics, frozen=True, kw_only=True):
    batch_size: Count


class _Memory(Struct, frozen=True):
    byte_size: Count = 0


class _Times(Struct, frozen=True):
    count: Count = 0
    p50_ns: Count = 0


class _Record(Struct, frozen=True):
    """An entry of `model_stats`."""

    name: ModelName
    version: str
    last_inference: Count = 0
    inference_count: Count = 0
    execution_count: Count = 0
    inference_stats: StageTimes = StageTimes()
    batch_stats: tuple[_Batch, ...] = ()
    memory_usage: tuple[_Memory, ...] = ()
    response_time: _Times = _Times()


def _add_up(one: Mapping[str, Sequence[int]], other: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    return {
        name: tuple(map(sum, zip_longest(one.get(name, ()), other.get(name, ()), fillvalue=0)))
        for name in one.keys() | other.keys()
    }


class CallBody(Struct, frozen=True):
    """The body of a call.

    Attributes:
        ready: List only what is ready (for the index).
        parameters: Any; a `response_topic` among them stands in for the MQTT property.
    """

    ready: bool = False
    parameters: dict[str, Any] | None = None

    @property
    def response_topic(self) -> object:
        """The parameter that names the topic of the reply; unchecked, so it may be of any type."""
        return (self.parameters or {}).get("response_topic")

    @property
    def further(self) -> list[str]:
        """Names of all other parameters, sorted."""
        return sorted((self.parameters or {}).keys() - {"response_topic"})


def read_body(payload: Buffer) -> CallBody:
    """Decode the body of a call; an empty payload stands for `{}`.

    Raises:
        BadEnvelope: It is not a JSON object, or a field has the wrong type.
        LimitExceeded: It is longer than 64 KiB.
    """
    return read_json(payload, CallBody, "control request", MAX_STATE_BYTES) if len(payload) else CallBody()


class Cancellation(Struct, frozen=True):
    """Requests that a client has cancelled. Workers that have them skip them, and send no reply.

    Attributes:
        ids: Of the sender's own requests.
        outcome: The outcome that the sender counted: `cancelled` or `superseded`.
    """

    ids: tuple[RequestId, ...] = ()
    outcome: Outcome = Outcome.CANCELLED

    def to_json(self) -> bytes:
        """Return it as JSON."""
        return write_json(to_builtins(self), "cancellation")

    @classmethod
    def from_json(cls, payload: Buffer) -> Cancellation:
        """Decode it from JSON.

        Raises:
            BadEnvelope: A field is missing or has the wrong type.
            LimitExceeded: It is longer than 64 KiB.
        """
        found = read_json(payload, cls, "cancellation", MAX_STATE_BYTES)
        if found.outcome not in _REASONS:
            raise BadEnvelope(f"cancellation: 'outcome' is {found.outcome!s}; it must be one of {', '.join(_REASONS)}")
        return found


prepare(_Record, IndexEntry, CallBody, Cancellation)
