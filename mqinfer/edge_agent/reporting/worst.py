"""The frames of a run that are worth a look, as small pictures: slow ones, failed ones, those with low scores."""

from __future__ import annotations

import heapq
from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from mqinfer.answers.outputs import Picture
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.drawing.overlay import draw_areas, draw_boxes, encode_picture
from mqinfer.protocol.types import Outcome

_MOST = 6
_MOST_OF_ONE_CODE = 2
_WIDTH, _QUALITY = 420, 70


@dataclass(frozen=True, slots=True)
class KeptFrame:
    """A frame with what became of it.

    Attributes:
        source: Its stream.
        sequence: Its number there.
        stamp_ns: Its capture stamp.
        fact: What makes it one of the worst, such as `412 ms`.
        worker: Which replied.
        jpeg: The frame with its mask or boxes, empty where it was never decoded.
    """

    source: str
    sequence: int
    stamp_ns: int
    fact: str
    worker: str
    jpeg: bytes


class WorstFrames:
    """Keeps some of the frames that it is shown, and a small picture of each."""

    def __init__(self) -> None:
        self._count = 0
        self._slowest: list[tuple[float, int, KeptFrame]] = []  # heaps: the least of those that are kept is first
        self._unsure: list[tuple[float, int, KeptFrame]] = []
        self._failed: list[KeptFrame] = []
        self._codes: Counter[str] = Counter()

    @property
    def slowest(self) -> list[KeptFrame]:
        """The results that took longest, the longest first."""
        return _best_first(self._slowest)

    @property
    def unsure(self) -> list[KeptFrame]:
        """The results whose best score is lowest, the lowest first; none of models without scores."""
        return _best_first(self._unsure)

    @property
    def failed(self) -> list[KeptFrame]:
        """The first frames without a result, at most two of each error."""
        return list(self._failed)

    def add(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Look at a frame.

        Raises:
            MissingExtra: There is a picture to keep, and OpenCV is not installed.
        """
        self._count += 1
        if result.outcome is Outcome.OK:
            latency = result.timings.total / 1e6
            self._rank(self._slowest, latency, f"{latency:.1f} ms", (frame, view, result))
            score = self._score(view)
            if score is not None:
                self._rank(self._unsure, -score, f"score {score:.3f}", (frame, view, result))
        elif result.outcome is not Outcome.SUPERSEDED:
            code = result.error.code if result.error else result.outcome.value
            if len(self._failed) < _MOST and self._codes[code] < _MOST_OF_ONE_CODE:
                self._codes[code] += 1
                message = f"{code}: {result.error.message}" if result.error else code
                self._failed.append(self._keep(message, (frame, view, result)))

    def _rank(
        self,
        heap: list[tuple[float, int, KeptFrame]],
        badness: float,
        fact: str,
        shown: tuple[Frame, FrameView, InferResult],
    ) -> None:
        if len(heap) == _MOST and badness <= heap[0][0]:
            return
        entry = badness, -self._count, self._keep(fact, shown)  # of equal ones the first is worse
        (heapq.heappush if len(heap) < _MOST else heapq.heapreplace)(heap, entry)

    def _score(self, view: FrameView) -> float | None:
        if view.answer.boxes:
            return view.answer.boxes[0].score
        return view.answer.top[0].score if view.answer.top else None

    def _keep(self, fact: str, shown: tuple[Frame, FrameView, InferResult]) -> KeptFrame:
        frame, view, result = shown
        jpeg = encode_picture(self._draw(view), ".jpg", _QUALITY) if view.pixels.size else b""
        return KeptFrame(frame.source, frame.sequence, frame.capture_time_ns, fact, result.worker, jpeg)

    def _draw(self, view: FrameView) -> Picture:
        """Draw masks over the frame, make it small, and draw boxes, whose labels stay legible so."""
        shown = draw_areas(view)
        height, width = shown.shape[:2]
        factor = min(1.0, _WIDTH / width, _WIDTH / height)
        size = max(1, round(width * factor)), max(1, round(height * factor))
        small: Picture = np.asarray(opencv().resize(shown, size, interpolation=opencv().INTER_AREA))
        boxes = [replace(each, box=tuple(side * factor for side in each.box)) for each in view.answer.boxes]
        return draw_boxes(small, boxes, view.classes) if boxes else small


def _best_first(heap: list[tuple[float, int, KeptFrame]]) -> list[KeptFrame]:
    return [kept for *_, kept in sorted(heap, key=lambda entry: entry[:2], reverse=True)]
