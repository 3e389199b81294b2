"""Frames from their reading to the sinks: pending ones, finished ones, and the thread that writes them in order."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from queue import Empty, SimpleQueue

import numpy as np

from mqinfer.answers.tracks import Tracks
from mqinfer.bags.frame import Frame
from mqinfer.broker.malloc import return_freed_memory
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.table import FinishedFrame, ReadingOrder
from mqinfer.edge_agent.frames.view import NO_VIEW, FrameView
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.protocol.card import ClassInfo
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
from mqinfer.protocol.types import Outcome

_MOST = 1024
"""Workers and versions that are remembered; names come from outside, so their number is bounded."""
_LARGE_BYTES, _RETURN_S = 16 << 20, 5.0
"""So long after the last result with outputs of so many bytes, what was freed is returned to the system."""


class Engines:
    """Looks up what a worker serves, and remembers it: a worker may end between its reply and the look-up.

    Not thread-safe: the thread that writes results asks.

    Args:
        look_up: Returns what the last state of a worker holds of a model's version, or None.
    """

    def __init__(self, look_up: Callable[[str, str, str], ServedModel | None]) -> None:
        self._look_up = look_up
        self._known: dict[tuple[str, str, str], ServedModel] = {}

    def of(self, result: InferResult) -> ServedModel | None:
        """Return what the worker of a result serves; None where none replied or its state does not name the version."""
        key = result.worker, result.model_name, result.model_version
        served = self._look_up(*key) if result.worker else None
        if served is None:
            return self._known.get(key)
        if key not in self._known and len(self._known) >= _MOST:
            del self._known[next(iter(self._known))]
        self._known[key] = served
        return served


log = logging.getLogger("mqinfer.edge_agent")
_REFUSED = 3
"""Refused frames of each stream, before any other result, that end a run."""
_REFUSALS = (ModelNotFound, NoWorker, InvalidRequest)


class FirstResults:
    """Finds out from the first results whether any frame of a run can succeed. Not thread-safe.

    A run is refused if the broker's access rules forbid its first request, or if the first results of every stream all
    say that there is no such model or no worker for it, or that the model does not take such frames. One other result
    shows that frames can get through, and nothing is refused any more.

    Attributes:
        refusal: Why no frame can succeed; None while one may.
        is_decided: Whether that is known; then no further result changes it.

    Args:
        streams: How many streams the source has.
    """

    def __init__(self, streams: int) -> None:
        self.refusal: MqinferError | None = None
        self._streams = streams
        self._refused: Counter[str] = Counter()
        self.is_decided = False

    def add(self, result: InferResult) -> None:
        """Look at the outcome of a frame."""
        if self.is_decided or result.outcome in {Outcome.SUPERSEDED, Outcome.CANCELLED}:
            return
        error = error_from_code(result.error.code, result.error.message) if result.error else None
        if isinstance(error, NotAuthorized):
            self.refusal = error
        elif isinstance(error, _REFUSALS) and not isinstance(error, BadEncoding):  # those bytes are one frame's fault
            self._count(result.capture.source, error)
        else:
            self.is_decided = True
        self.is_decided = self.is_decided or self.refusal is not None

    def _count(self, source: str, error: MqinferError) -> None:
        """Count a refused frame; end the run once every stream has had only such ones."""
        self._refused[source] += 1
        if sum(count >= _REFUSED for count in self._refused.values()) >= self._streams:
            self.refusal = error
            if isinstance(error, InvalidRequest):
                why = f"the first ones all failed with {error.code}: {error}"
                self.refusal = ConfigError(f"the model takes no such frames; {why}")


class Results:
    """Writes finished frames to the sink, in the order of reading, on a thread of its own. Thread-safe.

    Args:
        sink: Receives every frame with its outcome; None to drop them.
        engines: Looks up what computed a result.
        on_written: Called after each frame that the sink has received.
        classes: Of the model's card.
        track: Whether objects get ids that follow them over the frames of a stream, in an output `ids`.
    """

    def __init__(
        self,
        sink: Sink | None,
        engines: Engines,
        on_written: Callable[[FinishedFrame], None],
        classes: Sequence[ClassInfo] = (),
        *,
        track: bool = False,
    ) -> None:
        self._sink = sink
        self._tracks: defaultdict[str, Tracks] | None = defaultdict(Tracks) if track else None
        self._engines = engines
        self._on_written = on_written
        self._classes = tuple(classes)
        self._queue: SimpleQueue[FinishedFrame | None] = SimpleQueue()  # bounded by the frames that the replay reads
        self._thread = threading.Thread(target=self._write_all, name="mqinfer-replay-sinks")
        self._large_at: float | None = None  # when the last large result was written
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
        while self._write_next(order):
            if self._large_at is not None and time.monotonic() - self._large_at > _RETURN_S:
                self._large_at = None
                return_freed_memory()

    def _write_next(self, order: ReadingOrder[FinishedFrame]) -> bool:
        """Write what has come and those that waited for it; return False at the end."""
        try:
            finished = self._queue.get(timeout=None if self._large_at is None else _RETURN_S)
        except Empty:
            return True
        if finished is None:
            return False
        for each in order.put(finished.pending.number, finished):
            self._write(each)
            self._on_written(each)
            if sum(output.nbytes for output in each.result.outputs.values()) >= _LARGE_BYTES:
                self._large_at = time.monotonic()
        return True

    def _write(self, finished: FinishedFrame) -> None:
        if self._sink is None or self.error:
            return  # the run ends with the first error; later ones would only repeat it
        frame = finished.pending.frame
        try:
            view = _view(finished, self._engines.of(finished.result), self._classes)
            if self._tracks is not None:
                view = _followed(view, self._tracks[frame.source], frame)
            self._sink.write(frame, view, finished.result)
        except MqinferError as error:
            self.error = error
        except Exception as error:  # a defect; it ends the run, and is raised there
            log.exception("writing the result of %s, frame %d", frame.source, frame.sequence)
            self.error = MqinferError(f"a sink failed: {error!r}")


def _followed(view: FrameView, tracks: Tracks, frame: Frame) -> FrameView:
    """Add an output with the ids of the boxes, unless the model has one; a frame without an answer changes nothing."""
    if "boxes" not in view.outputs or "ids" in view.outputs:
        return view
    found = view.answer.boxes
    boxes = np.array([each.box for each in found]).reshape(-1, 4)
    own = tracks.follow(
        frame.capture_time_ns / 1e9, boxes, [each.score for each in found], [each.number for each in found]
    )
    ids = np.full(view.outputs["scores"].size, -1, np.int64)
    ids[[each.row for each in found]] = own
    return replace(view, outputs={**view.outputs, "ids": ids})


def _view(finished: FinishedFrame, served: ServedModel | None, classes: Sequence[ClassInfo]) -> FrameView:
    prepared, result = finished.prepared, finished.result
    if prepared is None:
        return replace(NO_VIEW, times=finished.times, served=served, classes=classes)
    try:
        pixels = prepared.picture()
    except (BadImage, BadEncoding):  # a JPEG that passed untouched; its outcome is the same error
        pixels = NO_VIEW.pixels
    outputs = result.outputs if result.outcome is Outcome.OK else {}
    sent = prepared.tensors[0] if prepared.tensors else None  # a cascade answers without sending anything
    return FrameView(pixels, prepared.placement, outputs, sent, finished.times, served, classes)
