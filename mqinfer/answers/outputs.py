"""What the outputs of a result mean: class masks, boxes and a classifier's best classes.

They are found here, and brought back to the pixels of the picture that they were found in; `words` describes them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from mqinfer.images.placement import Placement
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array

Mask = npt.NDArray[np.uint8]
"""Class numbers `[height, width]`."""

Picture = npt.NDArray[np.uint8]
"""RGB pixels `[height, width, 3]`, 0 to 255."""

PRESENT, CONFIDENCE = "present", "confidence"
"""Outputs of each answer of a cascade with a target; a model for masks may have an output `confidence`, too."""

_MANY_PIXELS = 1 << 17
"""From here on, counting pairs of pixels is cheaper than counting pixels."""

SMALL_OUTPUT = 64
"""Outputs of up to this many elements are written in full."""


def find_mask(outputs: Mapping[str, Array], picture: tuple[int, int] | None = None) -> tuple[str, Mask] | None:
    """Find the class mask among a result's outputs.

    A mask is an integer or boolean output with exactly two axes longer than 1 (so `[1, H, W]`, `[1, H, W, 1]`,
    `[1, 1, H, W]` and `[H, W]` are all one) and values of 0 to 255. The first one counts; `boxes` are none, and
    `masks` beside them are those of instances.

    Args:
        outputs: Decoded arrays by name.
        picture: Width and height of what the model saw, where that is known: a mask of a picture that is one pixel wide
            or high has an axis of 1.

    Returns:
        Its name and class numbers; None if no output is a mask.
    """
    for name, output in outputs.items():
        if name in {"masks", "boxes"} and "boxes" in outputs:
            continue
        plain = _without_ones(output, picture)
        is_mask = plain.ndim == 2 and plain.dtype.kind in "bui" and plain.size > 0
        if is_mask and plain.min() >= 0 and plain.max() <= 255:
            return name, plain.astype(np.uint8)
    return None


def _without_ones(output: Array, picture: tuple[int, int] | None) -> Array:
    """Drop axes of 1, but those of the picture."""
    is_line = picture is not None and 1 in picture and output.size == picture[0] * picture[1]
    return output.reshape(picture[::-1]) if picture is not None and is_line else np.squeeze(output)


def class_name(number: int, classes: Sequence[ClassInfo]) -> str:
    """Return the name of a class; a number that is not on the model's card is its own name."""
    return classes[number].name if 0 <= number < len(classes) else str(number)


def class_shares(
    mask: Mask, classes: Sequence[ClassInfo], seen: npt.NDArray[np.bool_] | None = None
) -> dict[str, float]:
    """Return the share of each class in the pixels, from 0 to 1: all classes of the card, and others that occur.

    Args:
        mask: Class numbers.
        classes: Of the model's card.
        seen: Which pixels have a class; the share of the others is that of `unknown`. None if all have one.
    """
    counts = _count(mask.ravel() if seen is None else mask[seen])
    shares = {
        class_name(number, classes): round(int(count) / mask.size, 6)
        for number, count in enumerate((*counts, *(0 for _ in classes[counts.size :])))
        if count or number < len(classes)
    }
    if seen is not None:
        shares["unknown"] = round(1.0 - np.count_nonzero(seen) / mask.size, 6)
    return shares


def _count(numbers: Mask) -> npt.NDArray[np.int64]:
    """Return how often each number from 0 to 255 occurs.

    `np.bincount` widens each number to 8 bytes first, which takes most of its time: of pairs there are half as many.
    """
    if numbers.size < _MANY_PIXELS:
        return np.bincount(numbers, minlength=256)
    even = numbers.size // 2 * 2
    pairs = np.bincount(numbers[:even].view(np.uint16), minlength=65536).reshape(256, 256)
    counts: npt.NDArray[np.int64] = pairs.sum(axis=0) + pairs.sum(axis=1) + np.bincount(numbers[even:], minlength=256)
    return counts


def extremes(output: Array) -> tuple[float, float] | None:
    """Return the least and the greatest number that is finite; None if there is none."""
    if output.dtype.kind not in "fiu":
        return None
    finite = output if output.dtype.kind != "f" else output[np.isfinite(output)]
    return (finite.min().item(), finite.max().item()) if finite.size else None


