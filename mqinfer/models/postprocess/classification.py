"""Classify: the top classes of an output as text, by Triton's classification extension.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_classification.md
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array, datatype_of
from mqinfer.protocol.errors import BadTensor

_MOST = 1_000_000
"""The most elements that are sorted for one entry, as in Triton."""


def classify(name: str, scores: Array, count: int, classes: Sequence[ClassInfo] = (), *, batched: bool) -> Array:
    """Return the largest elements as text, the largest first; of equal ones the one with the lower index.

    Args:
        name: The output's name, for messages.
        scores: Numbers; NaN is the lowest.
        count: How many are requested; fewer if there are fewer elements.
        classes: Labels of the elements, used if there are as many as elements.
        batched: Whether the first axis is a batch axis; all other axes are taken as one.

    Returns:
        BYTES `[batch, count]`, or `[count]` without a batch axis, each `value:index` or `value:index:label`; the value
        of a float has six decimal places, as in Triton.

    Raises:
        BadTensor: The elements have no order, or there are too many; the text begins with Triton's.
    """
    entries = scores.shape[:1] if batched else ()
    elements = prod(scores.shape[len(entries) :])
    if scores.dtype.kind not in "iuf":
        raise BadTensor(
            f"class result not available for output due to unsupported type '{datatype_of(scores.dtype)}': output "
            f"{name!r} has no numbers; request it without classification"
        )
    if elements > _MOST:
        raise BadTensor(
            f"classification output tensor too large: output {name!r} has {elements} elements for each entry of the "
            f"batch, and at most {_MOST} are sorted; request it without classification"
        )
    rows = scores.reshape(prod(entries), elements)
    best = _largest(rows, count)
    labels = [info.name and f":{info.name}" for info in classes] if len(classes) == elements else [""] * elements
    as_text = "{:f}" if scores.dtype.kind == "f" else "{}"
    found = np.empty(best.size, np.object_)
    found[:] = [
        f"{as_text.format(row[index])}:{index}{labels[index]}".encode()
        for row, order in zip(rows, best.tolist(), strict=True)
        for index in order
    ]
    return found.reshape(*entries, best.shape[1])


def _largest(rows: npt.NDArray[Any], count: int) -> npt.NDArray[np.intp]:
    """Return the indices of each row's largest elements; a stable sort from behind keeps equal ones in order."""
    comparable = np.where(np.isnan(rows), -np.inf, rows) if rows.dtype.kind == "f" else rows
    ascending = np.argsort(comparable[:, ::-1], axis=1, kind="stable")
    best: npt.NDArray[np.intp] = rows.shape[1] - 1 - ascending[:, ::-1][:, :count]
    return best
