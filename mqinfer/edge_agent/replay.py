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
from queue import SimpleQueue

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.client.inputs import InferOptions, make_request
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.delay_window import DelayWindow
from mqinfer.edge_agent.economy import Economy, EconomyBounds
from mqinfer.edge_agent.order import Reorder
from mqinfer.edge_agent.preparation import PreparedFrame, Preparer
from mqinfer.edge_agent.sinks.sink import Picture, Sink
from mqinfer.edge_agent.statistics import EdgeStage, ReplayStatistics
from mqinfer.edge_agent.stream import Policy, Stream
from mqinfer.protocol.errors import BadImage, MqinferError, Superseded
from mqinfer.protocol.types import Capture, ErrorInfo, Outcome

__all__ = ["Replay", "ReplayOptions"]

log = logging.getLogger("mqinfer.edge_agent")
_PREPARERS = 2
_LATEST_IN_HAND = 64
"""Frames from reading until the sinks are done, at least, where a slow one must not hold up the reader."""
_FRESH_SHARE = 0.5
"""Of the model's time that a frame of the policy `latest` may wait in queues."""
_NO_PICTURE: Picture = np.zeros((0, 0, 3), np.uint8)


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
    economy: EconomyBounds = field(default_factory=EconomyBounds)


@dataclass(frozen=True, slots=True, eq=False)
class _Job:
    """A frame, numbered in the order of reading, and its stream."""

    number: int
    frame: Frame
    stream: Stream[_Job]


@dataclass(frozen=True, slots=True, eq=False)
class _Ended:
    """A frame with its outcome, on its way to the sinks."""

    number: int
    frame: Frame
    prepared: PreparedFrame | None
    result: InferResult


