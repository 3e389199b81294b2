"""Walk over the fields of a protobuf message without its schema (https://protobuf.dev/programming-guides/encoding/).

The bytes may be a mapped file, so that large fields that are skipped cost nothing.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

Bytes = bytes | mmap.mmap


class DamagedError(Exception):
    """The bytes are no protobuf message."""


def fields(content: Bytes, start: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Yield number, begin and end of each field's bytes; of a varint -1 and its value, of other numbers -1 and 0."""
    while start < end:
        tag, start = _varint(content, start)
        number, wire = tag >> 3, tag & 7
        if wire == 2:
            size, start = _varint(content, start)
            yield number, start, start + size
            start += size
        elif wire == 0:
            value, start = _varint(content, start)
            yield number, -1, value
        elif wire in {1, 5}:
            start += 8 if wire == 1 else 4
            yield number, -1, 0
        else:  # a group, which models do not have, or no protobuf
            raise DamagedError(f"wire type {wire}")
        if number == 0 or start > end:
            raise DamagedError(f"field {number} ends beyond what it lies in")


def is_whole(content: Bytes) -> bool:
    """Return whether the outermost fields of a message end where its bytes end: nothing is cut off."""
    try:
        return sum(1 for _ in fields(content, 0, len(content))) > 0
    except (DamagedError, IndexError):
        return False


def _varint(content: Bytes, start: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        byte = content[start]
        start += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, start
    raise DamagedError("a number of more than 10 bytes")
