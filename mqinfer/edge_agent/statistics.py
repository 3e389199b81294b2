"""What a run has done so far: counters a stream and in total, and where the time went."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum

from mqinfer.client.latency import Histogram, Percentiles
from mqinfer.client.result import InferResult
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.types import Outcome, Timings

__all__ = ["STAGES", "EdgeStage", "ReplayStatistics", "Snapshot"]


class EdgeStage(StrEnum):
    """What the edge does to a frame before it becomes a request; `Timings` names the stages after that."""

    READ = "edge_read"
    DEMOSAIC = "edge_demosaic"
    RESIZE = "edge_resize"
    ENCODE = "edge_encode"


STAGES: tuple[str, ...] = (*EdgeStage, *(stage.name for stage in fields(Timings)))
"""Every stage, in the order in which a frame passes through them."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The counters at one moment, of one stream or of the whole run.

    Attributes:
        source: The stream, empty for the whole run.
        seconds: Since the statistics were made.
        frames_read: Frames that the source gave.
        requests: Requests that were handed to the client.
        outcomes: Requests that ended, by outcome; all six are there.
        in_flight: Requests without an outcome yet.
        retries: Sendings beyond the first one.
        bytes_raw: Pixels of the requests that ended, as the model takes them.
        bytes_sent: Messages of the requests that ended, counted once an attempt.
        latency: From submission to outcome, of the requests that ended as `ok`.
        stages: The same by stage, the edge's own included; only stages that were recorded.
        streams: One snapshot a stream, in the order in which they appeared; empty within a stream.
    """

    source: str
    seconds: float
    frames_read: int
    requests: int
    outcomes: Mapping[Outcome, int]
    in_flight: int
    retries: int
    bytes_raw: int
    bytes_sent: int
    latency: Percentiles
    stages: Mapping[str, Percentiles]
    streams: tuple[Snapshot, ...] = ()

    @property
    def done(self) -> int:
        """Requests that have their outcome."""
        return sum(self.outcomes.values())

    @property
    def frame_rate(self) -> float:
        """Outcomes a second over the whole run."""
        return self.done / self.seconds if self.seconds > 0 else 0.0

    def check(self) -> None:
        """Verify that every request has exactly one outcome or is still in flight, in every stream and in total.

        Raises:
            MqinferError: The books don't balance, which is a defect of mqinfer.
        """
        if self.in_flight < 0 or self.done + self.in_flight != self.requests:
            raise MqinferError(
                f"{self.source or 'all streams'}: {self.done} outcomes and {self.in_flight} in flight "
                f"don't add up to {self.requests} requests; please report this"
            )
        for stream in self.streams:
            stream.check()


@dataclass(slots=True)
class _Stream:
    """The running counters of one stream."""

    frames_read: int = 0
    requests: int = 0
    in_flight: int = 0
    retries: int = 0
    bytes_raw: int = 0
    bytes_sent: int = 0
    outcomes: Counter[Outcome] = field(default_factory=Counter)
    latency: Histogram = field(default_factory=Histogram)
    stages: dict[str, Histogram] = field(default_factory=lambda: {stage: Histogram() for stage in STAGES})

    def add(self, other: _Stream) -> None:
        for counter in ("frames_read", "requests", "in_flight", "retries", "bytes_raw", "bytes_sent"):
            setattr(self, counter, getattr(self, counter) + getattr(other, counter))
        self.outcomes.update(other.outcomes)
        self.latency.merge(other.latency)
        for stage, histogram in other.stages.items():
            self.stages[stage].merge(histogram)

    def record(self, timings: Timings) -> None:
        self.latency.add(timings.total)
        for stage in fields(Timings):
            self.stages[stage.name].add(getattr(timings, stage.name))

    def snapshot(self, source: str, seconds: float, streams: tuple[Snapshot, ...] = ()) -> Snapshot:
        stages = {stage: histogram.percentiles() for stage, histogram in self.stages.items()}
        return Snapshot(
            source=source,
            seconds=seconds,
            frames_read=self.frames_read,
            requests=self.requests,
            outcomes={outcome: self.outcomes[outcome] for outcome in Outcome},
            in_flight=self.in_flight,
            retries=self.retries,
            bytes_raw=self.bytes_raw,
            bytes_sent=self.bytes_sent,
            latency=self.latency.percentiles(),
            stages={stage: percentiles for stage, percentiles in stages.items() if percentiles.p99 is not None},
            streams=streams,
        )


class ReplayStatistics:
    """Counts what happens to frames and requests. Any thread may call any method.

    Make it when the run starts: rates are over the time since then. Percentiles cover the whole run and are within
    1/128 of the true ones (`mqinfer.client.latency`). Times of unanswered requests are left out of them, because they
    tell of the deadline and not of the path; the outcomes tell of those.

    Args:
        clock: Monotonic nanoseconds.
    """

    def __init__(self, clock: Callable[[], int] = time.monotonic_ns) -> None:
        self._clock = clock
        self._started = clock()
        self._lock = threading.Lock()
        self._streams: dict[str, _Stream] = {}

    def frame_read(self, source: str) -> None:
        """Count a frame that the source gave."""
        with self._lock:
            self._stream(source).frames_read += 1

    def stage(self, source: str, stage: EdgeStage, nanoseconds: int) -> None:
        """Record how long the edge took for one stage of one frame."""
        with self._lock:
            self._stream(source).stages[stage].add(nanoseconds)

    def request_sent(self, source: str) -> None:
        """Count a request that was handed to the client; call it before the hand-over, so that no outcome overtakes."""
        with self._lock:
            stream = self._stream(source)
            stream.requests += 1
            stream.in_flight += 1

    def finished(self, result: InferResult, *, bytes_raw: int) -> None:
        """Count a request's outcome; the stream is the one that the result's capture names.

        Args:
            result: The one outcome of the request.
            bytes_raw: Size of the request's pixels before encoding.
        """
        with self._lock:
            stream = self._stream(result.capture.source)
            stream.in_flight -= 1
            stream.outcomes[result.outcome] += 1
            stream.retries += max(result.attempts - 1, 0)
            stream.bytes_raw += bytes_raw
            stream.bytes_sent += result.bytes_sent
            if result.outcome is Outcome.OK:
                stream.record(result.timings)

    def snapshot(self) -> Snapshot:
        """Freeze the counters."""
        with self._lock:
            seconds = (self._clock() - self._started) / 1e9
            total = _Stream()
            for stream in self._streams.values():
                total.add(stream)
            streams = tuple(stream.snapshot(source, seconds) for source, stream in self._streams.items())
            return total.snapshot("", seconds, streams)

    def _stream(self, source: str) -> _Stream:
        if source not in self._streams:
            self._streams[source] = _Stream()
        return self._streams[source]
