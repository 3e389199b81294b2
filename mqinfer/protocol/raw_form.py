"""The raw form of a tensor: an array's bytes, little-endian and row-major; strings with their lengths before them."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from math import prod
from struct import Struct

import numpy as np

from mqinfer.protocol.datatypes import Array, Datatype, datatype_of, dtype_of, nbytes
from mqinfer.protocol.errors import BadTensor
from mqinfer.protocol.types import Buffer

__all__ = [
    "from_raw",
    "join_strings",
    "little_endian",
    "raw_bytes",
    "split_strings",
    "to_bytes",
]


def little_endian(array: Array) -> Array:
    """Give an array the dtype that its datatype has here: little-endian, strings as objects; itself where it has it.

    Raises:
        BadTensor: The protocol has no datatype for it.
    """
    return array.astype(dtype_of(datatype_of(array.dtype)), copy=False)


def raw_bytes(name: str, array: Array) -> Buffer:
    """Give the raw form of an array that `little_endian` made: a view where it is contiguous, else a copy.

    Raises:
        BadTensor: An element of a BYTES array is neither `str` nor `bytes`.
    """
    if array.dtype.kind == "O":
        return join_strings(array.ravel().tolist(), name)
    if not array.size:
        return b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def from_raw(name: str, datatype: Datatype, shape: tuple[int, ...], data: Buffer) -> Array:
    """Make the array of raw bytes: a read-only view on them, or an object array of `bytes` for BYTES.

    Raises:
        BadTensor: The bytes don't make it.
    """
    if datatype is Datatype.BYTES:
        found = split_strings(data, prod(shape), name)
        strings = np.empty(len(found), np.object_)
        strings[:] = found
        return strings.reshape(shape)
    expected, came = nbytes(datatype, shape), memoryview(data).nbytes
    if expected != came:
        raise BadTensor(f"tensor {name!r}: {datatype} of shape {list(shape)} takes {expected} bytes, but {came} came")
    if datatype is Datatype.BOOL and came and np.frombuffer(data, np.uint8).max() > 1:
        raise BadTensor(f"tensor {name!r}: a BOOL must be a byte of 0 or 1")
    array = np.frombuffer(data, dtype_of(datatype)).reshape(shape)
    array.flags.writeable = False
    return array


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
