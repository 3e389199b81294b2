"""Counters and durations of a run, by stream and in total."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.times import REQUEST_STAGES, STAGES, EdgeStage
from mqinfer.metrics.histogram import Histogram, Percentiles
from mqinfer.protocol.errors import Cancelled, MqinferError
from mqinfer.protocol.types import Outcome, Stage, Timings

_MOST_CODES = 32
"""Codes of errors that are counted apart: they come from outside, so their number is bounded."""
_OTHER = "other"
_STAGES_BY_NAME = {stage.value: stage for stage in Stage}


@dataclass(frozen=True, slots=True)
class Failure:
    """The frames that failed with one error code.

    Attributes:
        code: Wire code of the error.
        count: How many frames.
        message: Of the first one.
    """

    code: str
    count: int
    message: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The counters at one moment, of one stream or of the whole run.

    Attributes:
        source: The stream, empty for the whole run.
        seconds: Since the statistics were made.
        frames_read: Frames that were read from the source.
        requests: Frames that became pending.
        outcomes: Frames by outcome; all six are present.
        pending: Frames without an outcome yet.
        retries: Attempts beyond the first one of each request.
        bytes_raw: Size of the pixels of finished frames, as the model takes them.
        bytes_sent: Size of the messages of finished frames, counted once an attempt.
        latency: From submission to outcome, of frames that ended as `ok`.
        frame_latency: From the beginning of reading to outcome, of the same frames.
        stages: The same by stage, those of the edge included; only stages that were recorded.
        failures: Why frames failed, the most frequent first, cancelled ones last.
        streams: One snapshot for each stream, in the order in which they appeared; empty within a stream.
        answered: Frames that ended as `ok` by the stage of a cascade that answered; all but `worker` are 0 without one.
    """

    source: str
    seconds: float
    frames_read: int
    requests: int
    outcomes: Mapping[Outcome, int]
    pending: int
    retries: int
    bytes_raw: int
    bytes_sent: int
    latency: Percentiles
    frame_latency: Percentiles
    stages: Mapping[str, Percentiles]
    failures: tuple[Failure, ...] = ()
    streams: tuple[Snapshot, ...] = ()
    answered: Mapping[Stage, int] = field(default_factory=dict)

    @property
    def done(self) -> int:
        """Number of frames that have their outcome."""
        return sum(self.outcomes.values())

    @property
    def failed(self) -> int:
        """Number of frames without a result; one that a newer frame superseded did not fail."""
        return self.done - self.outcomes[Outcome.OK] - self.outcomes[Outcome.SUPERSEDED]

    @property
    def frame_rate(self) -> float:
        """Outcomes a second over the whole run."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    def check(self) -> None:
        """Check that every frame has exactly one outcome or is pending, in every stream and in total.

        Raises:
            MqinferError: The counters do not add up, which is a defect of mqinfer.
        """
        if self.pending < 0 or self.done + self.pending != self.requests:
            raise MqinferError(
                f"{self.source or 'all streams'}: {self.done} outcomes and {self.pending} pending "
                f"do not add up to {self.requests} requests; please report this"
            )
        if self.answered and sum(self.answered.values()) != self.outcomes[Outcome.OK]:
            raise MqinferError(
                f"{self.source or 'all streams'}: the answers by stage do not add up to "
                f"{self.outcomes[Outcome.OK]} results; please report this"
            )
        for stream in self.streams:
            stream.check()


@dataclass(frozen=True, slots=True)
class FrameCounts:
    """What became of one stream's frames at one moment: what a `Snapshot` counts, without its percentiles.

    Attributes:
        source: The stream.
        frames_read: Frames that were read from the source.
        pending: Frames without an outcome yet.
        outcomes: Frames by outcome.
        dropped: Frames without a result by reason: the code of their error, or `superseded`.
    """

    source: str
    frames_read: int
    pending: int
    outcomes: Mapping[Outcome, int]
    dropped: Mapping[str, int]


@dataclass(slots=True)
class _Stream:
    """The running counters of one stream."""

    frames_read: int = 0
    requests: int = 0
    pending: int = 0
    retries: int = 0
    bytes_raw: int = 0
    bytes_sent: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    answered: Counter[Stage] = field(default_factory=Counter)
    failures: dict[str, Failure] = field(default_factory=dict)
    latency: Histogram = field(default_factory=Histogram)
    frame_latency: Histogram = field(default_factory=Histogram)
    stages: dict[str, Histogram] = field(default_factory=lambda: {stage: Histogram() for stage in STAGES})

    def add(self, other: _Stream) -> None:
        for counter in ("frames_read", "requests", "pending", "retries", "bytes_raw", "bytes_sent"):
            setattr(self, counter, getattr(self, counter) + getattr(other, counter))
        self.outcomes.update(other.outcomes)
        self.answered.update(other.answered)
        for failure in other.failures.values():
            self.count_failure(failure)
        self.latency.merge(other.latency)
        self.frame_latency.merge(other.frame_latency)
        for stage, histogram in other.stages.items():
            self.stages[stage].merge(histogram)

    def count_failure(self, failure: Failure) -> None:
        is_counted_apart = failure.code in self.failures or len(self.failures) < _MOST_CODES
        code = failure.code if is_counted_apart else _OTHER
        first = self.failures.get(code, Failure(code, 0, failure.message))
        self.failures[code] = replace(first, count=first.count + failure.count)

    def record(self, timings: Timings, stages: Mapping[str, int]) -> None:
        self.latency.add(timings.total)
        for stage in REQUEST_STAGES:
            self.stages[stage].add(getattr(timings, stage))
        if stages:
            self.frame_latency.add(sum(stages.values()))
        for stage in stages.keys() - REQUEST_STAGES:
            self.stages[stage].add(stages[stage])

    def counts(self, source: str) -> FrameCounts:
        dropped = {code: failure.count for code, failure in self.failures.items()}
        if superseded := self.outcomes[Outcome.SUPERSEDED]:
            dropped[Outcome.SUPERSEDED.value] = superseded
        return FrameCounts(source, self.frames_read, self.pending, dict(self.outcomes), dropped)

    def snapshot(self, source: str, seconds: float, streams: tuple[Snapshot, ...] = ()) -> Snapshot:
        stages = {stage: histogram.percentiles() for stage, histogram in self.stages.items()}
        return Snapshot(
            source=source,
            seconds=seconds,
            frames_read=self.frames_read,
            requests=self.requests,
            outcomes={outcome: self.outcomes[outcome] for outcome in Outcome},
            pending=self.pending,
            retries=self.retries,
            bytes_raw=self.bytes_raw,
            bytes_sent=self.bytes_sent,
            latency=self.latency.percentiles(),
            frame_latency=self.frame_latency.percentiles(),
            stages={stage: percentiles for stage, percentiles in stages.items() if percentiles.p99 is not None},
            failures=tuple(sorted(self.failures.values(), key=_rank)),
            streams=streams,
            answered={stage: self.answered[stage] for stage in Stage},
        )


def _rank(failure: Failure) -> tuple[bool, int]:
    """Return a sort key: the most frequent first, and last the frames that were not sent because of the others."""
    return failure.code == Cancelled.code, -failure.count


class ReplayStatistics:
    """Counts frames and outcomes, and measures stages. Thread-safe.

    Rates count from its construction. Percentiles cover the whole run and are within 1/128 of the true ones
    (`mqinfer.metrics.histogram`). They leave out frames without a result, whose times measure the deadline and not the
    path; the outcomes count those.

    Args:
        clock: Monotonic nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}

    def frame_read(self, source: str) -> None:
        """Count a frame that was read."""
        with self._lock:
            self._stream(source).frames_read += 1

    def stage(self, source: str, stage: EdgeStage, nanoseconds: int) -> None:
        """Record the duration of one stage of one frame."""
        with self._lock:
            self._stream(source).stages[stage].add(nanoseconds)

    def request_sent(self, source: str) -> None:
        """Count a frame that becomes pending; call it before the outcome is possible."""
        with self._lock:
            stream = self._stream(source)
            stream.requests += 1
            stream.pending += 1

    def finished(
        self, result: InferResult, *, bytes_raw: int, stages: Mapping[str, int] = MappingProxyType({})
    ) -> None:
        """Count the outcome of a frame; its stream is the source of the result's capture.

        Args:
            result: The one outcome of the frame.
            bytes_raw: Size of its pixels before encoding.
            stages: Where its time went, in nanoseconds.
        """
        with self._lock:
            stream = self._stream(result.capture.source)
            stream.pending -= 1
            stream.outcomes[result.outcome] += 1
            stream.retries += max(result.attempts - 1, 0)
            stream.bytes_raw += bytes_raw
            stream.bytes_sent += result.bytes_sent
            if result.outcome is Outcome.OK:
                stream.record(result.timings, stages)
                stream.answered[_STAGES_BY_NAME.get(result.stage, Stage.WORKER)] += 1
            elif result.outcome is not Outcome.SUPERSEDED:
                code, message = (
                    (result.error.code, result.error.message) if result.error else (result.outcome.value, "")
                )
                stream.count_failure(Failure(code, 1, message))

    def durations(self) -> dict[str, Histogram]:
        """Return the durations of all streams by stage, and under `total` those from submission to outcome."""
        with self._lock:
            total = self._total()
        return {"total": total.latency, **total.stages}

    def counts(self) -> list[FrameCounts]:
        """Return what became of the frames of each stream; cheap."""
        with self._lock:
            return [stream.counts(source) for source, stream in self._streams.items()]

    def snapshot(self) -> Snapshot:
        """Return the counters at this moment."""
        with self._lock:
            seconds = (self._clock() - self._started) / 1e9
            total = self._total()
            streams = tuple(stream.snapshot(source, seconds) for source, stream in self._streams.items())
            return total.snapshot("", seconds, streams)

    def _total(self) -> _Stream:
        total = _Stream()
        for stream in self._streams.values():
            total.add(stream)
        return total

    def _stream(self, source: str) -> _Stream:
        if source not in self._streams:
            self._streams[source] = _Stream()
        return self._streams[source]
