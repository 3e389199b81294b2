"""How far a product's answers are from the original's, and whether that is near enough."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mqinfer.lab.optimize.metrics import mean_iou
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError

__all__ = ["Answers", "Parity", "Tolerance", "compare", "parse_tolerance"]

Answers = Sequence[Mapping[str, Array]]
"""Outputs by name, one mapping a sample."""


@dataclass(frozen=True, slots=True)
class Parity:
    """A product against the original, over all samples and outputs.

    Attributes:
        difference: Largest absolute difference of float outputs; None where there are none.
        relative: The same, as a share of the largest absolute value of that output, or of 1 where that is more.
        agreement: Share of equal class numbers: of masks element by element, of scores [N,classes] the best one; None
            where there are neither.
        score: Mean intersection over union, or accuracy, of the product against the truth; None without truth.
        original_score: The same of the original.
    """

    difference: float | None = None
    relative: float | None = None
    agreement: float | None = None
    score: float | None = None
    original_score: float | None = None


_DIFFERENCES: Mapping[str, float] = {"fp32": 1e-3, "fp16": 1e-2, "bf16": 5e-2, "int8": 1e-1}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """What a product may lose.

    Attributes:
        agreement: The share of class numbers that must be equal.
        loss: How much of the mean intersection over union, or of the accuracy, may be lost where the truth is known.
        difference: Bound of the relative difference; None: 0.001 for fp32, 0.01 fp16, 0.05 bf16, 0.1 int8.
    """

    agreement: float = 0.99
    loss: float = 0.01
    difference: float | None = None

    def judge(self, parity: Parity, precision: str) -> str:
        """Say why a product is refused; empty where it is kept."""
        bound = _DIFFERENCES[precision] if self.difference is None else self.difference
        if parity.relative is not None and not parity.relative <= bound:  # NaN is refused
            return f"difference {parity.relative:.2g} is above {bound:g}"
        if parity.agreement is not None and parity.agreement < self.agreement:
            return f"agreement {parity.agreement:.4f} is below {self.agreement:g}"
        if parity.score is not None and parity.original_score is not None:
            lost = parity.original_score - parity.score
            if lost > self.loss:
                return f"{lost:.4f} of the score is lost, more than {self.loss:g}"
        return ""


def parse_tolerance(texts: Sequence[str]) -> Tolerance:
    """Read `agreement=0.98`, `difference=0.01`, `loss=0.02`.

    Raises:
        ConfigError: Another name, or no number from 0 to 1.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = -1
        if name not in Tolerance.__dataclass_fields__ or not 0 <= found[name] <= 1:
            raise ConfigError(f"--tolerance {text!r}: must be agreement=, difference= or loss= and a number of 0 to 1")
    return Tolerance(**found)


@dataclass(slots=True)
class _Sums:
    difference: float | None = None
    relative: float | None = None
    equal: int = 0
    counted: int = 0
    masks: list[Array] = field(default_factory=list)


def compare(
    original: Answers, product: Answers, truths: Sequence[npt.NDArray[np.integer] | None], classes: Sequence[str] = ()
) -> Parity:
    """Compare answers to the same samples.

    Args:
        original: Where the product gives a mask, the original's logits already are one.
        product: With the same names and shapes.
        truths: One a sample.
        classes: Of a mask; its score needs their number.

    Raises:
        ConfigError: The shapes differ.
    """
    sums = _Sums()
    for ours, theirs in zip(original, product, strict=True):
        for name in ours:
            _add(sums, name, np.asarray(ours[name]), np.asarray(theirs[name]))
    return Parity(
        sums.difference,
        sums.relative,
        sums.equal / sums.counted if sums.counted else None,
        _score(product, truths, classes),
        _score(original, truths, classes),
    )


def _add(sums: _Sums, name: str, ours: Array, theirs: Array) -> None:
    if ours.shape != theirs.shape:
        raise ConfigError(f"output {name!r} is {list(theirs.shape)} in the product and {list(ours.shape)} before")
    if ours.dtype.kind == "f" and ours.size:
        difference = _difference(ours, theirs)
        sums.difference = _larger(sums.difference, difference)
        largest = float(np.abs(ours, where=np.isfinite(ours), out=np.zeros(ours.shape)).max())
        sums.relative = _larger(sums.relative, difference / max(1.0, largest))
    numbers = [class_numbers(each) for each in (ours, theirs)]
    if numbers[0] is not None and numbers[1] is not None:
        sums.equal += int((numbers[0] == numbers[1]).sum())
        sums.counted += numbers[0].size


def _difference(ours: Array, theirs: Array) -> float:
    """Give the largest absolute difference; infinities and NaN that the original has too are none."""
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return float(np.abs(np.subtract(ours, theirs, dtype=np.float64, where=~same, out=np.zeros(ours.shape))).max())


def _larger(known: float | None, new: float) -> float:
    return new if known is None else float(np.maximum(known, new))  # NaN wins


def class_numbers(answer: Array) -> Array | None:
    """Read class numbers off an output: whole numbers are, scores [N,classes] have a best one, others have none."""
    if answer.dtype.kind in "ui":
        return answer
    if answer.dtype.kind == "f" and answer.ndim == 2 and answer.shape[1] > 1:
        return np.asarray(answer.argmax(1))
    return None


def _score(answers: Answers, truths: Sequence[npt.NDArray[np.integer] | None], classes: Sequence[str]) -> float | None:
    """Give the mean IoU of masks, the accuracy of a classifier, or None: of the first output that has classes."""
    predicted, true = [], []
    for answer, truth in zip(answers, truths, strict=True):
        numbers = next((each for array in answer.values() if (each := class_numbers(array)) is not None), None)
        if numbers is None or truth is None:
            return None
        predicted.append(numbers.ravel())
        true.append(_fitted(truth, numbers.shape).ravel())
    if all(each.size == 1 for each in predicted):
        return float(np.mean([one == other for one, other in zip(predicted, true, strict=True)]))
    return mean_iou(np.concatenate(predicted), np.concatenate(true), classes).mean_iou if classes else None


def _fitted(truth: Array, shape: tuple[int, ...]) -> Array:
    """Bring a mask to another height and width, each pixel the nearest one's class."""
    if truth.ndim != 2 or len(shape) < 2 or truth.shape == shape[-2:]:
        return truth
    rows, columns = (
        ((np.arange(size) + 0.5) * have / size).astype(np.intp)
        for size, have in zip(shape[-2:], truth.shape, strict=True)
    )
    return np.asarray(truth[rows[:, None], columns])
