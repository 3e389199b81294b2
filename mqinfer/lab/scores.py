"""How well a model's outputs agree with the truth, or with another model's.

Of anomaly scores it is the receiver operating characteristic; of boxes the mean average precision, as COCO computes it,
or the pairs that two models have in common; of masks the intersection over union. The rules for boxes are those of
`COCOeval` in pycocotools 2.0 (https://github.com/cocodataset/cocoapi, cocoeval.py): in each frame and class the boxes
are taken by falling score, each finds the free true box with the largest overlap that is at least the threshold, and
the precision is averaged over 101 recalls. A box that finds none and lies in a region, such as a crowd, doesn't count.
Areas are left out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mqinfer.answers.outputs import DetectedBox
from mqinfer.protocol.errors import InvalidRequest

Floats = npt.NDArray[np.float64]
THRESHOLDS = tuple(round(0.5 + 0.05 * step, 2) for step in range(10))
"""The overlaps of mAP 0.5:0.95."""
_RECALLS = np.linspace(0.0, 1.0, 101)


def overlaps(ones: Sequence[DetectedBox], others: Sequence[DetectedBox]) -> Floats:
    """Return the intersection over union of each pair of boxes, `[ones, others]`; 0 for empty boxes."""
    shared, first, second = _shared(ones, others)
    union = first[:, None] + second[None, :] - shared
    found: Floats = np.divide(shared, union, out=np.zeros_like(shared), where=union > 0)
    return found


def _shared(ones: Sequence[DetectedBox], others: Sequence[DetectedBox]) -> tuple[Floats, Floats, Floats]:
    """Return the area that each pair of boxes has in common, and the areas of both."""
    first, second = (np.array([each.box for each in boxes], np.float64).reshape(-1, 4) for boxes in (ones, others))
    left_top = np.maximum(first[:, None, :2], second[None, :, :2])
    right_bottom = np.minimum(first[:, None, 2:], second[None, :, 2:])
    one, other = (np.clip(boxes[:, 2:] - boxes[:, :2], 0, None).prod(axis=1) for boxes in (first, second))
    return np.clip(right_bottom - left_top, 0, None).prod(axis=2), one, other


def _inside(boxes: Sequence[DetectedBox], regions: Sequence[DetectedBox]) -> Floats:
    """Return the largest share of each box that lies in one region."""
    shared, areas, _ = _shared(boxes, regions)
    found: Floats = shared.max(axis=1, initial=0.0) / np.maximum(areas, np.finfo(float).tiny)
    return found


def match_boxes(found: Sequence[DetectedBox], true: Sequence[DetectedBox]) -> list[int | None]:
    """Return for each box the number of the true box that it finds with an overlap of at least 0.5, None for none.

    Args:
        found: Boxes in the order in which they choose, the best first.
        true: Boxes of which each is found once, by a box of its class.
    """
    shared = overlaps(found, true)
    same = np.array([[one.number == other.number for other in true] for one in found], bool).reshape(shared.shape)
    return _match(np.where(same, shared, -1.0), THRESHOLDS[0])


def _match(shared: Floats, threshold: float) -> list[int | None]:
    free = np.ones(shared.shape[1], bool)
    found: list[int | None] = []
    for row in shared:
        reached = free & (row >= threshold)
        if not reached.any():
            found.append(None)
            continue
        # Of equal overlaps COCO keeps the last one.
        best = shared.shape[1] - 1 - int(np.argmax(np.where(reached, row, -1.0)[::-1]))
        free[best] = False
        found.append(best)
    return found


@dataclass(frozen=True, slots=True)
class DetectionScore:
    """Mean average precision, 0 to 1, over the classes that occur in the truth.

    Attributes:
        map_50: At an overlap of 0.5.
        map_50_95: Mean over the overlaps 0.5, 0.55, ... 0.95.
        per_class: The latter, by class.
    """

    map_50: float
    map_50_95: float
    per_class: Mapping[Hashable, float]


@dataclass(slots=True)
class DetectionScorer:
    """Collects the boxes of frames, and scores them."""

    _scores: dict[Hashable, list[float]] = field(default_factory=dict)
    _hits: dict[Hashable, list[tuple[int, ...]]] = field(default_factory=dict)
    _true: Counter[Hashable] = field(default_factory=Counter)

    def add(
        self, found: Sequence[DetectedBox], true: Sequence[DetectedBox], regions: Sequence[DetectedBox] = ()
    ) -> None:
        """Count the boxes of one frame.

        Args:
            found: Of the model, the best first.
            true: Of the truth; their scores don't count.
            regions: Where boxes of a class, or of all classes for the number None, are neither right nor wrong if the
                threshold's share of them lies inside.
        """
        self._true.update(each.number for each in true)
        for number in {each.number for each in found}:
            own = sorted((each for each in found if each.number == number), key=lambda each: -each.score)
            shared = overlaps(own, [each for each in true if each.number == number])
            inside = _inside(own, [each for each in regions if each.number in {number, None}])
            hits = [_settled(_match(shared, threshold), inside >= threshold) for threshold in THRESHOLDS]
            self._scores.setdefault(number, []).extend(each.score for each in own)
            self._hits.setdefault(number, []).extend(zip(*hits, strict=True))

    def score(self) -> DetectionScore:
        """Return the score of what was added; 0 without any truth."""
        by_class = {number: self._precisions(number) for number in sorted(self._true, key=str)}
        if not by_class:
            return DetectionScore(0.0, 0.0, {})
        values = np.array(list(by_class.values()))
        per_class = {number: float(each.mean()) for number, each in by_class.items()}
        return DetectionScore(float(values[:, 0].mean()), float(values.mean()), per_class)

    def _precisions(self, number: Hashable) -> Floats:
        """Return the average precision of a class at each threshold."""
        if number not in self._scores:
            return np.zeros(len(THRESHOLDS))
        order = np.argsort(-np.array(self._scores[number]), kind="stable")
        columns = np.array(self._hits[number], np.int8)[order].T
        return np.array([_average_precision(each[each != _NEITHER] == 1, self._true[number]) for each in columns])


_NEITHER = -1


def _settled(matches: Sequence[int | None], is_inside: npt.NDArray[np.bool_]) -> list[int]:
    """Return 1 for each box that is right, 0 for one that is wrong, and -1 for one that is neither."""
    free = np.where(is_inside, _NEITHER, 0).tolist()
    return [other if match is None else 1 for match, other in zip(matches, free, strict=True)]


def _average_precision(hits: npt.NDArray[np.bool_], true: int) -> float:
    """Return the mean of the largest precision at or after each of 101 recalls."""
    right = np.cumsum(hits)
    recall, precision = right / true, right / np.arange(1, len(hits) + 1)
    falling = np.maximum.accumulate(precision[::-1])[::-1]
    places = np.searchsorted(recall, _RECALLS, side="left")
    return float(np.append(falling, 0.0)[places].mean())


Counts = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class SegmentationScore:
    """Intersection over union, 0 to 1.

    Attributes:
        mean_iou: Mean over the classes that occur in the truth or the prediction; 0 without any.
        per_class: Value of each of those classes, by name.
    """

    mean_iou: float
    per_class: Mapping[str, float]


def confusion(prediction: npt.NDArray[np.integer], truth: npt.NDArray[np.integer], classes: int) -> Counts:
    """Count pixels by true class (rows) and predicted class (columns).

    Pixels whose truth is not a class number (255, "ignore", in many data sets) are left out. The matrices of several
    frames can be added.

    Args:
        prediction: Class numbers, any shape.
        truth: Class numbers, the same shape.
        classes: Number of classes.

    Raises:
        InvalidRequest: The shapes differ, or a predicted number is not a class.
    """
    if prediction.shape != truth.shape:
        raise InvalidRequest(f"prediction {list(prediction.shape)} and truth {list(truth.shape)} differ in shape")
    counted = (truth >= 0) & (truth < classes)
    predicted = prediction[counted].astype(np.int64)
    if predicted.size and not 0 <= predicted.min() <= predicted.max() < classes:
        raise InvalidRequest(f"the prediction holds numbers outside 0 to {classes - 1}; is it a mask of this model?")
    pairs = truth[counted].astype(np.int64) * classes + predicted
    return np.bincount(pairs, minlength=classes * classes).reshape(classes, classes).astype(np.int64)


def segmentation_score(counts: Counts, names: Sequence[str]) -> SegmentationScore:
    """Return the scores of a confusion matrix: IoU = hits / (predicted + true - hits), as Pascal VOC defines it."""
    hits = counts.diagonal()
    union = counts.sum(axis=0) + counts.sum(axis=1) - hits
    per_class = {name: float(hits[n] / union[n]) for n, name in enumerate(names) if union[n]}
    return SegmentationScore(float(np.mean(list(per_class.values()))) if per_class else 0.0, per_class)


def mean_iou(
    prediction: npt.NDArray[np.integer], truth: npt.NDArray[np.integer], classes: Sequence[str]
) -> SegmentationScore:
    """Return the scores of one mask, or a stack of masks, against the truth.

    Raises:
        InvalidRequest: As in `confusion`.
    """
    return segmentation_score(confusion(prediction, truth, len(classes)), classes)


@dataclass(frozen=True, slots=True, eq=False)
class RocCurve:
    """The receiver operating characteristic of a score that is larger for a signal.

    Attributes:
        false: Share of the background at or above each threshold, rising from 0 to 1.
        true: Share of the signal there.
        area: Area under the curve: 0.5 for a score that separates nothing.
    """

    false: Floats
    true: Floats
    area: float


def roc(signal: npt.ArrayLike, background: npt.ArrayLike) -> RocCurve:
    """Return the curve of two samples of a score, one point for each different score."""
    ones, others = np.asarray(signal, np.float64), np.asarray(background, np.float64)
    thresholds = np.unique(np.concatenate([ones, others]))[::-1]
    false, true = _shares_above(others, thresholds), _shares_above(ones, thresholds)
    return RocCurve(false, true, float(np.trapezoid(true, false)))


def _shares_above(scores: Floats, thresholds: Floats) -> Floats:
    return np.concatenate([[0.0], 1 - np.searchsorted(np.sort(scores), thresholds) / len(scores)])
