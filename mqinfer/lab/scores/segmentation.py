"""Intersection over union of class masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mqinfer.protocol.errors import InvalidRequest

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
