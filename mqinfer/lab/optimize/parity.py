"""Compares a product's outputs with the original's and with the truth, and decides whether it is kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mqinfer.lab.scores import mean_iou
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError

Outputs = Sequence[Mapping[str, Array]]
"""Outputs by name, one mapping for each sample."""


@dataclass(frozen=True, slots=True)
class Parity:
    """A product compared with the original, over all samples and outputs.

    Attributes:
        difference: Largest absolute difference of float outputs; None without float outputs.
        relative: Largest difference divided by `max(1, largest absolute value of the output)`.
        agreement: Share of equal class numbers: each element of a mask, the best class of scores [N,classes]; None
            without such outputs.
        score: Mean intersection over union, or accuracy, of the product against the truth; None without truth.
        original_score: Score of the original.
    """

    difference: float | None = None
    relative: float | None = None
    agreement: float | None = None
    score: float | None = None
    original_score: float | None = None


_DIFFERENCES: Mapping[str, float] = {"fp32": 1e-3, "fp16": 1e-2, "bf16": 5e-2, "int8": 1e-1}


@dataclass(frozen=True, slots=True)
class Tolerance:
    """Largest loss of a product.

    Attributes:
        agreement: Smallest share of equal class numbers.
        loss: Largest loss of the score against the truth, where the truth is known.
        difference: Largest relative difference; None for 0.001 in fp32, 0.01 in fp16, 0.05 in bf16, 0.1 in int8.
    """

    agreement: float = 0.99
    loss: float = 0.01
    difference: float | None = None

    def judge(self, parity: Parity, precision: str) -> str:
        """Return why a product is refused; empty if it is kept."""
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
    """Parse `agreement=0.98`, `difference=0.01` and `loss=0.02`.

    Raises:
        ConfigError: The name is unknown, or the value is not a number from 0 to 1.
    """
    found: dict[str, float] = {}
    for text in texts:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = -1
        if name not in Tolerance.__dataclass_fields__ or not 0 <= found[name] <= 1:
            raise ConfigError(f"--tolerance {text!r}: expected agreement=N, difference=N or loss=N, with N from 0 to 1")
    return Tolerance(**found)


@dataclass(slots=True)
class _Sums:
    difference: float | None = None
    relative: float | None = None
    equal: int = 0
    counted: int = 0


def compare(
    original: Outputs, product: Outputs, truths: Sequence[npt.NDArray[np.integer] | None], classes: Sequence[str] = ()
) -> Parity:
    """Compare the outputs for the same samples.

    Args:
        original: Outputs of the original, with logits reduced to masks where the product returns masks.
        product: Outputs of the product, with the same names and shapes.
        truths: Truth of each sample; None if unknown.
        classes: Class names of a mask, for its score.

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
        raise ConfigError(
            f"output {name!r} has the shape {list(theirs.shape)} in the product, expected {list(ours.shape)}"
        )
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
    """Return the largest absolute difference; equal infinities and NaN in both count as 0."""
    same = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    return float(np.abs(np.subtract(ours, theirs, dtype=np.float64, where=~same, out=np.zeros(ours.shape))).max())


def _larger(known: float | None, new: float) -> float:
    return new if known is None else float(np.maximum(known, new))  # NaN wins


def class_numbers(output: Array) -> Array | None:
    """Return the class numbers of an output: integers as they are, the best of scores [N,classes]; None for others."""
    if output.dtype.kind in "ui":
        return output
    if output.dtype.kind == "f" and output.ndim == 2 and output.shape[1] > 1:
        return np.asarray(output.argmax(1))
    return None


def _score(outputs: Outputs, truths: Sequence[npt.NDArray[np.integer] | None], classes: Sequence[str]) -> float | None:
    """Return the mean IoU of masks or the accuracy of a classifier, of the first output with classes; else None."""
    predicted, true = [], []
    for output, truth in zip(outputs, truths, strict=True):
        numbers = next((each for array in output.values() if (each := class_numbers(array)) is not None), None)
        if numbers is None or truth is None:
            return None
        predicted.append(numbers.ravel())
        true.append(_fitted(truth, numbers.shape).ravel())
    if all(each.size == 1 for each in predicted):
        return float(np.mean([one == other for one, other in zip(predicted, true, strict=True)]))
    return mean_iou(np.concatenate(predicted), np.concatenate(true), classes).mean_iou if classes else None


def _fitted(truth: Array, shape: tuple[int, ...]) -> Array:
    """Resize a mask to another height and width with nearest-neighbour sampling."""
    if truth.ndim != 2 or len(shape) < 2 or truth.shape == shape[-2:]:
        return truth
    rows, columns = (
        ((np.arange(size) + 0.5) * have / size).astype(np.intp)
        for size, have in zip(shape[-2:], truth.shape, strict=True)
    )
    return np.asarray(truth[rows[:, None], columns])
