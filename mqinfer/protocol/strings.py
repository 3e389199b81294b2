"""The raw form of a BYTES tensor: for each element its length (uint32, little-endian) and its bytes, as in OIP."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from struct import Struct

from mqinfer.protocol.errors import BadTensor
from mqinfer.protocol.types import Buffer

__all__ = ["join_strings", "split_strings", "to_bytes"]

_LENGTH = Struct("<I")


def to_bytes(element: object, tensor: str) -> bytes:
    """Give a string's bytes, in UTF-8 where it is text.

    Raises:
        BadTensor: It is neither `str` nor `bytes`, or can't be encoded.
    """
    if isinstance(element, bytes):
        return element
    if not isinstance(element, str):
        raise BadTensor(
            f"tensor {tensor!r}: an element of a BYTES tensor is {type(element).__name__}, not str or bytes"
        )
    try:
        return element.encode()
    except UnicodeEncodeError as error:
        raise BadTensor(f"tensor {tensor!r}: a string can't be encoded as UTF-8 ({error})") from error


def join_strings(elements: Iterable[object], tensor: str) -> bytes:
    """Make the raw form of strings.

    Raises:
        BadTensor: An element is neither `str` nor `bytes`.
    """
    parts: list[bytes] = []
    for element in elements:
        data = to_bytes(element, tensor)
        parts += (_LENGTH.pack(len(data)), data)
    return b"".join(parts)


def split_strings(data: Buffer, count: int, tensor: str) -> list[bytes]:
    """Take the raw form apart.

    Args:
        data: All of it.
        count: Number of elements by the shape; the caller has checked it against the limits.
        tensor: For the message.

    Raises:
        BadTensor: The lengths don't add up to the data.
    """
    view = memoryview(data)
    found, start = [], 0
    try:
        for _ in range(count):
            end = start + 4 + _LENGTH.unpack_from(view, start)[0]
            found.append(bytes(view[start + 4 : end]))
            start = end
    except struct.error:
        start = -1
    if start != len(view):
        raise BadTensor(f"tensor {tensor!r}: lengths of {count} strings don't add up to its {len(view)} bytes")
    return found
