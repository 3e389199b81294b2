"""Read the sequence parameter sets of an H.264 stream, such as how many pictures it makes its decoder keep.

ITU-T H.264, 7.3.2.1.1; Exp-Golomb codes: 9.1.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Self

MOST_REFERENCES = 16
"""Pictures that the standard lets a stream ask for (A.3.1)."""
UNIT = b"\0\0\1"
"""The start code of a unit of the byte stream (annex B, B.1.1); within a unit these bytes do not occur."""
_SPS = re.compile(rb"\x00\x00\x01[\x07\x27\x47\x67\x87\xa7\xc7\xe7]")
_MOST_SETS, _LONGEST = 4, 512
"""Sets in one picture, and bytes of one, that are read: encoders write one of some twenty bytes."""
_HIGH = frozenset((100, 110, 122, 244, 44, 83, 86, 118, 128, 138, 139, 134, 135))
"""Profiles whose sets state the format of colours and scaling matrices."""


def references(data: bytes) -> int:
    """Return how many reference pictures the parameter sets in an access unit ask for; 0 where there are none.

    What can't be read counts as the most that the standard allows.
    """
    begins = [found.end() for found in _SPS.finditer(data)]
    if len(begins) > _MOST_SETS:
        return MOST_REFERENCES
    return max((_of_set(data[begin : begin + _LONGEST].partition(UNIT)[0]) for begin in begins), default=0)


class Bits:
    """Reads the bits of a unit, behind the bytes that keep start codes out of it."""

    def __init__(self, data: bytes) -> None:
        """Begin behind the unit's first byte, its kind."""
        data = data.replace(b"\0\0\3", b"\0\0")
        self._value, self._left = int.from_bytes(data), 8 * len(data)

    def take(self, count: int) -> int:
        """Return the next bits; raise ValueError at the end."""
        self._left -= count
        if self._left < 0:
            raise ValueError("the unit ends")
        return self._value >> self._left & (1 << count) - 1

    def number(self) -> int:
        """Return the next number in Exp-Golomb code; raise ValueError at the end."""
        zeros = 0
        while not self.take(1):
            zeros += 1
        return (1 << zeros) - 1 + self.take(zeros)

    def signed(self) -> int:
        """Return the next number of either sign in that code; raise ValueError at the end."""
        number = self.number()
        return (number + 1) // 2 if number % 2 else -(number // 2)


class SequenceSet(NamedTuple):
    """What a parameter set says of the numbers and the order of pictures.

    Attributes:
        is_plain: Whether it has neither scaling matrices nor colours of full size (4:4:4).
        number_bits: Length of a picture's number (`frame_num`).
        order: How a picture's place is stated (`pic_order_cnt_type`).
        references: Reference pictures that the stream asks for.
    """

    is_plain: bool
    number_bits: int
    order: int
    references: int

    @classmethod
    def read(cls, bits: Bits) -> Self:
        """Read a set up to whether numbers may be left out, which is the next bit.

        Raises:
            ValueError: It ends before.
        """
        profile = bits.take(24) >> 16
        bits.number()  # the set's own
        is_plain = profile not in _HIGH or _skip_colours(bits)
        number_bits, order = bits.number() + 4, bits.number()
        if order == 0:
            bits.number()
        elif order == 1:
            bits.take(1)
            for _ in range(2):
                bits.number()
            for _ in range(bits.number()):
                bits.number()
        return cls(is_plain, number_bits, order, bits.number())


def _of_set(data: bytes) -> int:
    try:
        return min(SequenceSet.read(Bits(data)).references, MOST_REFERENCES)
    except ValueError:
        return MOST_REFERENCES


def _skip_colours(bits: Bits) -> bool:
    """Read over the format of colours; return whether it is plain."""
    colours = bits.number()
    if colours == 3:
        bits.take(1)
    for _ in range(2):
        bits.number()
    bits.take(1)
    has_matrices = bits.take(1)
    for matrix in range((12 if colours == 3 else 8) if has_matrices else 0):
        if bits.take(1):
            _skip_matrix(bits, 16 if matrix < 6 else 64)
    return colours != 3 and not has_matrices


def _skip_matrix(bits: Bits, entries: int) -> None:
    last = following = 8
    for _ in range(entries):
        if following:
            following = (last + bits.signed()) % 256
            last = following or last
