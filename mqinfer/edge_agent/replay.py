"""The life of a recorded drive: read, prepare, send, and keep the results in the order of reading.

Threads: the caller's reads and paces; two prepare (demosaic, resize, encode) and submit; one writes to the sinks. What
is between them is bounded by two counts of permits: frames in hand (from reading until the sinks are done) and the
window (from preparing until the outcome). When either runs out the reader waits: nothing is dropped.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.client.inputs import InferOptions, make_request
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.order import Reorder
from mqinfer.edge_agent.preparation import PreparedFrame, Preparer
from mqinfer.edge_agent.sinks.sink import Picture, Sink
from mqinfer.edge_agent.statistics import EdgeStage, ReplayStatistics
from mqinfer.protocol.errors import BadImage, MqinferError
from mqinfer.protocol.types import Capture, ErrorInfo, Outcome

__all__ = ["Replay", "ReplayOptions"]

log = logging.getLogger("mqinfer.edge_agent")
_PREPARERS = 2
_NO_PICTURE: Picture = np.zeros((0, 0, 3), np.uint8)


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How frames are sent.

    Attributes:
        model: Name of the model.
        version: Of the model, or None for the one that its policy prefers.
        window: Requests in flight at a time.
        timeout: Of each request, in seconds.
        output_encoding: Codec of the results, one for all or by output; None for what suits the model's outputs.
    """

    model: str
    version: str | None = None
    window: int = 8
    timeout: float = 60.0
    output_encoding: str | Mapping[str, str] | None = None


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
        self._window = threading.Semaphore(options.window)
        self._in_hand = threading.Semaphore(2 * options.window + _PREPARERS)
        self._ended: SimpleQueue[_Ended | None] = SimpleQueue()
        self._sink_error: MqinferError | None = None

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
        try:
            with ThreadPoolExecutor(_PREPARERS, thread_name_prefix="mqinfer-replay-prepare") as pool:
                for number, frame in enumerate(self._read(frames, is_stopped)):
                    pool.submit(self._prepare_and_send, number, frame)
        finally:  # also where the source breaks off
            for _ in range(self._options.window):  # all permits back: every outcome is in
                self._window.acquire()

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

    def _prepare_and_send(self, number: int, frame: Frame) -> None:
        self._window.acquire()
        self._statistics.request_sent(frame.source)
        capture = Capture(frame.source, frame.sequence, frame.capture_time_ns, frame.frame_id)
        prepared = None
        try:
            prepared = self._prepare(frame)
            request = make_request(self._options.model, {prepared.tensor.name: prepared.tensor}, self._say(capture))
            self._requester.submit(request, self._options.timeout, partial(self._end, number, frame, prepared))
        except MqinferError as error:  # this frame's fault, or the client was closed; there is no request
            log.warning("%s, frame %d: %s", frame.source, frame.sequence, error)
            self._end(number, frame, prepared, _unsent(self._options.model, capture, error))

    def _prepare(self, frame: Frame) -> PreparedFrame:
        try:
            return self._preparer.prepare(frame, partial(self._statistics.stage, frame.source))
        except MqinferError:
            raise
        except Exception as error:  # a defect; the frame gets its outcome all the same, or the run would wait for it
            log.exception("%s, frame %d", frame.source, frame.sequence)
            raise MqinferError(f"can't be prepared: {error!r}") from error

    def _say(self, capture: Capture) -> InferOptions:
        options = self._options
        return {"version": options.version, "output_encoding": options.output_encoding, "capture": capture}

    def _end(self, number: int, frame: Frame, prepared: PreparedFrame | None, result: InferResult) -> None:
        self._statistics.finished(result, bytes_raw=prepared.bytes_raw if prepared else 0)
        self._ended.put(_Ended(number, frame, prepared, result))
        self._window.release()

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


def _unsent(model: str, capture: Capture, error: MqinferError) -> InferResult:
    """Make the outcome of a frame that never became a request."""
    return InferResult(
        id="", outcome=Outcome.ERROR, model_name=model, error=ErrorInfo(error.code, str(error)), capture=capture
    )