class Replay:
    """One run from a source to the sinks."""

    def __init__(
        self,
        requester: Requester,
        preparer: Preparer,
        options: ReplayOptions,
        statistics: ReplayStatistics,
        sink: Sink | None,
    ) -> None:
        """Prepare.

        Args:
            requester: Connected.
            preparer: Of the model's image input.
            options: How frames are sent.
            statistics: Told of everything.
            sink: Gets every frame with its outcome, in the order of reading; None where nobody wants them.
        """
        self._requester = requester
        self._preparer = preparer
        self._options = options
        self._statistics = statistics
        self._sink = sink
        self._streams: dict[str, Stream[_Job]] = {}
        self._changed = threading.Condition()
        self._under_way = 0  # frames that were read and have no outcome
        most = 2 * options.window + _PREPARERS
        self._in_hand = threading.Semaphore(max(most, _LATEST_IN_HAND) if self._is_live else most)
        self._ended: SimpleQueue[_Ended | None] = SimpleQueue()
        self._sink_error: MqinferError | None = None

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
        writer = threading.Thread(target=self._write_all, name="mqinfer-replay-sinks")
        writer.start()
        try:
            self._send_all(frames, is_stopped)
        finally:
            self._ended.put(None)
            writer.join()
        if self._sink_error:
            raise self._sink_error

    def _send_all(self, frames: Iterable[Frame], is_stopped: Callable[[], bool]) -> None:
        with ThreadPoolExecutor(_PREPARERS, thread_name_prefix="mqinfer-replay-prepare") as pool:
            self._pool = pool
            try:
                for number, frame in enumerate(self._read(frames, is_stopped)):
                    self._take(_Job(number, frame, self._stream(frame.source)))
            finally:  # also where the source breaks off
                with self._changed:
                    self._changed.wait_for(lambda: self._under_way == 0)

    def _start(self, job: _Job) -> None:
        self._pool.submit(self._prepare_and_send, job)

    def _read(self, frames: Iterable[Frame], is_stopped: Callable[[], bool]) -> Iterator[Frame]:
        """Take a frame only when there is room for it, so that every frame that was read is sent."""
        source = iter(frames)
        while True:
            self._in_hand.acquire()
            if is_stopped() or self._sink_error:
                return
            started = time.perf_counter_ns()
            frame = next(source, None)
            if frame is None:
                return
            self._statistics.frame_read(frame.source)
            self._statistics.stage(frame.source, EdgeStage.READ, time.perf_counter_ns() - started)
            yield frame

    def _stream(self, source: str) -> Stream[_Job]:
        if source not in self._streams:
            options = self._options
            share = _FRESH_SHARE if self._is_live else 1.0
            economy = Economy(options.economy, self._preparer.quality)
            self._streams[source] = Stream(DelayWindow(options.window, share), economy)
        return self._streams[source]

    def _take(self, job: _Job) -> None:
        """Send a frame that was read, or let it wait for room in its stream's window."""
        self._statistics.request_sent(job.frame.source)
        with self._changed:
            self._under_way += 1
            job.stream.economy.offered(time.monotonic())
            now, lost = job.stream.offer(job) if self._is_live else (job, None)
        if now:
            self._start(now)
        if lost:
            self._conclude(lost, None, self._ended_here(lost, Superseded("a newer frame of the stream came first")))

    def _prepare_and_send(self, job: _Job) -> None:
        if not self._is_live:
            with self._changed:
                self._changed.wait_for(lambda: job.stream.has_room)
                job.stream.enter()
        prepared = None
        try:
            prepared = self._prepare(job)
            request = make_request(self._options.model, {prepared.tensor.name: prepared.tensor}, self._say(job.frame))
            self._requester.submit(request, self._options.timeout, partial(self._end, job, prepared))
        except MqinferError as error:  # this frame's fault, or the client was closed; there is no request
            log.warning("%s, frame %d: %s", job.frame.source, job.frame.sequence, error)
            self._end(job, prepared, self._ended_here(job, error))

    def _prepare(self, job: _Job) -> PreparedFrame:
        frame = job.frame
        try:
            return self._preparer.prepare(frame, partial(self._statistics.stage, frame.source), job.stream.economy.step)
        except MqinferError:
            raise
        except Exception as error:  # a defect; the frame gets its outcome all the same, or the run would wait for it
            log.exception("%s, frame %d", frame.source, frame.sequence)
            raise MqinferError(f"can't be prepared: {error!r}") from error

    def _say(self, frame: Frame) -> InferOptions:
        options = self._options
        return {"version": options.version, "output_encoding": options.output_encoding, "capture": _capture(frame)}

    def _end(self, job: _Job, prepared: PreparedFrame | None, result: InferResult) -> None:
        """Take a frame out of its stream's window; another one may have waited for that."""
        with self._changed:
            following = job.stream.leave(result, time.monotonic())
            self._changed.notify_all()
        if following:
            self._start(following)
        self._conclude(job, prepared, result)

    def _conclude(self, job: _Job, prepared: PreparedFrame | None, result: InferResult) -> None:
        self._statistics.finished(result, bytes_raw=prepared.bytes_raw if prepared else 0)
        self._ended.put(_Ended(job.number, job.frame, prepared, result))
        with self._changed:
            self._under_way -= 1
            self._changed.notify_all()

    def _ended_here(self, job: _Job, error: MqinferError) -> InferResult:
        """Make the outcome of a frame that never became a request."""
        outcome = Outcome.SUPERSEDED if isinstance(error, Superseded) else Outcome.ERROR
        why = ErrorInfo(error.code, str(error))
        capture = _capture(job.frame)
        return InferResult(id="", outcome=outcome, model_name=self._options.model, error=why, capture=capture)

    def _write_all(self) -> None:
        order: Reorder[_Ended] = Reorder()
        while ended := self._ended.get():
            for item in order.put(ended.number, ended):
                self._write(item)
                self._in_hand.release()

    def _write(self, ended: _Ended) -> None:
        if self._sink is None or self._sink_error:
            return  # the run is ending; what could not be kept is said once
        try:
            self._sink.write(ended.frame, _picture(ended.prepared), ended.result)
        except MqinferError as error:
            self._sink_error = error
        except Exception as error:  # a defect; said at the end of the run
            log.exception("writing the result of %s, frame %d", ended.frame.source, ended.frame.sequence)
            self._sink_error = MqinferError(f"a sink failed: {error!r}")


def _picture(prepared: PreparedFrame | None) -> Picture:
    try:
        return prepared.picture() if prepared else _NO_PICTURE
    except BadImage:  # a JPEG that passed untouched; its outcome says the same
        return _NO_PICTURE


def _capture(frame: Frame) -> Capture:
    return Capture(frame.source, frame.sequence, frame.capture_time_ns, frame.frame_id)