def strings_of(output: Array) -> list[bytes]:
    """Return the strings of an output in row-major order, as bytes."""
    return [each if isinstance(each, bytes) else str(each).encode() for each in output.ravel().tolist()]


MOST_BOXES = 100
"""Boxes of a result that are kept, best first."""


Keypoint = tuple[float, float, float]
"""x and y in pixels, and the score of one point of an object, such as an elbow."""


@dataclass(frozen=True, slots=True)
class DetectedBox:
    """One detected object.

    Attributes:
        box: Left, top, right and bottom, in pixels; 0 is the outer edge of the first pixel.
        score: Of the class, usually 0 to 1.
        number: Of the class; None if the model has no classes.
        name: Of the class, where whoever found the box knew the model's card.
        id: Of the object over several pictures, where it is followed; else None.
        row: Of the outputs, to which its mask belongs.
        keypoints: Of the object, in the model's order.
    """

    box: tuple[float, float, float, float]
    score: float
    number: int | None = None
    name: str = ""
    id: int | None = None
    row: int = field(default=0, compare=False, repr=False)
    keypoints: tuple[Keypoint, ...] = ()


def find_boxes(outputs: Mapping[str, Array], most: int | None = MOST_BOXES) -> tuple[DetectedBox, ...]:
    """Find boxes among a result's outputs, the best first.

    Boxes are an output `boxes` `[n, 4]` (left, top, right, bottom in pixels of the model's input) with `scores` `[n]`,
    and optionally `classes` `[n]`, `ids` `[n]` (below 0 for none) and `keypoints` `[n, K, 3]` (x, y, score), each with
    or without a leading axis of 1. An output `count` is the number of valid rows if they are padded. Rows that are not
    finite, or that end before they begin, are left out; key points that are not finite are at 0, with a score of 0.

    Args:
        outputs: Decoded arrays by name.
        most: How many boxes are kept; None for all.
    """
    if "boxes" not in outputs or "scores" not in outputs:
        return ()
    boxes = _unbatched(outputs["boxes"], 2)
    scores, numbers, ids, counts = (_unbatched(outputs.get(name), 1) for name in ("scores", "classes", "ids", "count"))
    if not _fit(boxes, scores):
        return ()
    end = int(counts.item()) if counts.size == 1 and counts.dtype.kind in "iu" else len(scores)
    finite = np.isfinite(boxes[:end]).all(axis=1) & np.isfinite(scores[:end])
    chosen = np.flatnonzero(finite & np.less_equal(boxes[:end, :2], boxes[:end, 2:]).all(axis=1))
    best = chosen[np.argsort(-scores.astype(np.float64)[chosen], kind="stable")[:most]].tolist()
    number, own = _whole(numbers, scores.shape), _of_object(_whole(ids, scores.shape))
    points = _keypoints(outputs.get("keypoints"), len(scores))
    return tuple(
        DetectedBox(tuple(boxes[row].tolist()), float(scores[row]), number(row), "", own(row), row, points(row))
        for row in best
    )


def _fit(boxes: Array, scores: Array) -> bool:
    """Return whether each row of one output is a box, and each number of the other its score."""
    are_boxes = boxes.ndim == 2 and boxes.shape[1] == 4 and boxes.dtype.kind in "fiu"
    return are_boxes and scores.dtype.kind == "f" and scores.shape == boxes.shape[:1]


def _whole(numbers: Array, shape: tuple[int, ...]) -> Callable[[int], int | None]:
    """Return what finds a row's number in an output that has one for each box: its class, or its id; None without."""
    known = numbers.shape == shape and numbers.dtype.kind in "iuf" and bool(np.isfinite(numbers).all())
    return lambda row: int(numbers[row]) if known else None


def _of_object(row_id: Callable[[int], int | None]) -> Callable[[int], int | None]:
    """Return what finds a row's id; a number below 0 is none."""
    return lambda row: None if (found := row_id(row)) is None or found < 0 else found


def _keypoints(output: Array | None, rows: int) -> Callable[[int], tuple[Keypoint, ...]]:
    """Return what finds a row's key points."""
    points = _unbatched(output, 3)
    if points.ndim != 3 or points.shape[::2] != (rows, 3) or points.dtype.kind != "f":
        return lambda _: ()
    finite = np.where(np.isfinite(points).all(axis=2, keepdims=True), points, 0)
    return lambda row: tuple(map(tuple, finite[row].tolist()))


