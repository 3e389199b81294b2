"""Frames from their reading to the sinks: pending ones, finished ones, and the thread that writes them in order."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Generic, TypeVar

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.client.window import Stream
from mqinfer.edge_agent.engines import Engines
from mqinfer.edge_agent.preparing.preparer import PreparedFrame
from mqinfer.edge_agent.sinks.outputs import Picture
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.edge_agent.sinks.view import NO_VIEW, View
from mqinfer.edge_agent.times import NO_TIMES, FrameTimes, Laps
from mqinfer.images.placement import Placement
from mqinfer.protocol.errors import (
    BadEncoding,
    BadImage,
    ConfigError,
    InvalidRequest,
    ModelNotFound,
    MqinferError,
    NotAuthorized,
    NoWorker,
    error_from_code,
)
from mqinfer.protocol.states import ServedModel
from mqinfer.protocol.types import Capture, ErrorInfo, Outcome
from mqinfer.protocol.value import value_object
from mqinfer.telemetry.around import Around

__all__ = ["FinishedFrame", "FirstResults", "PendingFrame", "ReadingOrder", "Results", "capture_of"]

T = TypeVar("T")
log = logging.getLogger("mqinfer.edge_agent")
_REFUSED = 3
"""So many refused frames of each stream, before any other result, end a run."""
_REFUSALS = (ModelNotFound, NoWorker, InvalidRequest)


@dataclass(slots=True, eq=False)
class PendingFrame:
    """A frame that was read and has no outcome yet.

    Attributes:
        number: In the order of reading, from 0.
        frame: As it was read; without pixels once it is in the spool.
        stream: The stream that it belongs to.
        spooled_as: Its number in the spool; 0 if it is not there.
        request_id: Of its latest request; empty before the first one.
        placement: Where it lies in what the model sees; known once it was put into the spool by this run.
        read_at: When it was read, or taken up from the spool of an earlier run, in seconds of the monotonic clock.
        laps: Measures its stages.
        spans: Its span in a trace; None where spans are not exported.
        lost: The reply of a worker that could not decode it without frames before; it is sent again, on its own.
        picture: Returns what the model gets, where that is to be previewed; held until the request was sent.
    """

    number: int
    frame: Frame
    stream: Stream[PendingFrame]
    spooled_as: int = 0
    request_id: str = ""
    placement: Placement | None = None
    read_at: float = field(default_factory=time.monotonic)
    laps: Laps = field(default_factory=lambda: Laps(time.monotonic_ns()))
    spans: Around | None = None
    lost: InferResult | None = None
    picture: Callable[[], Picture] | None = None

    def keep_picture(self, picture: Callable[[], Picture]) -> None:
        """Keep what the model gets for a preview."""
        self.picture = picture

    @property
    def capture(self) -> Capture:
        """Where the frame comes from, as it travels with a request."""
        return capture_of(self.frame)


def capture_of(frame: Frame) -> Capture:
    """Return where a frame comes from, as it travels with a request."""
    return Capture(frame.source, frame.sequence, frame.capture_time_ns, frame.frame_id)


@value_object(eq=False)
class FinishedFrame:
    """A frame with its outcome, on its way to the sinks; `prepared` is None if it never became a request."""

    pending: PendingFrame
    prepared: PreparedFrame | None
    result: InferResult
    times: FrameTimes = NO_TIMES


def failed_frame(model: str, pending: PendingFrame, error: MqinferError) -> InferResult:
    """Make the outcome of a frame that never became a request."""
    info = ErrorInfo(error.code, str(error))
    return InferResult("", error.outcome, model, error=info, capture=pending.capture)


class FirstResults:
    """Finds out from the first results whether any frame of a run can succeed. Not thread-safe.

    A run is refused if the broker's access rules forbid its first request, or if the first results of every stream all
    say that there is no such model or no worker for it, or that the model does not take such frames. One other result
    shows that frames can get through, and nothing is refused any more.

    Attributes:
        refusal: Why no frame can succeed; None while one may.
    """

    def __init__(self, streams: int) -> None:
        """Start without a result.

        Args:
            streams: How many streams the source has.
        """
        self.refusal: MqinferError | None = None
        self._streams = streams
        self._refused: Counter[str] = Counter()
        self._is_decided = False

    def add(self, result: InferResult) -> None:
        """Look at the outcome of a frame."""
        if self._is_decided or result.outcome in {Outcome.SUPERSEDED, Outcome.CANCELLED}:
            return
        error = error_from_code(result.error.code, result.error.message) if result.error else None
        if isinstance(error, NotAuthorized):
            self.refusal = error
        elif isinstance(error, _REFUSALS) and not isinstance(error, BadEncoding):  # those bytes are one frame's fault
            self._refused[result.capture.source] += 1
            if sum(count >= _REFUSED for count in self._refused.values()) >= self._streams:
                self.refusal = _unsuitable(error) if isinstance(error, InvalidRequest) else error
        else:
            self._is_decided = True
        self._is_decided = self._is_decided or self.refusal is not None


def _unsuitable(error: MqinferError) -> ConfigError:
    return ConfigError(f"the model takes no such frames; the first ones all failed with {error.code}: {error}")


class ReadingOrder(Generic[T]):
    """Yields items by their number, without gaps. Not thread-safe; its owner bounds how far numbers run ahead."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, T] = {}

    def put(self, number: int, item: T) -> Iterator[T]:
        """Add an item, and yield every item that has no gap before it.

        Args:
            number: From 0, each number once.
            item: To be yielded.
        """
        self._early[number] = item
        while self._next in self._early:
            item = self._early.pop(self._next)
            self._next += 1
            yield item


