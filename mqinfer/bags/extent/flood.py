"""Find pictures of H.264 or HEVC with more units than any encoder writes: FFmpeg takes 4 KiB for each at once."""

from __future__ import annotations

import re
from itertools import pairwise
from pathlib import Path

from mqinfer.codecs.h264_sps import UNIT
from mqinfer.protocol.errors import SourceError

MOST_UNITS = 10_000
"""Units of one picture: the standards' largest picture has a few hundred slices at most."""
_FIRST_SLICE = {
    ".h264": re.compile(rb"\x00\x00\x01[\x01\x05\x21\x25\x41\x45\x61\x65][\x80-\xff]"),
    ".hevc": re.compile(rb"\x00\x00\x01[\x00-\x3f].[\x80-\xff]", re.DOTALL),
}
"""What begins a picture in a raw stream, by the suffix of its file."""
_PIECE = 1 << 20
"""Bytes that are looked at together."""


def check_flood(path: Path) -> None:
    """Raise for a raw stream with a picture of too many units.

    Raises:
        SourceError: It has one.
    """
    if is_flooded(path):
        raise SourceError(f"{path}: a picture of this video has more than {MOST_UNITS} units; it is damaged")


def is_flooded(path: Path) -> bool:
    """Return whether a raw stream has a picture of too many units; False for a file of another kind."""
    first_slice = _FIRST_SLICE.get(path.suffix.lower())
    if first_slice is None:
        return False
    units = 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            if units + (count := piece.count(UNIT)) <= MOST_UNITS // 2:
                found = first_slice.search(piece)  # what comes behind it counts as one picture's
                units = piece.count(UNIT, found.start()) if found else units + count
                continue
            begins = [found.start() for found in first_slice.finditer(piece)]
            for number, (begin, end) in enumerate(pairwise([0, *begins, len(piece)])):
                units = piece.count(UNIT, begin, end) + (0 if number else units)
                if units > MOST_UNITS:
                    return True
    return False


def has_too_many_units(packet: bytes) -> bool:
    """Return whether a packet has too many, whether codes begin them or their lengths, of four bytes."""
    if packet.startswith((UNIT, b"\0" + UNIT)):
        return packet.count(UNIT) > MOST_UNITS
    at = units = 0
    while at < len(packet) and units <= MOST_UNITS:
        at += 4 + int.from_bytes(packet[at : at + 4])
        units += 1
    return units > MOST_UNITS
