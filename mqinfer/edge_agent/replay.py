"""Send the frames of a source to a model, and keep the results in the order of reading.

The way of a frame, one method a step: `_read` takes it from the source when there is room, `_queue` puts it into its
stream, `_advance` lets it into the stream's window, `_prepare_and_submit` demosaics, resizes and encodes it and hands
it to the client (`FrameSender`), `_settle` receives the outcome, and `Results` writes it to the sinks. With a spool a
frame is prepared first (`_prepare_and_place`), and enters the window or goes to the disk.

Threads: the caller's reads and paces, two prepare and submit, the client's settle, one writes to the sinks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial

from msgspec import structs

from mqinfer.bags.frame import Frame
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.client.window import NEWER_FRAME, Policy, StreamWindow
from mqinfer.edge_agent.cascade.cascade import Cascade
from mqinfer.edge_agent.engines import Engines
from mqinfer.edge_agent.frames.clocks import Clocks
from mqinfer.edge_agent.frames.pending import FinishedFrame, PendingFrame, failed_frame
from mqinfer.edge_agent.frames.prepared import PreparedFrame
from mqinfer.edge_agent.frames.table import FrameTable
from mqinfer.edge_agent.frames.times import Laps
from mqinfer.edge_agent.preparing.one_at_a_time import OneAtATime
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.preparing.quality_ladder import QualityLadder
from mqinfer.edge_agent.previews import PreviewDrop, Previews
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics
from mqinfer.edge_agent.results import FirstResults, Results
from mqinfer.edge_agent.sending import FrameSender
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.edge_agent.spooling.backlog import DAMAGED, KEPT, Backlog, Destination
from mqinfer.edge_agent.spooling.spool import Spool
from mqinfer.protocol.errors import (
    BadImage,
    Cancelled,
    MqinferError,
    Superseded,
)
from mqinfer.protocol.types import Outcome
from mqinfer.telemetry.around import Around

__all__ = ["Replay"]

log = logging.getLogger("mqinfer.edge_agent")
_PREPARERS = 2
_LATEST_IN_MEMORY = 64
"""With `latest` at least this many frames are held from reading to the sinks: superseded ones wait there in order."""
_STOP_CHECK_S = 0.2


class Replay:
    """One run from a source to the sinks."""

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
        waited: Callable[[], int] = lambda: 0,
        cascade: Cascade | None = None,
        previews: Previews | None = None,
    ) -> None:
        """Prepare.

        Args:
            requester: Connected.
            preparer: Of the model's image input.
            options: How frames are sent.
            statistics: Counts everything.
            sink: Receives every frame with its outcome, in the order of reading; None to drop them.
            spool: Keeps frames of the policy `all` while there is no connection; what an earlier run left goes first.
            streams: How many the source has: with several, the others are tried before one that fails ends the run.
            waited: Returns how long the source has waited until frames were due, in nanoseconds: not a part of reading.
            cascade: Answers frames on the edge where it can; None to send all of them. Not with a spool.
            previews: Publishes small pictures of the frames that are sent; None for none.
        """
        self.clocks = Clocks()
        """The workers' clocks against this one."""
        self._waited = waited
        self._requester = requester
        self._preparer = preparer
        self._options = options
        self._statistics = statistics
        self._table = FrameTable(options.policy, options.window)
        self._ladders: dict[str, QualityLadder] = {}
        self._in_order: dict[str, OneAtATime] = {}
        self._changed = threading.Condition()  # guards table, ladders and backlog
        in_memory = 2 * options.window + _PREPARERS
        self._room = threading.Semaphore(
            max(in_memory, _LATEST_IN_MEMORY) if options.policy is Policy.LATEST else in_memory
        )
        self._first = FirstResults(streams)
        self.is_complete = False
        """Whether the source was read to its end."""
        engines = Engines(requester.registry.served)
        self._results = Results(sink, engines, lambda finished: self._release(finished.pending))
        self._failed = partial(failed_frame, options.model)
        self._cascade = cascade
        self._previews = previews
        self._sender = FrameSender(
            requester,
            preparer,
            options,
            ladders=self._ladders,
            first=self._first,
            settle=self._settle,
            cascade=cascade,
            previews=previews,
        )
        self._prepare, self._submit = self._sender.prepare, self._sender.submit
        if cascade is not None:
            cascade.attach(self._enter, self._conclude)
        self._backlog: Backlog | None = None
        if spool is not None:
            self._backlog = Backlog(
                spool,
                requester,
                self._changed,
                self._submit,
                prepare=self._prepare,
                on_failed=self._lose,
                placement=preparer.placement,
                timeout=options.timeout,
            )

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
            with ThreadPoolExecutor(_PREPARERS, thread_name_prefix="mqinfer-replay-prepare") as self._pool:
                self._send_all(frames, is_stopped)
        finally:
            self._results.close()
        if error := self.refusal or self._results.error:
            raise error

    def _send_all(self, frames: Iterable[Frame], is_stopped: Callable[[], bool]) -> None:
        left_over = self._start_backlog()
        try:
            for number, (frame, read_ns) in enumerate(self._read(frames, is_stopped), left_over):
                laps = Laps(time.monotonic_ns(), read_ns)
                self._queue(PendingFrame(number, frame, self._stream(frame.source), laps=laps))
        finally:  # also if the source breaks off
            while not self._all_ended(_STOP_CHECK_S if self._backlog else None):
                if self._backlog and is_stopped():
                    self._leave(self._backlog)
            if self._backlog:
                self._backlog.close()

    def _start_backlog(self) -> int:
        """Start with the frames that are in the spool; return their number."""
        if self._backlog is None:
            return 0
        adopted = self._backlog.adopt(self._stream)
        for pending in adopted:
            if self._backlog.is_left(pending):
                self._statistics.frame_read(pending.frame.source)
            self._begin(pending)
        self._backlog.start()
        return len(adopted)

    def _all_ended(self, timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self.pending, timeout)

    def _leave(self, backlog: Backlog) -> None:
        """End the frames in the spool and, without a connection, those in flight; the spool keeps them."""
        for pending in backlog.leave():
            self._conclude(pending, None, self._failed(pending, Cancelled(KEPT)))
        if not self._requester.connected:
            with self._changed:
                sent = self._table.sent()
            for request_id in sent:
                self._requester.cancel(request_id, Cancelled(KEPT))

    def _read(self, frames: Iterable[Frame], is_stopped: Callable[[], bool]) -> Iterator[tuple[Frame, int]]:
        """Yield each frame with how long it took to read; read one only when there is room, so that each is sent."""
        source = iter(frames)
        while self._wait_for_room(is_stopped):
            started, waited = time.monotonic_ns(), self._waited()
            frame = next(source, None)
            if frame is None:
                self.is_complete = not is_stopped()
                return
            self._statistics.frame_read(frame.source)
            read = time.monotonic_ns() - started - (self._waited() - waited)
            yield frame, max(0, read)

    def _wait_for_room(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until memory for one more frame is free; return False if the run is over."""
        while not self._room.acquire(timeout=_STOP_CHECK_S):
            if is_stopped():
                return False
        return not (is_stopped() or self._results.error or self.refusal)

    def _stream(self, source: str) -> StreamWindow[PendingFrame]:
        if source not in self._ladders:
            self._ladders[source] = QualityLadder(self._options.quality, self._preparer.encoder.quality)
        with self._changed:
            return self._table.stream(source)

    def _begin(self, pending: PendingFrame) -> None:
        if self._requester.tracer is not None:
            frame = pending.frame
            about = {"mqinfer.model": self._options.model, "mqinfer.source": frame.source}
            pending.spans = Around(
                self._requester.tracer, "frame", pending.read_at, {**about, "mqinfer.sequence": frame.sequence}
            )
        self._statistics.request_sent(pending.frame.source)
        with self._changed:
            self._table.read(pending)

    def _queue(self, pending: PendingFrame) -> None:
        """Begin with a frame that was read."""
        self._begin(pending)
        (self._cascade.decide if self._cascade else self._enter)(pending)

    def _enter(self, pending: PendingFrame) -> None:
        """Put a frame into its stream, where with `latest` it takes the place of an older one."""
        with self._changed:
            self._ladders[pending.frame.source].on_frame(time.monotonic())
            lost = None if self._backlog else self._table.queue(pending)
        if self._backlog:
            self._pool.submit(self._prepare_and_place, pending, self._backlog)
        self._advance(pending.stream)
        self._make_room(pending.stream)
        if lost:
            self._finish(lost, None, self._failed(lost, Superseded(NEWER_FRAME)))

    def _make_room(self, stream: StreamWindow[PendingFrame]) -> None:
        """Cancel a frame that was sent and that no worker works on, where a newer one waits for its place."""
        with self._changed:
            replaceable = self._table.replaceable(stream)
        if replaceable:
            self._requester.supersede(replaceable)

    def _advance(self, stream: StreamWindow[PendingFrame]) -> None:
        """Start the queued frames that the window has room for."""
        with self._changed:
            for pending in self._table.take(stream):
                self._start(pending)

    def _start(self, pending: PendingFrame) -> None:
        """Prepare and submit a frame on the pool: where the encoding needs the frames before, behind them."""
        if not self._preparer.encoder.is_in_order:
            self._pool.submit(self._prepare_and_submit, pending)
            return
        source = pending.frame.source
        if source not in self._in_order:
            self._in_order[source] = OneAtATime(self._pool)
        self._in_order[source].submit(partial(self._prepare_and_submit, pending))

    def _prepare_and_submit(self, pending: PendingFrame) -> None:
        if self._cascade and (why := self._cascade.why_alone(pending)):
            self._settle(pending, None, self._failed(pending, why))
            return
        prepared = self._prepare(pending)
        if isinstance(prepared, InferResult):
            self._settle(pending, None, prepared)
        else:
            self._submit(pending, prepared)

    def _prepare_and_place(self, pending: PendingFrame, backlog: Backlog) -> None:
        """Prepare a frame before it enters the window: without a connection it goes to the disk."""
        prepared = self._prepare(pending)
        if isinstance(prepared, InferResult):
            self._conclude(pending, None, prepared)
            return
        place = backlog.place(pending, prepared)
        if place is Destination.LINK:
            self._submit(pending, prepared)
            return
        if pending.picture is not None:
            self._sender.forgo_preview(pending, PreviewDrop.SPOOLED)
        if place is Destination.DISK:
            self._room.release()
        else:
            self._conclude(pending, prepared, self._failed(pending, Cancelled(backlog.not_kept)))

    def _settle(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """Remove a frame with its outcome from the window, which makes room for queued ones."""
        if self._previews is not None:
            self._previews.on_result(result)
        if self._preparer.encoder.is_told:
            self._preparer.on_result(pending.frame, prepared, result)
            if self._table.is_again(pending, result):
                self._pool.submit(self._prepare_and_submit, pending)
                return
            result = result if pending.lost is None else _after(pending.lost, result)
        if self._backlog:
            was_spooled = pending.spooled_as
            if prepared and self._backlog.take_back(pending, prepared, result):
                if not was_spooled:
                    self._room.release()
                return
            result = self._backlog.settle(pending, prepared, result)
        with self._changed:
            self._table.leave(pending, result)
            if result.outcome is Outcome.OK:
                self._ladders[pending.frame.source].on_result()
            self._changed.notify_all()
        self._advance(pending.stream)
        self._finish(pending, prepared, result)

    def _finish(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """End a frame that the model was to answer, by its outcome or by what the edge makes of it."""
        (self._cascade.settled if self._cascade else self._conclude)(pending, prepared, result)

    def _conclude(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        last = result if pending.lost is None else _without(pending.lost, result)
        times = pending.laps.end(last, time.monotonic_ns(), self.clocks)
        self._statistics.finished(result, bytes_raw=prepared.bytes_raw if prepared else 0, stages=times.stages)
        if pending.spans is not None:
            pending.spans.end(result.outcome, result.error)
        self._results.put(FinishedFrame(pending, prepared, result, times))
        with self._changed:
            self._first.add(result)
            self._table.settle(pending)
            self._changed.notify_all()
        if self._cascade:
            self._cascade.ended(pending, prepared, result)

    def _lose(self, pending: PendingFrame, result: InferResult | None) -> None:
        """End a frame of the spool that can't be sent: damaged there, if there is no result; it was in no window."""
        self._conclude(pending, None, result or self._failed(pending, BadImage(DAMAGED)))

    def _release(self, pending: PendingFrame) -> None:
        if not pending.spooled_as:  # the spool has a bound of its own
            self._room.release()


def _after(lost: InferResult, result: InferResult) -> InferResult:
    """Return the result of a frame that was sent twice, with the attempts and bytes of both."""
    attempts, sent = lost.attempts + result.attempts, lost.bytes_sent + result.bytes_sent
    return replace(result, attempts=attempts, bytes_sent=sent)


def _without(lost: InferResult, result: InferResult) -> InferResult:
    """Return the second of the two requests that make such a result, with its own time."""
    queued = max(0, result.timings.client_queue - lost.timings.total)
    return replace(result, timings=structs.replace(result.timings, client_queue=queued))
