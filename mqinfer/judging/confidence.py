"""Read a confidence from a model's outputs: that a class is in the picture, or that a mask is right."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mqinfer.answers.outputs import CONFIDENCE, Mask, class_name, find_boxes, find_mask
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelFailed


def presence(outputs: Mapping[str, Array], classes: Sequence[ClassInfo], target: str) -> float:
    """Return how sure a model is that a class is in the picture, from 0 to 1.

    That is the best score of the boxes of this class; 1 or 0 for a mask with or without it; its probability among the
    scores of a classifier (numbers that are no probabilities are put through softmax); or the only number that there
    is, of a network that knows one class.

    Args:
        outputs: Of one picture, by name.
        classes: Of the model's card; a class without a name is named by its number.
        target: The class's name.

    Raises:
        ModelFailed: The outputs are none of these, or not finite.
    """
    if "boxes" in outputs and "scores" in outputs:
        found = find_boxes(outputs)
        return max((each.score for each in found if _is_class(each.number, classes, target)), default=0.0)
    if mask := find_mask(outputs):
        return float(any(_is_class(number, classes, target) for number in np.unique(mask[1]).tolist()))
    found_number = _only_number(outputs)
    if found_number is not None:
        return found_number
    return _class_score(outputs, classes, target)


def _is_class(number: int | None, classes: Sequence[ClassInfo], target: str) -> bool:
    return number is None or class_name(number, classes) == target


def _only_number(outputs: Mapping[str, Array]) -> float | None:
    if len(outputs) != 1:
        named = outputs.get(CONFIDENCE)
        numbers = [] if named is None else [named]
    else:
        numbers = list(outputs.values())
    if not numbers or numbers[0].size != 1 or numbers[0].dtype.kind not in "fb":
        return None
    value = float(numbers[0].item())
    if not 0 <= value <= 1:
        raise ModelFailed(f"the small model's output is {value:g}; expected a confidence from 0 to 1 (add a sigmoid)")
    return value


def _class_score(outputs: Mapping[str, Array], classes: Sequence[ClassInfo], target: str) -> float:
    rows = [each.ravel() for each in outputs.values() if each.size == max(each.shape, default=0) > 1]
    rows = [row for row in rows if row.dtype.kind == "f" and (not classes or row.size == len(classes))]
    if len(rows) != 1:
        shapes = ", ".join(f"{name} {list(output.shape)}" for name, output in outputs.items())
        raise ModelFailed(f"no confidence of {target!r} among the outputs {shapes}; expected boxes, a mask or scores")
    found = [number for number in range(rows[0].size) if _is_class(number, classes, target)]
    if not found:
        raise ModelFailed(f"the model has no class {target!r}; its classes are {_names(rows[0].size, classes)}")
    return float(probabilities(rows[0])[found].sum())


def _names(count: int, classes: Sequence[ClassInfo]) -> str:
    return ", ".join(class_name(number, classes) for number in range(min(count, 20)))


def probabilities(scores: Array) -> npt.NDArray[np.float64]:
    """Return scores along the last axis as probabilities: as they are if they sum to 1, otherwise through softmax.

    Raises:
        ModelFailed: They are not finite.
    """
    values = scores.astype(np.float64)
    if not np.isfinite(values).all():
        raise ModelFailed("the model's scores are not finite numbers")
    if values.min() >= 0 and np.allclose(values.sum(axis=-1), 1.0, atol=1e-3):
        return values
    powers = np.exp(values - values.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)  # type: ignore[no-any-return]


def _is_grid(output: Array) -> bool:
    """Return whether an output has floats for each pixel of one picture."""
    return output.ndim == 4 and output.shape[0] == 1 and output.dtype.kind == "f"


def mask_and_confidence(outputs: Mapping[str, Array]) -> tuple[Mask, float]:
    """Return the mask of a small network, and how sure it is: the mean over the pixels of their best probability.

    Args:
        outputs: A mask and an output `confidence` of one number; or `[1, H, W, C]` scores of each class, of which both
            are computed.

    Raises:
        ModelFailed: They are neither, or not finite.
    """
    mask, named = find_mask(outputs), outputs.get(CONFIDENCE)
    if mask and named is not None and named.size == 1:
        value = float(named.item())
        if not 0 <= value <= 1:
            raise ModelFailed(f"the small model's confidence is {value:g}; expected 0 to 1")
        return mask[1], value
    grids = [each for each in outputs.values() if _is_grid(each)]
    if len(grids) != 1 or not 2 <= grids[0].shape[3] <= 256:
        shapes = ", ".join(f"{name} {list(output.shape)}" for name, output in outputs.items())
        raise ModelFailed(
            f"no mask with a confidence among the outputs {shapes}; expected a mask and 'confidence', or one output "
            "[1, height, width, classes] of floats"
        )
    shares = probabilities(grids[0][0])
    return shares.argmax(axis=-1).astype(np.uint8), float(shares.max(axis=-1).mean())
