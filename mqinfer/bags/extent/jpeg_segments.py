"""Find what was lost in a picture of a raw Motion JPEG stream; decoders leave out in silence what they don't expect.

Source: ITU-T T.81, sections B.1.1 and B.2.1.
"""

from __future__ import annotations

import re

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
