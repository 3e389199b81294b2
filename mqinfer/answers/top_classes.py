"""Find a classifier's scores among the outputs of a result, and its best classes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mqinfer.answers.outputs import class_name, find_mask
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array

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


def describe_top(top: Sequence[TopClass]) -> dict[str, object]:
    """Describe the best classes for JSON: empty without any, otherwise the key `top`."""
    if not top:
        return {}
    return {"top": [{"class": each.name, "number": each.number, "score": round(each.score, 6)} for each in top]}
