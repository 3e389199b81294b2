"""Reduce a detector's raw boxes to the best ones: score threshold and non-maximum suppression.

The suppression is OpenCV's `NMSBoxesBatched`: greedy, by class, best score first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mqinfer.codecs.opencv import opencv
from mqinfer.models.repository.config import BoxFormat, Detection
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import BadTensor, ConfigError, ModelFailed
from mqinfer.protocol.types import TensorSpec

__all__ = ["KeptBoxes"]

Floats = npt.NDArray[np.float32]
_MOST_CANDIDATES = 4096
"""The most boxes that the suppression gets, the best ones: at worst it compares all pairs."""


class KeptBoxes:
    """A step that makes `boxes` FP32 [n, 4], `scores` FP32 [n] and `classes` INT64 [n] of raw candidates.

    A box is x1, y1, x2, y2 in pixels of the model's input; the best score is first. Requests have one picture each,
    since n differs from picture to picture.

    Args:
        settings: The table `[detection]`.
        outputs: The model's outputs.

    Raises:
        ConfigError: The model has no such output.
        MissingExtra: OpenCV is not installed.
    """

    makes = (
        TensorSpec("boxes", Datatype.FP32, (-1, 4)),
        TensorSpec("scores", Datatype.FP32, (-1,)),
        TensorSpec("classes", Datatype.INT64, (-1,)),
    )

    def __init__(self, settings: Detection, outputs: Sequence[TensorSpec]) -> None:
        self._settings = settings
        self._dnn = opencv().dnn
        self.needs = tuple(name for name in (settings.boxes, settings.scores, settings.classes) if name)
        names = [spec.name for spec in outputs]
        if unknown := [name for name in self.needs if name not in names]:
            raise ConfigError(f"model.toml: detection: {unknown[0]!r}: expected one of the outputs {', '.join(names)}")

    def __call__(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Keep the best boxes of one picture's candidates.

        Raises:
            BadTensor: There is more than one picture.
            ModelFailed: The outputs do not have the shapes of `[detection]`.
        """
        boxes, scores, classes = self._candidates(outputs)
        likely = np.flatnonzero(scores >= self._settings.score_threshold)  # drops NaN too
        best = likely[np.argsort(-scores[likely], kind="stable")[:_MOST_CANDIDATES]]
        corners, scores, classes = _corners(boxes[best], self._settings.box_format), scores[best], classes[best]
        kept = self._suppress(corners, scores, classes)[: self._settings.max_detections]
        return {"boxes": corners[kept], "scores": scores[kept], "classes": classes[kept]}

    def _candidates(self, outputs: Mapping[str, Array]) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
        """Return boxes [K, 4], and scores [K] and classes [K] of the best class of each."""
        settings = self._settings
        boxes = _one_picture(settings.boxes, outputs[settings.boxes], 2)
        if settings.scores is None:
            joined = boxes.T if boxes.shape[0] < boxes.shape[-1] else boxes
            boxes, scores = joined[:, :4], joined[:, 4:]
        else:
            # [1, K] has a batch axis, [1, C] beside a single box has none
            scores = _one_picture(settings.scores, outputs[settings.scores], 1 if len(boxes) > 1 else 2)
        if scores.ndim == 2:
            classes = np.argmax(scores, axis=1) if scores.shape[1] else np.zeros(len(scores), np.int64)
            scores = scores.max(axis=1, initial=-np.inf)
        else:
            classes = np.zeros(scores.shape, np.int64)
        if settings.classes:
            scores, classes = scores.reshape(-1), outputs[settings.classes].reshape(-1).astype(np.int64)
        if boxes.ndim != 2 or boxes.shape[1] != 4 or not scores.shape == classes.shape == boxes.shape[:1]:
            shapes = ", ".join(f"{name} {list(outputs[name].shape)}" for name in self.needs)
            raise ModelFailed(f"boxes can't be made of {shapes}; check [detection] in model.toml")
        return boxes.astype(np.float32), scores.astype(np.float32), classes

    def _suppress(self, corners: Floats, scores: Floats, classes: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        if not len(scores):
            return np.zeros(0, np.intp)
        rectangles = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
        kept = self._dnn.NMSBoxesBatched(
            rectangles, scores, classes.astype(np.int32), 0.0, self._settings.iou_threshold
        )
        order: npt.NDArray[np.intp] = np.sort(np.asarray(kept, np.intp).reshape(-1))
        return order  # in the order of the candidates: the best score first


def _one_picture(name: str, output: Array, axes: int) -> Array:
    """Drop a batch axis of 1 before so many axes."""
    if output.ndim > axes and output.shape[0] == 1:
        return output.reshape(output.shape[1:])
    if output.ndim == 3:
        raise BadTensor(f"output {name!r} is of {output.shape[0]} pictures; send each in a request of its own")
    return output


def _corners(boxes: Floats, box_format: BoxFormat) -> Floats:
    if box_format is BoxFormat.CORNERS:
        return boxes
    first, size = boxes[:, :2], boxes[:, 2:]
    top_left = first - size / 2 if box_format is BoxFormat.CENTRE else first
    return np.concatenate([top_left, top_left + size], axis=1)
