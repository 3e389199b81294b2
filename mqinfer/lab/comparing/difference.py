"""How far two answers to the same frame differ."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from mqinfer.answers.outputs import DetectedBox, Mask, find_top
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.images.placement import UNKNOWN
from mqinfer.lab.comparing.tolerance import Deviation, Tolerances, deviation
from mqinfer.lab.scores import match_boxes
from mqinfer.protocol.card import ClassInfo


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
    AnswerKind.CLASS: "1 where the best class differs, unless all numbers are within the tolerance",
    AnswerKind.VALUES: "share of the values beyond the tolerance",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """Two answers compared.

    Attributes:
        kind: What was compared.
        share: The disagreement, 0 to 1.
        only_first: Boxes of the first answer without a counterpart.
        only_second: Those of the second.
        outputs: What each output differs by, as numbers; beside class masks only those with a tolerance of their own.
    """

    kind: AnswerKind
    share: float
    only_first: tuple[DetectedBox, ...] = field(default=())
    only_second: tuple[DetectedBox, ...] = field(default=())
    outputs: Mapping[str, Deviation] = field(default_factory=dict)


def difference(one: FrameView, other: FrameView, classes: Sequence[ClassInfo], tolerances: Tolerances) -> Difference:
    """Compare two answers to the same frame; masks and boxes in the frame's pixels.

    Args:
        one: First model's answer.
        other: Second model's answer.
        classes: Of the first model's card.
        tolerances: Of their numbers.
    """
    if one.answer.mask is not None and other.answer.mask is not None:
        outputs = _deviations(one, other, tolerances, set(tolerances.by_output))
        return Difference(AnswerKind.MASK, _pixels(one.answer.mask, other.answer.mask), outputs=outputs)
    outputs = _deviations(one, other, tolerances, {*one.outputs, *other.outputs})
    if "boxes" in one.outputs and "boxes" in other.outputs:
        return _boxes(one.answer.boxes, other.answer.boxes, outputs)
    beyond, total = (sum(getattr(each, count) for each in outputs.values()) for count in ("outside", "values"))
    tops = find_top(one.outputs, classes), find_top(other.outputs, classes)
    if tops[0] and tops[1]:
        differs = beyond > 0 and tops[0][0].number != tops[1][0].number
        return Difference(AnswerKind.CLASS, float(differs), outputs=outputs)
    return Difference(AnswerKind.VALUES, beyond / max(1, total), outputs=outputs)


def _pixels(one: Mask, other: Mask) -> float:
    seen = (one != UNKNOWN) | (other != UNKNOWN)
    return float((one != other).sum() / max(1, int(seen.sum())))


def _deviations(
    one: FrameView, other: FrameView, tolerances: Tolerances, names: Collection[str]
) -> dict[str, Deviation]:
    """Compare outputs of these names, in the first answer's order."""
    pairs = {
        name: (one.outputs.get(name), other.outputs.get(name))
        for name in {**one.outputs, **other.outputs}
        if name in names
    }
    return {name: deviation(*pair, tolerances.of(name, pair[0])) for name, pair in pairs.items()}


def _boxes(ones: Sequence[DetectedBox], others: Sequence[DetectedBox], outputs: Mapping[str, Deviation]) -> Difference:
    matches = match_boxes(ones, others)
    taken = set(matches)
    alone = tuple(box for box, match in zip(ones, matches, strict=True) if match is None)
    left = tuple(box for number, box in enumerate(others) if number not in taken)
    total = len(ones) + len(others)
    return Difference(AnswerKind.BOXES, (len(alone) + len(left)) / total if total else 0.0, alone, left, outputs)
