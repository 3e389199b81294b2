"""Reduce a detector's raw boxes to the best ones: score threshold and non-maximum suppression.

The suppression is OpenCV's `NMSBoxesBatched`: greedy, by class, best score first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mqinfer.codecs.opencv import opencv
from mqinfer.models.postprocess.candidates import CandidateReader, Floats
from mqinfer.models.postprocess.instances import Cover, InstanceMasks
from mqinfer.models.repository.output_tables import BoxFormat, Column, Detection
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import ConfigError, ModelFailed
from mqinfer.protocol.types import TensorSpec

_MOST_CANDIDATES = 4096
"""The most boxes that the suppression gets, the best ones: at worst it compares all pairs."""


class KeptBoxes:
    """A step that makes `boxes` FP32 [n, 4], `scores` FP32 [n] and `classes` INT64 [n] of raw candidates.

    A box is x1, y1, x2, y2 in pixels of the model's input; the best score is first. With `masks` it makes `masks` UINT8
    [n, H, W] too, each over the whole input, and with key points `keypoints` FP32 [n, P, 3] (x, y, score). Requests
    have one picture each, since n differs from picture to picture.

    Args:
        settings: The table `[detection]`.
        outputs: The model's outputs.
        labels: How many classes the model's card names; 0 for none.
        picture: Width and height of the model's input, None where it takes any.
        points: How many key points an object has, where rows hold them.
        strict: Whether it is a failure that not every likely candidate can be read and compared.

    Raises:
        ConfigError: The model has no such output, or its shape does not fit.
        MissingExtra: OpenCV is not installed.
    """

    def __init__(  # noqa: PLR0913 - its table, what the model's file and card have, and who asks
        self,
        settings: Detection,
        outputs: Sequence[TensorSpec],
        labels: int = 0,
        picture: tuple[int | None, int | None] = (None, None),
        points: int = 17,
        *,
        strict: bool = False,
    ) -> None:
        self._settings, self._is_strict = settings, strict
        self._dnn = opencv().dnn
        named = (settings.boxes, settings.scores, settings.classes, settings.masks, settings.keypoints)
        self.needs = tuple(name for name in named if name)
        specs = {spec.name: spec for spec in outputs}
        if unknown := [name for name in self.needs if name not in specs]:
            raise ConfigError(f"model.toml: detection: {unknown[0]!r}: expected one of the outputs {', '.join(specs)}")
        self._size = picture
        if None in picture and settings.normalised:
            raise ConfigError(
                "model.toml: detection.normalised: the model takes pictures of any size; "
                "set width and height in [image], which the boxes are then fractions of"
            )
        self._candidates = CandidateReader(settings, labels, points)
        try:
            self._masks = InstanceMasks(specs[settings.masks], picture, _cover(settings)) if settings.masks else None
            self._candidates.check(specs)
        except ValueError as error:
            raise ConfigError(f"model.toml: detection: {error}") from error
        self.makes = self._made(specs[settings.keypoints].shape[-2] if settings.keypoints else points)

    def _made(self, points: int) -> tuple[TensorSpec, ...]:
        return (
            TensorSpec("boxes", Datatype.FP32, (-1, 4)),
            TensorSpec("scores", Datatype.FP32, (-1,)),
            TensorSpec("classes", Datatype.INT64, (-1,)),
            *((self._masks.makes,) if self._masks else ()),
            *((TensorSpec("keypoints", Datatype.FP32, (-1, points, 3)),) if self._has_points else ()),
        )

    def __call__(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Keep the best boxes of one picture's candidates.

        Raises:
            BadTensor: There is more than one picture.
            ModelFailed: The outputs do not have the shapes of `[detection]`, or it is strict and a candidate is lost.
        """
        found = self._candidates.read(outputs)
        likely = np.flatnonzero(found.scores >= self._settings.score_threshold)  # drops NaN too
        best = likely[np.argsort(-found.scores[likely], kind="stable")[:_MOST_CANDIDATES]]
        corners = self._corners(found.boxes[best])
        whole = np.less_equal(corners[:, :2], corners[:, 2:]).all(axis=1)  # drops NaN, and what ends before it begins
        if self._is_strict and np.count_nonzero(whole) < len(likely):
            raise ModelFailed(
                f"{np.count_nonzero(whole)} of {len(likely)} candidates can be read; others are more than "
                f"{_MOST_CANDIDATES}, not finite, or end before they begin; look at score_threshold"
            )
        corners, best = corners[whole], best[whole]
        scores, classes = found.scores[best], found.classes[best]
        most = self._settings.max_detections
        if self._masks:
            most = min(most, self._masks.most(outputs))
        kept = self._suppress(corners, scores, classes)[:most]
        boxes, chosen = corners[kept], best[kept]
        made: dict[str, Array] = {"boxes": boxes, "scores": scores[kept], "classes": classes[kept]}
        if self._masks:
            made["masks"] = self._masks.make(outputs, chosen, found.factors[chosen], boxes)
        if self._has_points:
            made["keypoints"] = self._points(found.keypoints[chosen])
        return made

    def _corners(self, boxes: Floats) -> Floats:
        """Return left, top, right, bottom in pixels."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is dropped
            return _corners(boxes, self._settings.box_format) * np.array(2 * self._pixels, np.float32)

    def _points(self, points: Floats) -> Floats:
        """Return x and y in pixels, and the score, of key points in the order of the box's sides."""
        order = [1, 0, 2] if self._settings.box_format is BoxFormat.ROWS_FIRST else [0, 1, 2]
        return points[..., order] * np.array([*self._pixels, 1], np.float32)

    @property
    def _has_points(self) -> bool:
        return self._settings.keypoints is not None or Column.KEYPOINTS in self._settings.columns

    @property
    def _pixels(self) -> tuple[int, int]:
        """What coordinates are multiplied by, across and down."""
        width, height = self._size
        is_pixels = not self._settings.normalised or width is None or height is None
        return (1, 1) if is_pixels else (width or 1, height or 1)

    def _suppress(self, corners: Floats, scores: Floats, classes: npt.NDArray[np.int64]) -> npt.NDArray[np.intp]:
        if not len(scores):
            return np.zeros(0, np.intp)
        rectangles = np.concatenate([corners[:, :2], corners[:, 2:] - corners[:, :2]], axis=1)
        kept = self._dnn.NMSBoxesBatched(
            rectangles, scores, classes.astype(np.int32), 0.0, self._settings.iou_threshold
        )
        order: npt.NDArray[np.intp] = np.sort(np.asarray(kept, np.intp).reshape(-1))
        return order  # in the order of the candidates: the best score first


def _cover(settings: Detection) -> Cover:
    if settings.masks_in_boxes:
        return Cover.BOX
    return Cover.PICTURE if settings.scores else Cover.PROTOTYPES


def _corners(boxes: Floats, box_format: BoxFormat) -> Floats:
    if box_format is BoxFormat.CORNERS:
        return boxes
    if box_format is BoxFormat.ROWS_FIRST:
        return boxes[:, [1, 0, 3, 2]]
    first, size = boxes[:, :2], boxes[:, 2:]
    top_left = first - size / 2 if box_format is BoxFormat.CENTRE else first
    return np.concatenate([top_left, top_left + size], axis=1)
