"""Send the frames of a source to a model, and keep the results in the order of reading.

The way of a frame, one method a step: `_read` takes it from the source when there is room, `_queue` puts it into its
stream, `_advance` lets it into the stream's window, `_prepare_and_submit` demosaics, resizes and encodes it, `_submit`
hands it to the client, `_settle` receives the outcome, and `Results` writes it to the sinks. With a spool a frame is
prepared first (`_prepare_and_place`), and enters the window or goes to the disk.

Threads: the caller's reads and paces, two prepare and submit, the client's settle, one writes to the sinks.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from mqinfer.bags.frame import Frame
from mqinfer.client.request import InferOptions, make_request, names_label, with_labelled_version
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.client.window import DelayWindow, Policy, Stream
from mqinfer.edge_agent.backlog import DAMAGED, KEPT, Backlog, Place
from mqinfer.edge_agent.preparation import PreparedFrame, Preparer
from mqinfer.edge_agent.quality_ladder import QualityBounds, QualityLadder, QualityStep
from mqinfer.edge_agent.results import FinishedFrame, FirstResults, PendingFrame, Results
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.edge_agent.spool import Spool
from mqinfer.edge_agent.statistics import EdgeStage, ReplayStatistics
from mqinfer.protocol.errors import BadImage, Cancelled, LinkError, MessageTooLarge, MqinferError, Superseded
from mqinfer.protocol.types import ErrorInfo, Outcome
from mqinfer.telemetry.around import Around

__all__ = ["Replay", "ReplayOptions"]

log = logging.getLogger("mqinfer.edge_agent")
_PREPARERS = 2
_LATEST_IN_MEMORY = 64
"""With `latest` at least this many frames are held from reading to the sinks: superseded ones wait there in order."""
_STOP_CHECK_S = 0.2


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How frames are sent.

    Attributes:
        model: Name of the model.
        version: Version of the model; None for the one that its policy prefers.
        window: Upper bound of the requests of one stream in flight.
        timeout: Of each request, in seconds.
        output_encoding: Codec of the results, one for all or by output; None for what suits the model's outputs.
        policy: What happens to a frame that arrives while the window is full.
        quality: Bounds of the quality ladder.
    """

    model: str
    version: str | None = None
    window: int = 8
    timeout: float = 60.0
    output_encoding: str | Mapping[str, str] | None = None
    policy: Policy = Policy.ALL
    quality: QualityBounds = field(default_factory=QualityBounds)


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
        """
        self._requester = requester
        self._preparer = preparer
        self._options = options
        self._statistics = statistics
        self._streams: dict[str, Stream[PendingFrame]] = {}
        self._ladders: dict[str, QualityLadder] = {}
        self._changed = threading.Condition()  # guards streams, pending frames and backlog
        self._pending: dict[int, PendingFrame] = {}
        in_memory = 2 * options.window + _PREPARERS
        self._room = threading.Semaphore(
            max(in_memory, _LATEST_IN_MEMORY) if options.policy is Policy.LATEST else in_memory
        )
        self._first = FirstResults(streams)
        self.is_complete = False
        """Whether the source was read to its end."""
        self._results = Results(sink, lambda finished: self._release(finished.pending))
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
        return len(self._pending)

    def waiting(self) -> tuple[int, float]:
        """Return how many frames were read and have no outcome yet, and when the oldest was; thread-safe."""
        with self._changed:
            oldest = next(iter(self._pending.values()), None)
            return len(self._pending), oldest.read_at if oldest else 0.0

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
            for number, frame in enumerate(self._read(frames, is_stopped), left_over):
                self._queue(PendingFrame(number, frame, self._stream(frame.source)))
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
                sent = [pending.request_id for pending in self._pending.values() if pending.request_id]
            for request_id in sent:
                self._requester.cancel(request_id, Cancelled(KEPT))

    def _read(self, frames: Iterable[Frame], is_stopped: Callable[[], bool]) -> Iterator[Frame]:
        """Read a frame only when there is room for it, so that every frame that was read is sent."""
        source = iter(frames)
        while self._wait_for_room(is_stopped):
            started = time.perf_counter_ns()
            frame = next(source, None)
            if frame is None:
                self.is_complete = not is_stopped()
                return
            self._statistics.frame_read(frame.source)
            self._statistics.stage(frame.source, EdgeStage.READ, time.perf_counter_ns() - started)
            yield frame

    def _wait_for_room(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until memory for one more frame is free; return False if the run is over."""
        while not self._room.acquire(timeout=_STOP_CHECK_S):
            if is_stopped():
                return False
        return not (is_stopped() or self._results.error or self.refusal)

    def _stream(self, source: str) -> Stream[PendingFrame]:
        if source not in self._streams:
            options = self._options
            self._ladders[source] = QualityLadder(options.quality, self._preparer.quality)
            self._streams[source] = Stream(options.policy, DelayWindow.of(options.policy, options.window))
        return self._streams[source]

    def _begin(self, pending: PendingFrame) -> None:
        if self._requester.tracer is not None:
            frame = pending.frame
            about = {"mqinfer.model": self._options.model, "mqinfer.source": frame.source}
            pending.spans = Around(
                self._requester.tracer, "frame", pending.read_at, {**about, "mqinfer.sequence": frame.sequence}
            )
        self._statistics.request_sent(pending.frame.source)
        with self._changed:
            self._pending[pending.number] = pending

    def _queue(self, pending: PendingFrame) -> None:
        """Put a frame into its stream, where with `latest` it takes the place of an older one."""
        self._begin(pending)
        with self._changed:
            self._ladders[pending.frame.source].on_frame(time.monotonic())
            lost = None if self._backlog else pending.stream.put(pending)
        if self._backlog:
            self._pool.submit(self._prepare_and_place, pending, self._backlog)
        self._advance(pending.stream)
        if lost:
            self._conclude(lost, None, self._failed(lost, Superseded("a newer frame of the stream came first")))

    def _advance(self, stream: Stream[PendingFrame]) -> None:
        """Start the queued frames that the window has room for."""
        with self._changed:
            entered = stream.take()
        for pending in entered:
            self._pool.submit(self._prepare_and_submit, pending)

    def _prepare_and_submit(self, pending: PendingFrame) -> None:
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
        if place is Place.LINK:
            self._submit(pending, prepared)
        elif place is Place.DISK:
            self._room.release()
        else:
            self._conclude(pending, prepared, self._failed(pending, Cancelled(backlog.not_kept)))

    def _prepare(self, pending: PendingFrame) -> PreparedFrame | InferResult:
        """Demosaic, resize and encode a frame; return its outcome if that fails, since there is no request then."""
        frame, step = pending.frame, self._ladders[pending.frame.source].step
        if self.refusal:
            return self._failed(pending, Cancelled("not sent: the frames before it were refused, and it would be too"))
        try:
            if pending.spans is None:
                return self._preparer.prepare(frame, partial(self._statistics.stage, frame.source), step)
            return self._prepare_traced(pending.spans, frame, step)
        except MqinferError as error:  # this frame's fault
            log.warning("%s, frame %d: %s", frame.source, frame.sequence, error)
            return self._failed(pending, error)
        except Exception as error:  # a defect; the frame gets its outcome all the same, or the run would wait for it
            log.exception("%s, frame %d", frame.source, frame.sequence)
            return self._failed(pending, MqinferError(f"preparing the frame failed: {error!r}"))

    def _prepare_traced(self, spans: Around, frame: Frame, step: QualityStep) -> PreparedFrame:
        def record(stage: EdgeStage, nanoseconds: int) -> None:
            self._statistics.stage(frame.source, stage, nanoseconds)
            spans.measured(stage.removeprefix("edge_"), nanoseconds)

        prepared = self._preparer.prepare(frame, record, step)
        spans.prepared()
        return prepared

    def _submit(self, pending: PendingFrame, prepared: PreparedFrame) -> None:
        options = self._options
        asked: InferOptions = {
            "version": options.version,
            "output_encoding": options.output_encoding,
            "capture": pending.capture,
        }
        settle = partial(self._settle, pending, prepared)
        try:
            if pending.spans is not None:
                trace = pending.spans.context
                asked |= {"traceparent": trace.traceparent, "tracestate": trace.tracestate}
            request = make_request(options.model, {prepared.tensor.name: prepared.tensor}, asked)
            if names_label(request) and (card := self._requester.registry.card(options.model)):
                request = with_labelled_version(request, card)
            pending.request_id = self._requester.submit(request, options.timeout, settle)
        except MqinferError as error:  # it can't be carried or sent, or the client was closed; there is no request
            if isinstance(error, LinkError) and not isinstance(error, MessageTooLarge):
                # The connection failed for good: the spool, if there is one, keeps the frame.
                settle(self._failed(pending, Cancelled(str(error))))
                return
            log.warning("%s, frame %d: %s", pending.frame.source, pending.frame.sequence, error)
            settle(self._failed(pending, error))

    def _settle(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        """Remove a frame with its outcome from the window, which makes room for queued ones."""
        if self._backlog:
            was_spooled = pending.spooled_as
            if prepared and self._backlog.take_back(pending, prepared, result):
                if not was_spooled:
                    self._room.release()
                return
            result = self._backlog.settle(pending, prepared, result)
        with self._changed:
            pending.stream.finish(result, time.monotonic())
            if result.outcome is Outcome.OK:
                self._ladders[pending.frame.source].on_result()
            self._changed.notify_all()
        self._advance(pending.stream)
        self._conclude(pending, prepared, result)

    def _conclude(self, pending: PendingFrame, prepared: PreparedFrame | None, result: InferResult) -> None:
        self._statistics.finished(result, bytes_raw=prepared.bytes_raw if prepared else 0)
        if pending.spans is not None:
            pending.spans.end(result.outcome, result.error)
        self._results.put(FinishedFrame(pending, prepared, result))
        with self._changed:
            self._first.add(result)
            del self._pending[pending.number]
            self._changed.notify_all()

    def _lose(self, pending: PendingFrame, result: InferResult | None) -> None:
        """End a frame of the spool that can't be sent: damaged there, if there is no result; it was in no window."""
        self._conclude(pending, None, result or self._failed(pending, BadImage(DAMAGED)))

    def _release(self, pending: PendingFrame) -> None:
        if not pending.spooled_as:  # the spool has a bound of its own
            self._room.release()

    def _failed(self, pending: PendingFrame, error: MqinferError) -> InferResult:
        """Make the outcome of a frame that never became a request."""
        return InferResult(
            id="",
            outcome=error.outcome,
            model_name=self._options.model,
            error=ErrorInfo(error.code, str(error)),
            capture=pending.capture,
        )