def label(box: DetectedBox, classes: Sequence[ClassInfo]) -> str:
    """Return the label of a box: `car 0.87`, or `car #7 0.87` with the id of its object."""
    name = "" if box.number is None else class_name(box.number, classes)
    own = "" if box.id is None else f"#{box.id}"
    return " ".join(filter(None, (name, own, f"{box.score:.2f}")))


def _unbatched(output: Array | None, axes: int) -> Array:
    """Drop a batch axis of 1 before this many axes."""
    if output is None:
        return np.zeros(0)
    return output.reshape(output.shape[1:]) if output.ndim > axes and output.shape[0] == 1 else output


def placed_boxes(
    outputs: Mapping[str, Array],
    placement: Placement,
    classes: Sequence[ClassInfo] | None = None,
    most: int | None = MOST_BOXES,
) -> tuple[DetectedBox, ...]:
    """Return the boxes among outputs in pixels of the picture, the best first, with names where classes are given."""
    found = _placed_keypoints(find_boxes(outputs, most), placement)
    moved = placement.boxes_to_frame(np.array([each.box for each in found]).reshape(-1, 4)).tolist()
    names = ["" if classes is None or each.number is None else class_name(each.number, classes) for each in found]
    return tuple(
        replace(each, box=tuple(sides), name=name) for each, sides, name in zip(found, moved, names, strict=True)
    )


def _placed_keypoints(found: Sequence[DetectedBox], placement: Placement) -> Sequence[DetectedBox]:
    """Move key points to the picture, at its edge where they are outside."""
    points = np.array([point for each in found for point in each.keypoints])
    if not points.size:
        return found
    places = placement.boxes_to_frame(points[:, [0, 1, 0, 1]])[:, :2].tolist()
    moved = iter([(x, y, score) for (x, y), score in zip(places, points[:, 2].tolist(), strict=True)])
    return [replace(each, keypoints=tuple(islice(moved, len(each.keypoints)))) for each in found]


def placed_mask(outputs: Mapping[str, Array], placement: Placement) -> Mask | None:
    """Return the class mask among outputs in the picture's size, 255 where the model did not see it; None if none."""
    found = find_mask(outputs, placement.picture)
    return placement.mask_to_frame(found[1]) if found else None


MOST_CLASSES = 5
"""Classes of a result that are kept, best first."""


@dataclass(frozen=True, slots=True)
class TopClass:
    """A class with its score, as the model has it: probability or logit."""

    name: str
    number: int
    score: float


def find_top(outputs: Mapping[str, Array], classes: Sequence[ClassInfo] = ()) -> tuple[TopClass, ...]:
    """Find the best classes of a result, at most `MOST_CLASSES`; of equal ones the lower number first.

    Scores are numbers along one axis; all other axes are 1 (`[1, C]`, `[C]`, `[1, C, 1, 1]`). With labels they are the
    first output of as many numbers as labels; without they are the only output, of floats. A result with a mask or with
    boxes has none. Scores that are not finite are left out.

    Args:
        outputs: Decoded arrays by name.
        classes: Of the model's card.
    """
    scores = _scores(outputs, len(classes))
    if scores is None:
        return ()
    finite = np.flatnonzero(np.isfinite(scores))
    best = finite[np.argsort(-scores[finite], kind="stable")[:MOST_CLASSES]].tolist()
    return tuple(TopClass(class_name(number, classes), number, float(scores[number])) for number in best)


def _scores(outputs: Mapping[str, Array], labels: int) -> npt.NDArray[np.float64] | None:
    """Return the first row of scores: one of a score for each label, or of floats where it is the only output."""
    if "boxes" in outputs or find_mask(outputs) or not (labels or len(outputs) == 1):
        return None
    for output in outputs.values():
        if _is_row(output) and output.dtype.kind in ("fiu" if labels else "f") and labels in {0, output.size}:
            return output.reshape(output.size).astype(np.float64)
    return None


def _is_row(output: Array) -> bool:
    return output.size > 1 and output.size == max(output.shape)


def top_label(top: TopClass) -> str:
    """Return the label of a class: `tabby cat 0.87`."""
    return f"{top.name} {top.score:.3g}"
