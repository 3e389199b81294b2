"""How far numbers of two answers may differ: |other - first| <= atol + rtol * |first|, as `numpy.testing` has it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError

_BLOCK = 1 << 20
"""Elements that are compared at a time, so that logits of a large picture need no copies of their own size."""


@dataclass(frozen=True, slots=True)
class NumberTolerance:
    """Allowed difference of an output: `relative` of the first model's number, and `absolute` besides.

    The defaults are those of ONNX's own tests of engines, with room for numbers near 0.
    """

    relative: float = 1e-3
    absolute: float = 1e-5


@dataclass(frozen=True, slots=True)
class Tolerances:
    """The tolerance of each output.

    Attributes:
        usual: Of floats; whole numbers, truth values and strings are to be equal.
        by_output: Of outputs by name, of whole numbers too.
    """

    usual: NumberTolerance = field(default_factory=NumberTolerance)
    by_output: Mapping[str, NumberTolerance] = field(default_factory=dict)

    def of(self, name: str, output: Array | None) -> NumberTolerance:
        """Return the tolerance of an output."""
        is_float = output is not None and output.dtype.kind == "f"
        return self.by_output.get(name, self.usual if is_float else NumberTolerance(0, 0))


def parse_tolerances(usual: NumberTolerance, texts: Sequence[str] | None) -> Tolerances:
    """Return tolerances, those of outputs from texts such as `OUTPUT=RTOL,ATOL`.

    Raises:
        ConfigError: A text is of another form, or a number is negative or not finite.
    """
    found: dict[str, NumberTolerance] = {}
    for text in texts or ():
        name, _, numbers = text.rpartition("=")
        try:
            relative, absolute = (float(each) for each in numbers.split(","))
        except ValueError:
            relative = absolute = math.nan
        if not (name and 0 <= relative < math.inf and 0 <= absolute < math.inf):
            raise ConfigError(f"--tolerance {text!r}: expected OUTPUT=RTOL,ATOL, such as scores=0.001,1e-5")
        found[name] = NumberTolerance(relative, absolute)
    return Tolerances(usual, found)


@dataclass(frozen=True, slots=True)
class Deviation:
    """What two arrays of one output, or those of many frames, differ by.

    Attributes:
        frames: How many arrays.
        values: Elements that were compared.
        outside: Those beyond the tolerance; all of them where the shapes differ, or where one answer lacks the output.
        largest: Largest absolute difference of numbers that are finite in both.
        total: Sum of those differences, of `finite` elements.
        finite: How many these are.
    """

    frames: int = 1
    values: int = 0
    outside: int = 0
    largest: float = 0.0
    total: float = 0.0
    finite: int = 0

    def __add__(self, other: Deviation) -> Deviation:
        """Return both together."""
        return Deviation(
            self.frames + other.frames,
            self.values + other.values,
            self.outside + other.outside,
            max(self.largest, other.largest),
            self.total + other.total,
            self.finite + other.finite,
        )

    @property
    def share(self) -> float:
        """Share of the values beyond the tolerance."""
        return self.outside / self.values if self.values else 0.0

    def describe(self) -> dict[str, Any]:
        """Return it as JSON has it; without differences where no number is finite in both."""
        described: dict[str, Any] = {"frames": self.frames, "values": self.values, "outside": self.share}
        if self.finite:
            described |= {"largest_difference": self.largest, "mean_difference": self.total / self.finite}
        return described


def deviation(one: Array | None, other: Array | None, tolerance: NumberTolerance) -> Deviation:
    """Compare an output of two answers; NaN equals NaN, and an infinity itself."""
    if one is None or other is None or one.shape != other.shape:
        size = max(each.size for each in (one, other) if each is not None)
        return Deviation(values=size, outside=size)
    ones, others = one.reshape(-1), other.reshape(-1)
    found = Deviation(values=one.size)
    for begin in range(0, one.size, _BLOCK):
        part = slice(begin, begin + _BLOCK)
        found = replace(found + _block(ones[part], others[part], tolerance), frames=1)
    return found


def _block(one: Array, other: Array, tolerance: NumberTolerance) -> Deviation:
    equal = (one == other) | ((one != one) & (other != other))  # noqa: PLR0124 - only NaN differs from itself; strings have no isnan
    if not {one.dtype.kind, other.dtype.kind} <= set("fiu"):
        return Deviation(outside=int(np.count_nonzero(~equal)))
    first = one.astype(np.float64)
    with np.errstate(invalid="ignore"):  # of infinities
        gaps = np.abs(other.astype(np.float64) - first)
        is_finite = np.isfinite(gaps)
        near = is_finite & (gaps <= tolerance.absolute + tolerance.relative * np.abs(first))
    finite = gaps[is_finite]
    return Deviation(
        outside=int(np.count_nonzero(~(equal | near))),
        largest=float(finite.max(initial=0.0)),
        total=float(finite.sum()),
        finite=finite.size,
    )
