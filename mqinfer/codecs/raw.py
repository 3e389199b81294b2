"""`raw`: an array's own bytes, little-endian and row-major, without a copy either way."""

from __future__ import annotations

from math import prod

import numpy as np

from mqinfer.codecs.codec import Encoded
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of, nbytes
from mqinfer.protocol.errors import BadTensor
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.strings import join_strings, split_strings
from mqinfer.protocol.types import Buffer, EncodedTensor

__all__ = ["RawCodec", "from_raw", "raw_bytes"]


def raw_bytes(name: str, array: Array) -> Buffer:
    """Give an array's bytes in the raw form: a view where it is contiguous, else a copy.

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
        strings = np.empty(prod(shape), np.object_)
        strings[:] = split_strings(data, strings.size, name)
        return strings.reshape(shape)
    expected, found = nbytes(datatype, shape), memoryview(data).nbytes
    if expected != found:
        raise BadTensor(f"tensor {name!r}: {datatype} of shape {list(shape)} takes {expected} bytes, but {found} came")
    if datatype is Datatype.BOOL and found and np.frombuffer(data, np.uint8).max() > 1:
        raise BadTensor(f"tensor {name!r}: a BOOL must be a byte of 0 or 1")
    array = np.frombuffer(data, dtype_of(datatype)).reshape(shape)
    array.flags.writeable = False
    return array


class RawCodec:
    """The codec of that name."""

    levels = range(0)

    def encode(self, name: str, array: Array, _level: int | None) -> Encoded:
        """Write an array; nothing is copied where it is contiguous."""
        return Encoded(raw_bytes(name, array))

    def decode(self, tensor: EncodedTensor, _limits: Limits) -> Array:
        """Read an array as a read-only view."""
        return from_raw(tensor.name, tensor.datatype, tensor.shape, tensor.data)
