"""Sends the frames of a source to a model, and keeps the results in the order of reading.

Threads: the caller's reads and paces; two prepare (demosaic, resize, encode) and submit; one writes to the sinks. Every
stream has a window that follows the queueing delay. What comes while it is full waits: with the policy `all` in the
preparing threads and behind them in the reader, so that nothing is dropped; with `latest` in a place for one frame,
which a newer one takes over, and the older ends as `superseded`. What is between reading and the sinks is bounded too.
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
from mqinfer.client.inputs import InferOptions, make_request
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.backlog import Backlog, Place
from mqinfer.edge_agent.preparation import PreparedFrame, Preparer
from mqinfer.edge_agent.quality_ladder import QualityBounds, QualityLadder
from mqinfer.edge_agent.results import Ended, Job, Results, capture_of
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.edge_agent.spool import Spool
from mqinfer.edge_agent.statistics import EdgeStage, ReplayStatistics
from mqinfer.edge_agent.window import DelayWindow, Policy, Stream
from mqinfer.protocol.errors import Cancelled, LinkError, MqinferError, Superseded
from mqinfer.protocol.types import ErrorInfo, Outcome

__all__ = ["Replay", "ReplayOptions"]

log = logging.getLogger("mqinfer.edge_agent")
_PREPARERS = 2
_LATEST_IN_HAND = 64
"""Frames from reading until the sinks are done, at least, where a slow one must not hold up the reader."""
_FRESH_SHARE = 0.5
"""Of the model's time that a frame of the policy `latest` may wait in queues."""
_STOP_CHECK_S = 0.2
_KEPT = "kept in the spool for the next run"
_OUTCOMES: Mapping[type[MqinferError], Outcome] = {Superseded: Outcome.SUPERSEDED, Cancelled: Outcome.CANCELLED}


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
    ) -> None:
        """Prepare.

        Args:
            requester: Connected.
            preparer: Of the model's image input.
            options: How frames are sent.
            statistics: Told of everything.
            sink: Gets every frame with its outcome, in the order of reading; None where nobody wants them.
            spool: Keeps frames of the policy `all` while there is no connection; what an earlier run left goes first.
        """
        self._requester = requester
        self._preparer = preparer
        self._options = options
        self._statistics = statistics
        self._streams: dict[str, Stream[Job]] = {}
        self._changed = threading.Condition()
        self._sent: set[str] = set()  # ids of requests without an outcome
        self._under_way = 0  # frames that were read and have no outcome
        most = 2 * options.window + _PREPARERS
        self._in_hand = threading.Semaphore(max(most, _LATEST_IN_HAND) if self._is_live else most)
        self._results = Results(sink, lambda ended: self._let_go(ended.job))
        self._backlog = None if spool is None else self._make_backlog(spool)

    def _make_backlog(self, spool: Spool) -> Backlog:
        return Backlog(spool, self._requester, self._changed, self._submit, self._options.timeout)

    @property
    def _is_live(self) -> bool:
        return self._options.policy is Policy.LATEST

    def run(self, frames: Iterable[Frame], is_stopped: Callable[[], bool] = lambda: False) -> None:
        """Send every frame, and return when the sinks have all the outcomes.

        Args:
            frames: Read as fast as there is room.
            is_stopped: Asked before each frame.

        Raises:
            SourceError: The source broke off; what was read before has its outcome.
            MqinferError: A sink failed.
        """
        self._results.start()
        try:
            with ThreadPoolExecutor(_PREPARERS, thread_name_prefix="mqinfer-replay-prepare") as self._pool:
                self._send_all(frames, is_stopped)
        finally:
            self._results.close()
        if self._results.error:
            raise self._results.error

    def _send_all(self, frames: Iterable[Frame], is_stopped: Callable[[], bool]) -> None:
        left_over = self._start_backlog()
        try:
            for number, frame in enumerate(self._read(frames, is_stopped), left_over):
                self._take(Job(number, frame, self._stream(frame.source)))
        finally:  # also where the source breaks off
            while not self._all_ended(_STOP_CHECK_S if self._backlog else None):
                if self._backlog and is_stopped():
                    self._leave(self._backlog)
            if self._backlog:
                self._backlog.close()

    def _start_backlog(self) -> int:
        """Begin with what an earlier run left; returns how many frames."""
        if self._backlog is None:
            return 0
        adopted = self._backlog.adopt(self._stream)
        for job in adopted:
            self._statistics.frame_read(job.frame.source)
            self._begin(job)
        self._backlog.start()
        return len(adopted)

    def _all_ended(self, timeout: float | None) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._under_way == 0, timeout)

    def _leave(self, backlog: Backlog) -> None:
        """End what is not sent, and without a connection also what is in flight; it stays in the spool."""
        for job in backlog.leave():
            self._conclude(job, None, self._ended_here(job, Cancelled(_KEPT)))
        if not self._requester.connected:
            for request_id in list(self._sent):
                self._sent.discard(request_id)  # also those that settled before `submit` returned
                self._requester.cancel(request_id, Cancelled(_KEPT))

    def _start(self, job: Job) -> None:
        self._pool.submit(self._prepare_and_send, job)

    def _read(self, frames: Iterable[Frame], is_stopped: Callable[[], bool]) -> Iterator[Frame]:
        """Take a frame only when there is room for it, so that every frame that was read is sent."""
        source = iter(frames)
        while self._wait_for_room(is_stopped):
            started = time.perf_counter_ns()
            frame = next(source, None)
            if frame is None:
                return
            self._statistics.frame_read(frame.source)
            self._statistics.stage(frame.source, EdgeStage.READ, time.perf_counter_ns() - started)
            yield frame

    def _wait_for_room(self, is_stopped: Callable[[], bool]) -> bool:
        """Wait until one more frame may be in hand; False where the run is over."""
        while not self._in_hand.acquire(timeout=_STOP_CHECK_S):
            if is_stopped():
                return False
        return not (is_stopped() or self._results.error)

    def _stream(self, source: str) -> Stream[Job]:
        if source not in self._streams:
            share = _FRESH_SHARE if self._is_live else 1.0
            economy = QualityLadder(self._options.economy, self._preparer.quality)
            self._streams[source] = Stream(DelayWindow(self._options.window, share), economy)
        return self._streams[source]

    def _begin(self, job: Job) -> None:
        self._statistics.request_sent(job.frame.source)
        with self._changed:
            self._under_way += 1

    def _take(self, job: Job) -> None:
        """Send a frame that was read, or let it wait for room in its stream's window."""
        self._begin(job)
        with self._changed:
            job.stream.economy.offered(time.monotonic())
            now, lost = job.stream.offer(job) if self._is_live else (job, None)
        if now:
            self._start(now)
        if lost:
            self._conclude(lost, None, self._ended_here(lost, Superseded("a newer frame of the stream came first")))

    def _prepare_and_send(self, job: Job) -> None:
        if not self._is_live:
            self._enter(job)
        try:
            prepared = self._prepare(job)
        except MqinferError as error:  # this frame's fault; there is no request
            log.warning("%s, frame %d: %s", job.frame.source, job.frame.sequence, error)
            self._end(job, None, self._ended_here(job, error))
            return
        place = self._backlog.place(job, prepared) if self._backlog else Place.LINK
        if place is Place.LINK:
            self._submit(job, prepared)
        elif place is Place.DISK:
            self._in_hand.release()
        elif self._backlog:
            self._conclude(job, prepared, self._ended_here(job, Cancelled(self._backlog.not_kept)))

    def _enter(self, job: Job) -> None:
        """Wait for room in a frame's stream, or for the need to keep it on the disk."""
        backlog = self._backlog
        with self._changed:
            self._changed.wait_for(lambda: job.stream.has_room or (backlog is not None and backlog.is_needed))
            job.stream.enter()

    def _prepare(self, job: Job) -> PreparedFrame:
        frame = job.frame
        try:
            return self._preparer.prepare(frame, partial(self._statistics.stage, frame.source), job.stream.economy.step)
        except MqinferError:
            raise
        except Exception as error:  # a defect; the frame gets its outcome all the same, or the run would wait for it
            log.exception("%s, frame %d", frame.source, frame.sequence)
            raise MqinferError(f"can't be prepared: {error!r}") from error

    def _submit(self, job: Job, prepared: PreparedFrame) -> None:
        def settle(result: InferResult) -> None:
            self._sent.discard(result.id)
            self._end(job, prepared, result)

        try:
            request = make_request(self._options.model, {prepared.tensor.name: prepared.tensor}, self._say(job.frame))
            self._sent.add(self._requester.submit(request, self._options.timeout, settle))
        except LinkError as error:  # the connection has failed for good: the spool, where there is one, keeps the frame
            self._end(job, prepared, self._ended_here(job, Cancelled(str(error))))
        except MqinferError as error:  # the codec can't carry it, or the client was closed; there is no request
            log.warning("%s, frame %d: %s", job.frame.source, job.frame.sequence, error)
            self._end(job, prepared, self._ended_here(job, error))

    def _say(self, frame: Frame) -> InferOptions:
        options = self._options
        return {"version": options.version, "output_encoding": options.output_encoding, "capture": capture_of(frame)}

    def _end(self, job: Job, prepared: PreparedFrame | None, result: InferResult) -> None:
        """Take a frame out of its stream's window; another one may have waited for that."""
        if self._backlog and prepared and self._backlog.take_back(job, prepared, result):
            self._let_go(job)
            return
        if self._backlog:
            result = self._backlog.ended(job, prepared, result)
        with self._changed:
            following = job.stream.leave(result, time.monotonic())
            self._changed.notify_all()
        if following:
            self._start(following)
        self._conclude(job, prepared, result)

    def _conclude(self, job: Job, prepared: PreparedFrame | None, result: InferResult) -> None:
        self._statistics.finished(result, bytes_raw=prepared.bytes_raw if prepared else 0)
        self._results.put(Ended(job, prepared, result))
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def _let_go(self, job: Job) -> None:
        if not job.spooled_as:  # what is on the disk is bounded there
            self._in_hand.release()

    def _ended_here(self, job: Job, error: MqinferError) -> InferResult:
        """Make the outcome of a frame that never became a request."""
        return InferResult(
            id="",
            outcome=_OUTCOMES.get(type(error), Outcome.ERROR),
            model_name=self._options.model,
            error=ErrorInfo(error.code, str(error)),
            capture=capture_of(job.frame),
        )


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How frames are sent.

    Attributes:
        model: Name of the model.
        version: Of the model, or None for the one that its policy prefers.
        window: Requests of one stream in flight at a time, at most.
        timeout: Of each request, in seconds.
        output_encoding: Codec of the results, one for all or by output; None for what suits the model's outputs.
        policy: What happens to a frame that comes while the window is full.
        economy: What may be given up where too few frames come through.
    """

    model: str
    version: str | None = None
    window: int = 8
    timeout: float = 60.0
    output_encoding: str | Mapping[str, str] | None = None
    policy: Policy = Policy.ALL
    economy: QualityBounds = field(default_factory=QualityBounds)
