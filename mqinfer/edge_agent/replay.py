"""Send the frames of a source to a model, each when it is due, and keep the results in the order of reading.

The way of a frame: `_read` takes it from the source when there is room, the first stage takes it (`FrameStage`):
a cascade, the spool, or the one that sends it (`remote`), `_conclude` receives the outcome, and `Results` writes it to
the sinks.

Threads: the caller's reads and paces, two prepare and submit, the client's settle, one writes to the sinks.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from mqinfer.bags.frame import Frame, FrameSource
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.client.window import Policy
from mqinfer.edge_agent.cascade.cascade import Cascade
from mqinfer.edge_agent.frames.retries import Retries, was_there
from mqinfer.edge_agent.frames.table import FinishedFrame, FrameStage, FrameTable, PendingFrame, PreparedFrame
from mqinfer.edge_agent.frames.times import Clocks, Laps
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.previews import Previews
from mqinfer.edge_agent.remote import PREPARERS, Preparation, RemoteStage, StageParts
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics
from mqinfer.edge_agent.results import Engines, FirstResults, Results
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.edge_agent.spooling.backlog import Backlog
from mqinfer.edge_agent.spooling.spool import Spool
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import ConfigError, MqinferError
from mqinfer.telemetry.around import Around


class Pacer:
    """Delays frames by the differences of their log times.

    Log times that step backwards (a loop that starts again, a recorder's clock that was set) start a new count from the
    present moment. A consumer that has fallen behind is not delayed until it has caught up.

    Args:
        rate: 1 as recorded, 2 twice as fast, 0 without waiting.
        clock: Seconds, monotonic.
        wait: Called with the seconds to wait; may return early, as `threading.Event.wait` does when a replay ends.

    Raises:
        ConfigError: A rate that is negative or not finite.
    """

    def __init__(
        self,
        rate: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
        wait: Callable[[float], object] = time.sleep,
    ) -> None:
        if not (math.isfinite(rate) and rate >= 0):
            raise ConfigError(f"rate is {rate}; expected 1 (as recorded), 2 (twice as fast), 0 (as fast as possible)")
        self._rate = rate
        self._clock = clock
        self._wait = wait
        self._origin: tuple[float, int] | None = None
        self._latest_ns = 0
        self.waited_ns = 0
        """How long it has waited altogether, in nanoseconds."""

    def wait_for(self, log_time_ns: int) -> None:
        """Wait until a frame is due; the first one is due at once."""
        if self._rate == 0:
            return
        now = self._clock()
        if self._origin is None or log_time_ns < self._latest_ns:
            self._origin = (now, log_time_ns)
        self._latest_ns = log_time_ns
        began, began_ns = self._origin
        delay = began + (log_time_ns - began_ns) / 1e9 / self._rate - now
        if delay > 0:
            self._wait(delay)
            self.waited_ns += round((self._clock() - now) * 1e9)


def replay(
    source: FrameSource,
    pacer: Pacer,
    *,
    loop: bool = False,
    is_stopped: Callable[[], bool] = lambda: False,
    skipped: int = 0,
) -> Iterator[Frame]:
    """Yield a source's frames when they are due.

    Args:
        source: Where the frames come from.
        pacer: Waits until a frame is due.
        loop: Start again at the end, for ever; from the second pass on, sequence numbers go on from the last one of
            the stream, so that they stay unique.
        is_stopped: Asked before each frame; True ends the replay.
        skipped: Number of frames at the beginning that come without waiting.

    Raises:
        SourceError: The source broke off.
    """
    following: dict[str, int] = {}  # the next sequence number, by stream
    is_first = True
    while True:
        before = dict(following)
        for frame in source.frames():
            if skipped:
                skipped -= 1
            else:
                pacer.wait_for(frame.log_time_ns)
            if is_stopped():
                return
            number = frame.sequence if is_first else following.get(frame.source, frame.sequence)
            yield frame if frame.sequence == number else replace(frame, sequence=number)
            following[frame.source] = number + 1
        if not loop or following == before:
            return
        is_first = False


_LATEST_IN_MEMORY = 64
"""With `latest` at least this many frames are held from reading to the sinks: superseded ones wait there in order."""
_STOP_CHECK_S = 0.2


class Replay:
    """One run from a source to the sinks.

    Args:
        requester: Connected.
        preparer: Of the model's image input.
        options: How frames are sent.
        statistics: Counts everything.
        sink: Receives every frame with its outcome, in the order of reading; None to drop them.
        spool: Keeps frames while there is no connection; what an earlier run left goes first.
        streams: How many the source has: with several, the others are tried before one that fails ends the run.
        pacer: Holds the frames back until they are due, which is no part of reading; None where nothing does.
        cascade: Answers frames on the edge where it can; None to send all of them.
        previews: Publishes small pictures of the frames that are sent; None for none.
        classes: Of the model's card.
        track: Whether objects get ids that follow them.
    """

    def __init__(  # noqa: PLR0913 - its parts, each made by the session
        self,
        requester: Requester,
        preparer: Preparer,
        options: ReplayOptions,
        statistics: ReplayStatistics,
        sink: Sink | None,
        *,
        spool: Spool | None = None,
        streams: int = 1,
        pacer: Pacer | None = None,
        cascade: Cascade | None = None,
        previews: Previews | None = None,
        classes: Sequence[ClassInfo] = (),
        track: bool = False,
    ) -> None:
        self.clocks = Clocks()
        """The workers' clocks against this one."""
        self.is_complete = False
        """Whether the source was read to its end."""
        self._pacer = pacer or Pacer(0)
        self._requester = requester
        self._options = options
        self._statistics = statistics
        self._table = FrameTable(options.policy, options.window, options.priorities)
        self._changed = threading.Condition()  # guards the table
        in_memory = 2 * options.window + PREPARERS
        self._room = max(in_memory, _LATEST_IN_MEMORY) if options.policy is Policy.LATEST else in_memory
        self._first = FirstResults(streams)
        self._results = Results(sink, Engines(requester.registry.served), self._on_written, classes, track=track)
        self._stages = self._chain(preparer, previews or Previews(requester, options.model, None), spool, cascade)
        self._stage = self._stages[-1]

    def _chain(
        self, preparer: Preparer, previews: Previews, spool: Spool | None, cascade: Cascade | None
    ) -> list[FrameStage]:
        """Return the stages, the last one first."""
        options, requester = self._options, self._requester
        known = partial(was_there, requester.registry, options.model, options.version)
        retries = Retries(options.timeout, known, waits=options.policy is Policy.ALL and spool is None)
        preparation = Preparation(preparer, options, self._first, previews)
        parts = StageParts(requester, options, preparation, self._table, self._changed, retries)
        stages: list[FrameStage] = [RemoteStage(parts)]
        if spool is not None:
            stages.append(Backlog(spool, stages[-1], parts, on_left=self._statistics.frame_read))
        if cascade is not None:
            cascade.attach(stages[-1])
            stages.append(cascade)
        return stages

    @property
    def pending(self) -> int:
        """Number of frames that were read and have no outcome yet."""
        return len(self._table.frames)

    def waiting(self) -> tuple[int, float]:
        """Return how many frames were read and have no outcome yet, and when the oldest was; thread-safe."""
        with self._changed:
            oldest = next(iter(self._table.frames.values()), None)
            return self.pending, oldest.read_at if oldest else 0.0

    def windows(self) -> dict[str, tuple[int, int]]:
        """Return by stream how many frames may be in flight now, and how many are; thread-safe."""
        with self._changed:
            return {source: (stream.limit, stream.in_flight) for source, stream in self._table.streams.items()}

    @property
    def refusal(self) -> MqinferError | None:
        """Why the run ends early: every frame failed, for a reason that the others would meet too."""
        return self._first.refusal

    def run(self, frames: Iterable[Frame], is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Send every frame, and return when the sinks have all the outcomes.

        Args:
            frames: Read as fast as there is room.
            is_stopped: Asked before each frame.

        Raises:
            SourceError: The source broke off; what was read before has its outcome.
            MqinferError: A sink failed, or no frame can succeed (`refusal`).
        """
        self._results.start()
        try:
            self._send_all(frames, is_stopped)
        finally:
            self._results.close()
        if error := self.refusal or self._results.error:
            raise error

    def _send_all(self, frames: Iterable[Frame], is_stopped: Callable[[], bool]) -> None:
        for pending in self._stage.left:
            self._begin(pending)
        self._stage.start(self._conclude)
        try:
            for number, (frame, read_ns) in enumerate(self._read(frames, is_stopped), len(self._stage.left)):
                with self._changed:
                    stream = self._table.stream(frame.source)
                pending = PendingFrame(number, frame, stream, laps=Laps(time.monotonic_ns(), read_ns))
                self._begin(pending)
                self._stage.take(pending)
        finally:  # also if the source breaks off
            while not self._all_ended():
                if is_stopped():
                    self._stage.leave()
            self.close()

    def close(self) -> None:
        """End the threads, as the end of `run` does; for a replay that does not come to it."""
        while self._stages:
            self._stages.pop().close()

    def _all_ended(self) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._table.frames, _STOP_CHECK_S)

    def _read(self, frames: Iterable[Frame], is_stopped: Callable[[], bool]) -> Iterator[tuple[Frame, int]]:
        """Yield each frame with how long it took to read; read one only when there is room, so that each is sent."""
        source = iter(frames)
        while self._wait_for_room(is_stopped):
            started, waited = time.monotonic_ns(), self._pacer.waited_ns
            frame = next(source, None)
            if frame is None:
                self.is_complete = not is_stopped()
                return
            self._statistics.frame_read(frame.source)
            read = time.monotonic_ns() - started - (self._pacer.waited_ns - waited)
            yield frame, max(0, read)

    def _wait_for_room(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until memory for one more frame is free; return False if the run is over."""
        while not (is_stopped() or self._results.error or self._first.refusal):
            with self._changed:
                if self._changed.wait_for(lambda: self._table.held < self._room, _STOP_CHECK_S):
                    return True
        return False

    def _begin(self, pending: PendingFrame) -> None:
        frame = pending.frame
        if self._requester.tracer is not None:
            about: dict[str, str | int] = {
                "mqinfer.model": self._options.model,
                "mqinfer.source": frame.source,
                "mqinfer.sequence": frame.sequence,
            }
            pending.spans = Around(self._requester.tracer, "frame", pending.read_at, about)
        self._statistics.request_sent(frame.source)
        with self._changed:
            self._table.read(pending)

    def _conclude(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """End a frame by its outcome."""
        times = pending.laps.end(result, time.monotonic_ns(), self.clocks)
        self._statistics.finished(result, bytes_raw=prepared.bytes_raw if prepared else 0, stages=times.stages)
        if pending.spans is not None:
            pending.spans.end(result.outcome, result.error)
        self._results.put(FinishedFrame(pending, prepared, result, times))
        with self._changed:
            if not self._first.is_decided:
                self._first.add(result)
            self._table.settle(pending)
            self._changed.notify_all()

    def _on_written(self, finished: FinishedFrame) -> None:
        with self._changed:
            self._table.written(finished.pending)
            self._changed.notify_all()
