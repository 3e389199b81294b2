"""Names of an object's key points, and the lines between them; COCO's person where a class names none."""

from __future__ import annotations

from collections.abc import Sequence

from mqinfer.answers.outputs import DetectedBox, Keypoint
from mqinfer.protocol.card import ClassInfo

_SIDES = ("eye", "ear", "shoulder", "elbow", "wrist", "hip", "knee", "ankle")
COCO_NAMES = ("nose", *(f"{side}_{part}" for part in _SIDES for side in ("left", "right")))
"""The 17 key points of COCO's class `person`, in their order."""
_LIMBS = "nose eye ear shoulder elbow wrist, shoulder hip knee ankle"
_ACROSS = (("left_eye", "right_eye"), ("left_shoulder", "right_shoulder"), ("left_hip", "right_hip"))
COCO_SKELETON = (
    *_ACROSS,
    *(
        tuple(each if each == "nose" else f"{side}_{each}" for each in pair)
        for limb in _LIMBS.split(", ")
        for pair in zip(limb.split(), limb.split()[1:], strict=False)
        for side in ("left", "right")
    ),
)
"""The 19 lines between them."""
LEAST_DRAWN = 0.3
"""Points of a lower score are not drawn: of those that are out of sight models return guesses."""


def named_keypoints(box: DetectedBox, classes: Sequence[ClassInfo]) -> dict[str, Keypoint]:
    """Return an object's key points by their names; the number is the name of one that has none."""
    names = _of(box, classes)[0]
    return {names[number] if number < len(names) else str(number): point for number, point in enumerate(box.keypoints)}


def drawn_keypoints(
    box: DetectedBox, classes: Sequence[ClassInfo]
) -> tuple[list[Keypoint], list[tuple[Keypoint, Keypoint]]]:
    """Return the key points of an object that are in sight, and the lines between them."""
    shown = {name: point for name, point in named_keypoints(box, classes).items() if point[2] >= LEAST_DRAWN}
    lines = _of(box, classes)[1]
    return [*shown.values()], [(shown[one], shown[other]) for one, other in lines if {one, other} <= shown.keys()]


def _of(box: DetectedBox, classes: Sequence[ClassInfo]) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
    info = classes[box.number] if box.number is not None and 0 <= box.number < len(classes) else None
    if info is not None and info.keypoints:
        return info.keypoints, info.skeleton
    return (COCO_NAMES, COCO_SKELETON) if len(box.keypoints) == len(COCO_NAMES) else ((), ())
