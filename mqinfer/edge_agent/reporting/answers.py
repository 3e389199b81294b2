"""Collect what a model answered over a run: shares or counts of classes, scores, and the ends of other outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mqinfer.answers.outputs import DetectedBox, TopClass, extremes, find_mask
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.logs import printable
from mqinfer.protocol.card import ClassInfo

PIXELS = "share of the pixels by class, mean, %"
OBJECTS = "objects a result by class, mean"
BEST = "share of the results by their best class, %"
"""What is counted of classes, as charts name it."""
NOTHING = "no object was found"
"""In place of a class, of detectors that found nothing."""
_MOST_CLASSES = 256
_MOST_SCORES = 10_000
_MOST_OUTPUTS = 32
_LONGEST = 80
"""Bounds of what names, numbers and shapes from outside take; further ones are left out, classes counted as `other`."""
_WIDEST = 1e6
"""Scores beyond this are counted as this."""
_DETECTIONS = frozenset({"boxes", "scores", "classes", "count", "masks"})

Counted = tuple[str, str]
"""What is counted of a class, and its name."""


@dataclass(slots=True)
class OutputRange:
    """The numbers of an output over a run.

    Attributes:
        shape: Of the first result.
        results: How many had finite numbers in it.
        least: The least finite number.
        greatest: The greatest one.
    """

    shape: tuple[int, ...]
    results: int
    least: float
    greatest: float


class AnswerRecorder:
    """Collects answers within a bound; what belongs to one moment is returned for the run's series.

    Attributes:
        scores: Boxes, or results of a classifier, by score in hundredths.
        outputs: Outputs without classes, by name.
        colours: Those of the card by name of the class, as `#804080`; black, the default, is none.

    Args:
        classes: Of the model's card.
    """

    def __init__(self, classes: Sequence[ClassInfo]) -> None:
        self.scores: Counter[float] = Counter()
        self.outputs: dict[str, OutputRange] = {}
        self.colours = {_short(each.name): f"#{bytes(each.colour).hex()}" for each in classes if any(each.colour)}
        self._names: set[str] = set()

    def add(self, view: FrameView) -> Mapping[Counted, float]:
        """Take a result, and return what it counts of each class."""
        top = view.answer.top[:1]
        self._note_outputs(view, top)
        if view.answer.mask is not None:
            shares = view.answer.shares.items()
            return self._counted(PIXELS, {name: 100 * share for name, share in shares if share})
        self._note_scores([*(box.score for box in view.answer.boxes), *(each.score for each in top)])
        if "boxes" in view.outputs:
            return self._counted(OBJECTS, Counter(map(_name, view.answer.boxes)) or {NOTHING: 0.0})
        return self._counted(BEST, {each.name: 100.0 for each in top})

    def _counted(self, what: str, counts: Mapping[str, float]) -> dict[Counted, float]:
        found: dict[Counted, float] = {}
        for name, count in counts.items():
            short = _short(name)
            if short not in self._names and len(self._names) >= _MOST_CLASSES:
                short = "other"
            self._names.add(short)
            found[what, short] = found.get((what, short), 0) + count
        return found

    def _note_scores(self, scores: Sequence[float]) -> None:
        for score in scores:
            rounded = round(max(-_WIDEST, min(score, _WIDEST)), 2)
            if rounded in self.scores or len(self.scores) < _MOST_SCORES:
                self.scores[rounded] += 1

    def _note_outputs(self, view: FrameView, top: Sequence[TopClass]) -> None:
        found = find_mask(view.outputs, view.placement.picture)
        shown = {found[0]} if found else _DETECTIONS if "boxes" in view.outputs else frozenset[str]()
        for name, output in view.outputs.items():
            ends = None if name in shown or (top and len(view.outputs) == 1) else extremes(output)
            if ends is None or (name not in self.outputs and len(self.outputs) >= _MOST_OUTPUTS):
                continue
            known = self.outputs.setdefault(name, OutputRange(output.shape, 0, *ends))
            known.results += 1
            known.least, known.greatest = min(known.least, ends[0]), max(known.greatest, ends[1])


def _name(box: DetectedBox) -> str:
    return "without a class" if box.number is None else box.name


def _short(name: str) -> str:
    """Return a name of a class as charts have it."""
    return printable(name[:_LONGEST])
