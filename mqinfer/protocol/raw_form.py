"""The raw form of a tensor: an array's bytes, little-endian and row-major; strings with their lengths before them."""

from __future__ import annotations

from math import prod

import numpy as np

from mqinfer.protocol.datatypes import Array, Datatype, datatype_of, dtype_of, nbytes
from mqinfer.protocol.errors import BadTensor
from mqinfer.protocol.strings import join_strings, split_strings
from mqinfer.protocol.types import Buffer

__all__ = ["from_raw", "little_endian", "raw_bytes"]


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
