"""Read a detector's candidates out of its outputs, in the forms that published models have.

`docs/reference/models.md` lists the forms with their models. What can be checked against the model's file is checked
when the model is loaded, by the same functions that divide the rows of each request.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt

from mqinfer.models.postprocess.probabilities import probabilities
from mqinfer.models.repository.output_tables import Activation, Background, Column, Detection
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadTensor, ModelFailed
from mqinfer.protocol.types import TensorSpec
from mqinfer.value_object import value_object

log = logging.getLogger("mqinfer.models")

Floats = npt.NDArray[np.float32]
Numbers = npt.NDArray[np.int64]
_AXES = "expected rows of numbers, and prototypes of three axes"
_SIDES = 4


@value_object(eq=False)
class Candidates:
    """Candidates of one picture.

    Attributes:
        boxes: `[K, 4]`, as the model has them.
        scores: `[K]`, of the best class of each.
        factors: `[K, M]`, of the prototypes of masks; M is 0 without them.
        classes: `[K]`, the number of the best class.
        keypoints: `[K, P, 3]`, as the model has them; P is 0 without them.
    """

    boxes: Floats
    scores: Floats
    factors: Floats
    classes: Numbers
    keypoints: Floats = field(default_factory=lambda: np.zeros((0, 0, 3), np.float32))


class CandidateReader:
    """Divides outputs into boxes, scores, classes and factors.

    Args:
        settings: The table `[detection]`.
        labels: How many classes the model's card names; 0 for none.
        points: How many key points an object has, where rows hold them.
    """

    def __init__(self, settings: Detection, labels: int, points: int) -> None:
        self._settings = settings
        self._labels = labels
        self._none = int(settings.background is not None)
        self._sizes = dict.fromkeys(settings.columns, 1)
        self._sizes |= {column: size for column, size in _sizes(points) if column in self._sizes}
        self._is_points = settings.columns == (Column.KEYPOINTS,)

    def check(self, outputs: Mapping[str, TensorSpec]) -> None:
        """Compare the outputs' shapes, where the file has them, with the settings and the number of labels.

        Raises:
            ValueError: The message has the shapes, the numbers and the fix.
        """
        settings = self._settings
        boxes = _last_two(outputs[settings.boxes].shape)
        if self._is_points and boxes[1] == 3:  # one object, a row for each point
            boxes = 1, 3 * boxes[0] if boxes[0] != -1 else -1
        if settings.scores:
            if settings.classes is None and len(outputs[settings.scores].shape) == 3:
                self._check_scores(outputs[settings.scores], boxes[0])
            return
        factors = outputs[settings.masks].shape[-3] if settings.masks else 0
        if factors >= 0:
            self._check_rows(outputs[settings.boxes].shape, boxes, factors)

    def _check_rows(self, shape: Sequence[int], boxes: Sequence[int], factors: int) -> None:
        settings = self._settings
        width = self._width(boxes, factors) if -1 not in boxes else max(boxes)
        if width == -1:
            return
        rows = f"{settings.boxes!r} {list(shape)}"
        self._objectness(width, factors, rows)
        if width == boxes[1] and settings.objectness is None and not (self._labels or settings.columns):
            log.warning(
                "model.toml: detection: rows of output %s are read as box and scores, without objectness; "
                "list [[classes]], or set objectness = true or false",
                rows,
            )

    def read(self, outputs: Mapping[str, Array]) -> Candidates:
        """Return the candidates of one picture.

        Raises:
            BadTensor: There is more than one picture.
            ModelFailed: The outputs do not have the shapes of the settings.
        """
        settings = self._settings
        boxes = one_picture(settings.boxes, outputs[settings.boxes], 2)
        if self._is_points and boxes.ndim == 2 and boxes.shape[1] == 3:
            boxes = boxes.reshape(1, -1)
        try:
            found = self._separate(boxes, outputs) if settings.scores else self._joined(boxes, outputs)
            return self._with_keypoints(found, outputs) if settings.keypoints else found
        except (ValueError, IndexError, TypeError) as error:
            names = (settings.boxes, settings.scores, settings.classes, settings.masks, settings.keypoints)
            shapes = ", ".join(f"{name} {list(outputs[name].shape)}" for name in names if name)
            raise ModelFailed(f"boxes can't be made of {shapes}; check [detection] in model.toml ({error})") from error

    def _with_keypoints(self, found: Candidates, outputs: Mapping[str, Array]) -> Candidates:
        name = str(self._settings.keypoints)
        points = one_picture(name, outputs[name], 3).reshape(len(found.boxes), -1, 3)
        return replace(found, keypoints=points.astype(np.float32, copy=False))

    def _separate(self, boxes: Array, outputs: Mapping[str, Array]) -> Candidates:
        """Read boxes [K, 4] beside scores [K, C], [C, K] or [K]."""
        settings = self._settings
        boxes = boxes.reshape(len(boxes), _SIDES)  # also [K, 1, 4]
        # [1, K] has a batch axis, [1, C] beside a single box has none
        scores = one_picture(str(settings.scores), outputs[str(settings.scores)], 1 if len(boxes) > 1 else 2)
        if settings.classes:
            numbers = outputs[settings.classes].reshape(-1).astype(np.int64)
            return self._finished(boxes, scores.reshape(-1), numbers, boxes[:, :0])
        if scores.ndim == 2 and len(scores) != len(boxes) == scores.shape[1]:
            scores = scores.T
        if scores.ndim == 1:
            scores = scores[:, np.newaxis]
        best, numbers = self._best(scores)
        return _matching(boxes, best, numbers, boxes[:, :0])

    def _joined(self, rows: Array, outputs: Mapping[str, Array]) -> Candidates:
        """Read rows of a box and what else is known of it, or their transpose."""
        settings = self._settings
        factors = self._factors(outputs)
        if rows.ndim != 2:
            raise ValueError(_AXES)
        width = self._width(rows.shape, factors)
        rows = rows if rows.shape[1] == width else rows.T
        objectness = self._objectness(width, factors, repr(settings.boxes))
        end = width - factors
        if settings.columns:
            parts = self._parts(rows)
            points = parts.get(Column.KEYPOINTS, rows[:, :0]).reshape(len(rows), -1, 3)
            if self._is_points:
                parts[Column.BOX] = np.concatenate([points[..., :2].min(axis=1), points[..., :2].max(axis=1)], axis=1)
                parts[Column.SCORE] = points[..., 2].mean(axis=1, keepdims=True)
            numbers = parts[Column.CLASS][:, 0] if Column.CLASS in parts else np.zeros(len(rows))
            scores = parts[Column.SCORE][:, 0]
            found = self._finished(parts[Column.BOX], scores, numbers.astype(np.int64), rows[:, end:])
            return replace(found, keypoints=points.astype(np.float32, copy=False))
        best, numbers = self._best(rows[:, _SIDES + objectness : end])
        if objectness:
            of_logits = settings.activation is not Activation.NONE
            certain = probabilities(rows[:, _SIDES], Activation.SIGMOID if of_logits else Activation.NONE)
            best = np.multiply(best, certain, dtype=np.float32)
        return _matching(rows[:, :_SIDES], best, numbers, rows[:, end:])

    def _factors(self, outputs: Mapping[str, Array]) -> int:
        """Return how many prototypes of masks there are."""
        name = self._settings.masks
        if not name:
            return 0
        prototypes = one_picture(name, outputs[name], 3)
        if prototypes.ndim != 3:
            raise ValueError(_AXES)
        return len(prototypes)

    def _parts(self, rows: Array) -> dict[Column, Array]:
        parts: dict[Column, Array] = {}
        start = 0
        for column, size in self._sizes.items():
            parts[column] = rows[:, start : start + size]
            start += size
        return parts

    def _best(self, scores: Array) -> tuple[Array, Numbers]:
        """Return the best score of each row, "no object" left out, and its class."""
        settings = self._settings
        if settings.activation is Activation.SOFTMAX:
            scores = probabilities(scores, settings.activation)
        first = int(settings.background is Background.FIRST)
        scores = scores[:, first : scores.shape[1] - self._none + first]
        numbers = np.argmax(scores, axis=1) if scores.shape[1] else np.zeros(len(scores), np.int64)
        best = scores.max(axis=1, initial=-np.inf)
        if settings.activation is Activation.SIGMOID:  # it keeps the order, so one number a row is enough
            best = probabilities(best, settings.activation)
        return best, numbers

    def _finished(self, boxes: Array, scores: Array, numbers: Numbers, factors: Array) -> Candidates:
        """Return candidates whose class the model has chosen."""
        if self._settings.background is Background.FIRST:
            numbers = numbers - 1
            scores = np.where(numbers < 0, np.float32(-np.inf), scores)
        if self._settings.activation is Activation.SIGMOID:
            scores = probabilities(scores, Activation.SIGMOID)
        return _matching(boxes, scores, numbers, factors)

    def _width(self, shape: Sequence[int], factors: int) -> int:
        """Return the length of a row: the axis that fits the settings, or the shorter one."""
        fixed = _SIDES + factors
        if self._settings.columns:
            fitting = {factors + sum(self._sizes.values())}
        else:
            scores = fixed + self._labels + self._none
            fitting = {scores + extra for extra in (0, 1) if self._settings.objectness in {None, bool(extra)}}
        found = [size for size in shape if size in fitting] if self._labels or self._settings.columns else []
        return found[0] if len(set(found)) == 1 else min(shape)

    def _objectness(self, width: int, factors: int, rows: str) -> int:
        """Return how many numbers stand between a box and its scores: 1 or 0.

        Raises:
            ValueError: The rows can't be divided as the settings and the labels require.
        """
        settings = self._settings
        masks = f", and {factors} for masks" if factors else ""
        rest = width - _SIDES - factors
        if settings.columns:
            if width != (expected := factors + sum(self._sizes.values())):
                raise ValueError(
                    f"columns = {[*map(str, settings.columns)]} mean {expected} numbers a row{masks}; "
                    f"output {rows} has {width}"
                )
            return 0
        wanted = self._labels + self._none
        found = settings.objectness
        if found is None:
            found = self._labels > 0 and rest == wanted + 1
        if rest - found - self._none < 1:
            raise ValueError(f"output {rows} has {width} numbers a row: 4 of the box{masks}, and no scores are left")
        if self._labels and rest - found != wanted:
            raise ValueError(
                self._wrong_labels(
                    f"output {rows} has rows of {width} numbers: 4 of the box{masks}, "
                    f"{'1 of objectness, ' if found else ''}{rest - found} scores",
                    rest - found,
                )
            )
        return int(found)

    def _check_scores(self, spec: TensorSpec, candidates: int) -> None:
        sizes = [size for size in spec.shape[1:] if size not in {-1, candidates}]
        if self._labels and len(sizes) == 1 and sizes[0] != self._labels + self._none:
            what = f"output {spec.name!r} {list(spec.shape)} has {sizes[0]} scores a box"
            raise ValueError(self._wrong_labels(what, sizes[0]))

    def _wrong_labels(self, what: str, scores: int) -> str:
        wanted = self._labels + self._none
        hint = ', with background = "first" or "last" if one of the scores means "no object"'
        return (
            f"{self._labels} label{'s' * (self._labels != 1)}, and {what}: expected {wanted} scores; list as many "
            f"classes as there are{hint if scores == wanted + 1 and not self._none else ''}"
        )


def one_picture(name: str, output: Array, axes: int) -> Array:
    """Drop axes of 1 before so many axes.

    Raises:
        BadTensor: There are several pictures.
    """
    while output.ndim > axes and output.shape[0] == 1:
        output = output.reshape(output.shape[1:])
    if output.ndim == max(axes, 2) + 1 and output.shape[1:] != (1, _SIDES):  # [K, 1, 4] are boxes of one
        raise BadTensor(f"output {name!r} is of {output.shape[0]} pictures; send each in a request of its own")
    return output


def _sizes(points: int) -> tuple[tuple[Column, int], ...]:
    return (Column.BOX, _SIDES), (Column.KEYPOINTS, 3 * points)


def _matching(boxes: Array, scores: Array, numbers: Numbers, factors: Array) -> Candidates:
    if boxes.shape[1:] != (_SIDES,) or not scores.shape == numbers.shape == boxes.shape[:1]:
        raise ValueError(f"{len(boxes)} boxes, scores of the shape {list(scores.shape)}")
    boxes, scores, factors = (each.astype(np.float32, copy=False) for each in (boxes, scores, factors))
    return Candidates(boxes=boxes, scores=scores, factors=factors, classes=numbers)


def _last_two(shape: tuple[int, ...]) -> tuple[int, int]:
    return (shape[-2], shape[-1]) if len(shape) > 1 else (-1, -1)
