"""What a comparison counts: one tally for each pair of models, one for each model against the truth."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.answers.outputs import Mask, class_name, find_top
from mqinfer.bags.frame import Frame
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.answers import Answer
from mqinfer.images.placement import UNKNOWN
from mqinfer.lab.comparing.difference import AnswerKind, Difference, difference
from mqinfer.lab.comparing.labels import TrueFrame, number_of
from mqinfer.lab.comparing.tolerance import Deviation, Tolerances
from mqinfer.lab.comparing.truth import detected
from mqinfer.lab.scores import DetectionScorer, confusion, segmentation_score
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import ConfigError

_NUMBERS = UNKNOWN
"""Class numbers of a mask. 255 is none: of a truth as in Cityscapes and Pascal VOC, of a model what it did not see."""


def _count(mask: Mask, true: Mask, classes: int) -> npt.NDArray[np.int64]:
    """Count the pixels of a frame that the model saw by true class (rows) and predicted class (columns)."""
    seen = mask != UNKNOWN
    return confusion(mask, true, classes) if seen.all() else confusion(mask[seen], true[seen], classes)


def _no_counts() -> npt.NDArray[np.int64]:
    return np.zeros((_NUMBERS, _NUMBERS), np.int64)


def _check_size(frame: Frame, labelled: tuple[int, ...], own: tuple[int, ...], expected: str) -> None:
    if labelled != own:
        sizes = [f"{width}x{height}" for width, height in (labelled, own)]
        raise ConfigError(
            f"the truth of {frame.source}, frame {frame.sequence}, is {sizes[0]} pixels, the frame {sizes[1]}; "
            f"expected {expected}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Worst:
    """A frame on which two models disagree."""

    frame: Frame
    one: Answer
    other: Answer
    found: Difference


@dataclass(slots=True)
class PairTally:
    """Two models compared over the frames that both answered.

    Attributes:
        classes: Of the first model's card.
        tolerances: Of their numbers.
        keep: How many of the frames with the largest disagreement are kept.
        shares: Disagreement of each frame.
        kinds: Frames by what was compared.
        unanswered: Frames without a result of both.
        outputs: What each output differs by over those frames.
    """

    classes: Sequence[ClassInfo]
    tolerances: Tolerances
    keep: int
    shares: list[float] = field(default_factory=list)
    kinds: Counter[AnswerKind] = field(default_factory=Counter)
    unanswered: int = 0
    outputs: dict[str, Deviation] = field(default_factory=dict)
    _counts: npt.NDArray[np.int64] = field(default_factory=_no_counts)
    _boxes: Counter[str] = field(default_factory=Counter)
    _worst: list[tuple[float, int, Worst]] = field(default_factory=list)

    def add(self, frame: Frame, one: Answer, other: Answer) -> float | None:
        """Compare the answers to a frame; return their disagreement, None where one has no result."""
        if not (one.is_ok and other.is_ok):
            self.unanswered += 1
            return None
        found = difference(one.view, other.view, self.classes, self.tolerances)
        self.shares.append(found.share)
        self.kinds[found.kind] += 1
        for name, each in found.outputs.items():
            self.outputs[name] = self.outputs[name] + each if name in self.outputs else each
        if one.view.answer.mask is not None and other.view.answer.mask is not None:
            self._counts += _count(other.view.answer.mask, one.view.answer.mask, _NUMBERS)
        self._boxes["only_first"] += len(found.only_first)
        self._boxes["only_second"] += len(found.only_second)
        self._boxes["common"] += len(one.view.answer.boxes) - len(found.only_first)
        if found.share and self.keep:
            entry = found.share, -len(self.shares), Worst(frame, one, other, found)
            (heapq.heappushpop if len(self._worst) == self.keep else heapq.heappush)(self._worst, entry)
        return found.share

    @property
    def mean(self) -> float:
        """Mean disagreement over the frames; 1 where none was compared."""
        return float(np.mean(self.shares)) if self.shares else 1.0

    @property
    def worst(self) -> list[Worst]:
        """The frames with the largest disagreement, the largest first."""
        return [each for _, _, each in sorted(self._worst, key=lambda entry: entry[:2], reverse=True)]

    def describe(self) -> dict[str, Any]:
        """Return the tally as JSON has it."""
        described: dict[str, Any] = {
            "frames": len(self.shares),
            "unanswered": self.unanswered,
            "frames_that_differ": sum(share > 0 for share in self.shares),
            "disagreement": {kind: kind.meaning for kind in self.kinds},
            "mean": self.mean,
            "p95": float(np.quantile(self.shares, 0.95)) if self.shares else 1.0,
            "largest": max(self.shares, default=1.0),
        }
        if self.kinds[AnswerKind.MASK]:
            names = [class_name(number, self.classes) for number in range(_NUMBERS)]
            score = segmentation_score(self._counts, names)
            described |= {"mean_iou": score.mean_iou, "iou": dict(score.per_class)}
        if self.kinds[AnswerKind.BOXES]:
            described["boxes"] = dict(self._boxes)
        if self.outputs:
            described["outputs"] = {name: each.describe() for name, each in self.outputs.items()}
        return described


@dataclass(slots=True)
class TruthTally:
    """One model against the truth.

    Attributes:
        classes: Of the model's card.
        renamed: Which of them a class of the truth is, where it has another name.
        frames: Frames with a result and a truth.
    """

    classes: Sequence[ClassInfo]
    renamed: Mapping[str, str] = field(default_factory=dict)
    frames: int = 0
    _counts: npt.NDArray[np.int64] | None = None
    _labels: list[bool] = field(default_factory=list)
    _boxes: DetectionScorer | None = None

    def add(self, frame: Frame, view: FrameView, true: TrueFrame) -> None:
        """Count a frame with a result.

        Raises:
            ConfigError: The truth is of another size, or of classes that the model does not have.
            InvalidRequest: The mask has numbers that are no class of the model.
        """
        if true.mask is not None and view.answer.mask is not None:
            self._add_mask(frame, view, true)
        elif true.label is not None and (tops := find_top(view.outputs, self.classes)):
            number = number_of(true.label, self.classes, self.renamed)
            if number is None:
                return
            self._labels.append(tops[0].number == number)
        elif true.boxes is not None and "boxes" in view.outputs:
            _check_size(frame, true.size or view.placement.frame, view.placement.frame, "labels of its own pixels")
            self._boxes = self._boxes or DetectionScorer()
            self._boxes.add(view.answer.boxes, *detected(true.boxes, self.classes, self.renamed))
        else:
            return
        self.frames += 1

    def _add_mask(self, frame: Frame, view: FrameView, true: TrueFrame) -> None:
        assert view.answer.mask is not None  # noqa: S101 - the caller looked
        assert true.mask is not None  # noqa: S101
        _check_size(frame, true.mask.shape[::-1], view.answer.mask.shape[::-1], "one label for each pixel of the frame")
        classes = len(self.classes) or _NUMBERS
        if self._counts is None:
            self._counts = np.zeros((classes, classes), np.int64)
        self._counts += _count(view.answer.mask, true.mask, classes)

    def describe(self) -> dict[str, Any]:
        """Return the scores as JSON has them."""
        described: dict[str, Any] = {"frames": self.frames}
        if self._counts is not None:
            names = [class_name(number, self.classes) for number in range(len(self._counts))]
            score = segmentation_score(self._counts, names)
            total = int(self._counts.sum())
            right = float(self._counts.diagonal().sum() / total) if total else 0.0
            described |= {"mean_iou": score.mean_iou, "iou": dict(score.per_class), "pixel_accuracy": right}
        if self._labels:
            described["accuracy"] = float(np.mean(self._labels))
        if self._boxes is not None:
            found = self._boxes.score()
            named = {class_name(int(str(number)), self.classes): each for number, each in found.per_class.items()}
            described |= {"map_50": found.map_50, "map_50_95": found.map_50_95, "map_by_class": named}
        return described
