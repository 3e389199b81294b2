"""Find what was lost in pictures of a raw stream of H.264, HEVC or Motion JPEG, of which decoders say nothing.

They go on in silence where noise hides pictures, and leave out what they don't expect. Source for JPEG: ITU-T T.81,
sections B.1.1 and B.2.1.
"""

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


_MARKER = re.compile(rb"\xff+([^\x00\xff])")
_END_OF_SCAN = re.compile(rb"\xff+([^\x00\xd0-\xd7\xff])")
"""A marker that is neither a byte of the picture nor the place where a decoder may begin anew."""
_BEGIN = b"\xff\xd8"
_END, _SCAN = 0xD9, 0xDA
_BEHIND_SCAN = frozenset({_END, _SCAN, 0xC4, 0xDB, 0xDC, 0xDD, 0xFE, *range(0xE0, 0xF0)})
"""The end, another scan, and tables and comments before it."""


def is_whole_jpeg(packet: bytes) -> bool:
    """Return whether a picture, or each of two fields, has all segments from its begin to its end."""
    begin, is_whole = packet.find(_BEGIN), False
    while begin >= 0:
        end = _find_end(packet, begin + len(_BEGIN))
        if end < 0:
            return False
        begin, is_whole = packet.find(_BEGIN, end), True  # anything may stand between, as in a stream over HTTP
    return is_whole


def _find_end(packet: bytes, at: int) -> int:
    """Return the place behind a picture; -1 if it has no end, or something that is no segment."""
    while found := _MARKER.match(packet, at):
        kind, at = found[1][0], found.end()
        if kind == _END:
            return at
        at += int.from_bytes(packet[at : at + 2], "big")
        if kind == _SCAN:
            behind = _END_OF_SCAN.search(packet, at)
            if behind is None or behind[1][0] not in _BEHIND_SCAN:
                return -1
            at = behind.start()
    return -1
