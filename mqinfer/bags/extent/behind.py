"""Find what stands in a video's file behind all that FFmpeg reads of it, such as a second video that was appended.

Sources: ISO/IEC 14496-12, section 4.2 (boxes); Adobe's Video File Format, version 10.1, annex E (tags).
"""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

_MOST = 1 << 20
"""Boxes or tags; a file of more is not looked at behind these."""
_LONG, _TO_THE_END = 1, 0
"""Lengths of a box that stand for one of 64 bits behind its name, and for all that is left."""
_TAGS_BEGIN, _TAGS = 9, {8, 9, 18}
_HEADS = (b"ftyp", b"moov", b"FLV\x01", b"\x30\x26\xb2\x75\x8e\x66\xcf\x11")
"""What these containers begin with, at once or behind a length."""


def find_behind(path: Path, container: str, stated: int) -> tuple[int, bool] | None:
    """Return where bytes begin that are not read, and whether they are another video; None if there are none.

    Args:
        path: The file.
        container: FFmpeg's name of its format.
        stated: Its size, where the format states it: an ASF file.
    """
    with path.open("rb") as file:
        places = {"mov": _end_of_boxes, "flv": _end_of_tags}
        find = places.get(container.partition(",")[0])
        place = find(file) if find else stated
        file.seek(place)
        head = file.read(16)
    return (place, head.startswith(_HEADS) or head[4:].startswith(_HEADS)) if place and head else None


def _end_of_boxes(file: BinaryIO) -> int:
    """Return where the boxes end or begin anew; 0 where that is not known."""
    size = file.seek(0, 2)
    at, seen = 0, set[bytes]()
    for _ in range(_MOST):
        file.seek(at)
        head = file.read(16)
        length, name = int.from_bytes(head[:4]), head[4:8]
        if length == _LONG:
            length = int.from_bytes(head[8:])
        if length == _TO_THE_END and name.isalnum():
            return size
        if length < 8 or at + length > size or (name in {b"ftyp", b"moov"} and name in seen):
            return at
        seen.add(name)
        at += length
    return 0


def _end_of_tags(file: BinaryIO) -> int:
    """Return where the tags end, each behind the length of the one before; 0 where that is not known."""
    at = _TAGS_BEGIN
    for _ in range(_MOST):
        file.seek(at)
        head = file.read(8)
        if len(head) < 8 or head[4] & 0x1F not in _TAGS:
            return at + 4
        at += 15 + int.from_bytes(head[5:])
    return 0