class Results:
    """Writes finished frames to the sink, in the order of reading, on a thread of its own. Thread-safe."""

    def __init__(self, sink: Sink | None, engines: Engines, on_written: Callable[[FinishedFrame], None]) -> None:
        """Prepare; `start` starts the thread.

        Args:
            sink: Receives every frame with its outcome; None to drop them.
            engines: Looks up what computed a result.
            on_written: Called after each frame that the sink has received.
        """
        self._sink = sink
        self._engines = engines
        self._on_written = on_written
        self._queue: SimpleQueue[FinishedFrame | None] = SimpleQueue()  # bounded by the frames that the replay reads
        self._thread = threading.Thread(target=self._write_all, name="mqinfer-replay-sinks")
        self.error: MqinferError | None = None
        """Why the sink failed; nothing is written after that."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def put(self, finished: FinishedFrame) -> None:
        """Queue a finished frame."""
        self._queue.put(finished)

    def close(self) -> None:
        """Write what is queued, and join the thread."""
        self._queue.put(None)
        self._thread.join()

    def _write_all(self) -> None:
        order: ReadingOrder[FinishedFrame] = ReadingOrder()
        while finished := self._queue.get():
            for each in order.put(finished.pending.number, finished):
                self._write(each)
                self._on_written(each)

    def _write(self, finished: FinishedFrame) -> None:
        if self._sink is None or self.error:
            return  # the run ends with the first error; later ones would only repeat it
        frame = finished.pending.frame
        try:
            view = _view(finished, self._engines.of(finished.result))
            self._sink.write(frame, view, finished.result)
        except MqinferError as error:
            self.error = error
        except Exception as error:  # a defect; it ends the run, and is raised there
            log.exception("writing the result of %s, frame %d", frame.source, frame.sequence)
            self.error = MqinferError(f"a sink failed: {error!r}")


def _view(finished: FinishedFrame, served: ServedModel | None) -> View:
    prepared, result = finished.prepared, finished.result
    if prepared is None:
        return replace(NO_VIEW, times=finished.times, served=served)
    try:
        pixels = prepared.picture()
    except (BadImage, BadEncoding):  # a JPEG that passed untouched; its outcome is the same error
        pixels = NO_VIEW.pixels
    outputs = result.outputs if result.outcome is Outcome.OK else {}
    sent = prepared.tensors[0] if prepared.tensors else None  # a cascade answers without sending anything
    return View(pixels, prepared.placement, outputs, sent, finished.times, served)
