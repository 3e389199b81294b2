"""What is inside a result: class masks, and outputs in a form that JSON can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array, datatype_of

__all__ = ["SMALL_OUTPUT", "Mask", "class_name", "class_shares", "describe_outputs", "find_mask"]

Mask = npt.NDArray[np.uint8]
"""Class numbers `[height, width]`."""

SMALL_OUTPUT = 64
"""Outputs of at most so many elements are written out."""


def find_mask(outputs: Mapping[str, Array]) -> tuple[str, Mask] | None:
    """Find the class mask among a result's outputs.

    A mask is an integer or boolean output with exactly two axes longer than 1 (so `[1, H, W]`, `[1, H, W, 1]`,
    `[1, 1, H, W]` and `[H, W]` are all one) and values of 0 to 255. The first one counts.

    Args:
        outputs: Decoded arrays by name.

    Returns:
        Its name and its class numbers, or None where no output is a mask.
    """
    for name, output in outputs.items():
        plain = np.squeeze(output)
        is_mask = plain.ndim == 2 and plain.dtype.kind in "bui" and plain.size > 0
        if is_mask and plain.min() >= 0 and plain.max() <= 255:
            return name, plain.astype(np.uint8)
    return None


def class_name(number: int, classes: Sequence[ClassInfo]) -> str:
    """Name a class; a number that the model's card doesn't list is its own name."""
    return classes[number].name if 0 <= number < len(classes) else str(number)


def class_shares(mask: Mask, classes: Sequence[ClassInfo]) -> dict[str, float]:
    """Give each class's share of the pixels, from 0 to 1: all of the card's classes, and others that occur."""
    counts = np.bincount(mask.ravel(), minlength=len(classes))
    return {
        class_name(number, classes): round(int(count) / mask.size, 6)
        for number, count in enumerate(counts)
        if count or number < len(classes)
    }


def describe_outputs(outputs: Mapping[str, Array], classes: Sequence[ClassInfo]) -> dict[str, dict[str, object]]:
    """Describe outputs for JSON: shape, datatype, `class_shares` of a mask, `values` of anything small.

    Args:
        outputs: Decoded arrays by name.
        classes: Of the model's card.
    """
    found = find_mask(outputs)
    described: dict[str, dict[str, object]] = {}
    for name, output in outputs.items():
        entry: dict[str, object] = {"shape": list(output.shape), "datatype": datatype_of(output.dtype).value}
        if found and found[0] == name:
            entry["class_shares"] = class_shares(found[1], classes)
        elif output.size <= SMALL_OUTPUT:
            entry["values"] = [_plain(value) for value in output.ravel().tolist()]
        described[name] = entry
    return described


def _plain(value: object) -> object:
    """Make a value that JSON has: text of bytes, and protobuf's JSON words for numbers that are not finite."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
