"""Find what was lost in the units of an H.264 or HEVC stream; decoders go on in silence where noise hides pictures."""

from __future__ import annotations

import re

from mqinfer.codecs.h264_sps import UNIT, Bits, SequenceSet

_IMPOSSIBLE = re.compile(rb"\x00\x00(?:\x00+[^\x00]|\x02|\x03[^\x00-\x03])")
"""Bytes that encoders never write inside a unit; zeros may follow its end."""
_HEAD = 64
"""Bytes of a unit in which its header ends."""
_SLICE, _LAST_SLICE, _IDR, _PARAMETERS = 1, 5, 5, 7


class PictureUnits:
    """Compares the numbers of an H.264 stream's pictures, and looks for bytes that no picture of either codec has.

    Source: ITU-T H.264, sections 7.3.2.1, 7.3.3, 7.4.1 and 7.4.3 (`frame_num`); H.265, section 7.4.2.

    Args:
        codec: `h264` or `hevc`.
    """

    def __init__(self, codec: str) -> None:
        self._is_h264 = codec == "h264"
        self._length = 0
        self._last: int | None = None

    def is_damaged(self, packet: bytes) -> bool:
        """Return whether one picture's units are damaged, or pictures before it are missing."""
        found, is_first = False, True
        for unit in packet.split(UNIT)[1:]:
            kind = (unit[:1] or b"\0")[0]
            if self._is_h264 and kind & 31 == _PARAMETERS:
                self._length, self._last = _number_bits(unit[1:]), None
            is_picture = _SLICE <= kind & 31 <= _LAST_SLICE if self._is_h264 else kind < 64
            if is_picture:
                found |= _IMPOSSIBLE.search(unit) is not None or (is_first and self._is_behind_gap(kind, unit))
                is_first = False
        return found

    def _is_behind_gap(self, kind: int, unit: bytes) -> bool:
        """Return whether a picture's number does not follow that of the last one that others refer to."""
        if not (self._is_h264 and self._length):
            return False
        bits = Bits(unit[1 : 1 + _HEAD])
        try:
            for _ in range(3):  # first macroblock, kind of slice, parameters
                bits.number()
            number = bits.take(self._length)
        except ValueError:
            return True
        last, is_idr = self._last, kind & 31 == _IDR
        if kind & 0x60 or is_idr:
            self._last = number
        follows = last is None or (number - last) % (1 << self._length) <= 1
        return not (is_idr or follows)


def _number_bits(parameters: bytes) -> int:
    """Return the length of a picture's number; 0 where it is not known, or numbers may be left out."""
    bits = Bits(parameters[:_HEAD])
    try:
        found, may_be_left_out = SequenceSet.read(bits), bits.take(1)
    except ValueError:
        return 0
    return found.number_bits if found.is_plain and found.order != 1 and not may_be_left_out else 0
