"""How many pictures an H.264 stream makes its decoder keep: the one field of a sequence parameter set that is read.

ITU-T H.264, 7.3.2.1.1; Exp-Golomb codes: 9.1. What can't be read counts as the most that the standard allows.
"""

from __future__ import annotations

import re

__all__ = ["MOST_REFERENCES", "references"]

MOST_REFERENCES = 16
"""Pictures that the standard lets a stream ask for (A.3.1)."""
_UNIT = b"\0\0\1"
_SPS = re.compile(rb"\x00\x00\x01[\x07\x27\x47\x67\x87\xa7\xc7\xe7]")
_MOST_SETS, _LONGEST = 4, 512
"""Sets in one picture, and bytes of one, that are read: encoders write one of some twenty bytes."""
_HIGH = frozenset((100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135))
"""Profiles whose sets state the format of colours and scaling matrices."""


def references(data: bytes) -> int:
    """Return how many reference pictures the parameter sets in an access unit ask for; 0 where there are none."""
    begins = [found.end() for found in _SPS.finditer(data)]
    if len(begins) > _MOST_SETS:
        return MOST_REFERENCES
    return max((_of_set(data[begin : begin + _LONGEST].partition(_UNIT)[0]) for begin in begins), default=0)


class _Bits:
    """Reads the bits of a unit, behind the bytes that keep start codes out of it."""

    def __init__(self, data: bytes) -> None:
        data = data.replace(b"\0\0\3", b"\0\0")
        self._value, self._left = int.from_bytes(data), 8 * len(data)

    def take(self, count: int) -> int:
        self._left -= count
        if self._left < 0:
            raise ValueError("the unit ends")
        return self._value >> self._left & (1 << count) - 1

    def number(self) -> int:
        zeros = 0
        while not self.take(1):
            zeros += 1
        return (1 << zeros) - 1 + self.take(zeros)

    def signed(self) -> int:
        number = self.number()
        return (number + 1) // 2 if number % 2 else -(number // 2)


def _of_set(data: bytes) -> int:
    bits = _Bits(data)
    try:
        profile = bits.take(24) >> 16
        bits.number()  # the set's own
        if profile in _HIGH:
            _skip_colours(bits)
        bits.number()  # bits of a picture's number
        order = bits.number()
        if order == 0:
            bits.number()
        elif order == 1:
            bits.take(1)
            for _ in range(2):
                bits.number()
            for _ in range(bits.number()):
                bits.number()
        return min(bits.number(), MOST_REFERENCES)
    except ValueError:
        return MOST_REFERENCES


def _skip_colours(bits: _Bits) -> None:
    colours = bits.number()
    if colours == 3:
        bits.take(1)
    for _ in range(2):
        bits.number()
    bits.take(1)
    if not bits.take(1):
        return
    for matrix in range(12 if colours == 3 else 8):
        if bits.take(1):
            _skip_matrix(bits, 16 if matrix < 6 else 64)


def _skip_matrix(bits: _Bits, entries: int) -> None:
    last = following = 8
    for _ in range(entries):
        if following:
            following = (last + bits.signed()) % 256
            last = following or last
