"""How far two answers to the same frame differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from mqinfer.answers.outputs import DetectedBox, find_top
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.images.placement import UNKNOWN
from mqinfer.lab.scores import match_boxes
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array


class AnswerKind(StrEnum):
    """What is compared of two answers."""

    MASK = "mask"
    BOXES = "boxes"
    CLASS = "class"
    VALUES = "values"

    @property
    def meaning(self) -> str:
        """What a disagreement of 0 to 1 counts."""
        return _MEANINGS[self]


_MEANINGS = {
    AnswerKind.MASK: "share of the pixels that differ, of those that a model saw",
    AnswerKind.BOXES: "share of the boxes without a counterpart (overlap 0.5, same class)",
    AnswerKind.CLASS: "1 where the best class differs",
    AnswerKind.VALUES: "share of the values that differ",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """Two answers compared.

    Attributes:
        kind: What was compared.
        share: The disagreement, 0 to 1.
        only_first: Boxes of the first answer without a counterpart.
        only_second: Those of the second.
    """

    kind: AnswerKind
    share: float
    only_first: tuple[DetectedBox, ...] = field(default=())
    only_second: tuple[DetectedBox, ...] = field(default=())


def difference(one: FrameView, other: FrameView, classes: Sequence[ClassInfo]) -> Difference:
    """Compare two answers to the same frame; masks and boxes in the frame's pixels.

    Args:
        one: First model's answer.
        other: Second model's answer.
        classes: Of the first model's card.
    """
    if one.mask is not None and other.mask is not None:
        seen = (one.mask != UNKNOWN) | (other.mask != UNKNOWN)
        return Difference(AnswerKind.MASK, float((one.mask != other.mask).sum() / max(1, int(seen.sum()))))
    if "boxes" in one.outputs and "boxes" in other.outputs:
        return _boxes(one.boxes, other.boxes)
    tops = find_top(one.outputs, classes), find_top(other.outputs, classes)
    if tops[0] and tops[1]:
        return Difference(AnswerKind.CLASS, float(tops[0][0].number != tops[1][0].number))
    return Difference(AnswerKind.VALUES, _values(one, other))


def _boxes(ones: Sequence[DetectedBox], others: Sequence[DetectedBox]) -> Difference:
    matches = match_boxes(ones, others)
    taken = set(matches)
    alone = tuple(box for box, match in zip(ones, matches, strict=True) if match is None)
    left = tuple(box for number, box in enumerate(others) if number not in taken)
    total = len(ones) + len(others)
    return Difference(AnswerKind.BOXES, (len(alone) + len(left)) / total if total else 0.0, alone, left)


def _values(one: FrameView, other: FrameView) -> float:
    """Return the share of elements that differ, over all outputs; one that only one answer has differs altogether."""
    differing = total = 0
    for name in {*one.outputs, *other.outputs}:
        pair = [view.outputs[name] for view in (one, other) if name in view.outputs]
        size = max(each.size for each in pair)
        total += size
        differing += _differing(pair[0], pair[1]) if len(pair) == 2 and pair[0].shape == pair[1].shape else size
    return differing / total if total else 0.0


def _differing(one: Array, other: Array) -> int:
    both_nan = (one != one) & (other != other)  # noqa: PLR0124 - only NaN differs from itself; strings have no isnan
    return int(np.count_nonzero((one != other) & ~both_nan))
