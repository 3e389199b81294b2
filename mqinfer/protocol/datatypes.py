"""Tensor datatypes of the Open Inference Protocol: their NumPy counterparts, the bytes of a shape, and the raw form.

The raw form of a tensor is its array's bytes, little-endian and row-major. That of a BYTES tensor is, for each element,
its length (uint32, little-endian) and its bytes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from enum import StrEnum
from math import prod

import numpy as np
import numpy.typing as npt

from mqinfer.protocol.errors import BadTensor, LimitExceeded
from mqinfer.protocol.limits import Limits

Array = npt.NDArray[np.generic]
Buffer = bytes | bytearray | memoryview


class Datatype(StrEnum):
    """Open Inference Protocol v2 tensor datatypes. BYTES holds strings of any length; BOOL is one byte."""

    BOOL = "BOOL"
    UINT8 = "UINT8"
    UINT16 = "UINT16"
    UINT32 = "UINT32"
    UINT64 = "UINT64"
    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FP16 = "FP16"
    FP32 = "FP32"
    FP64 = "FP64"
    BYTES = "BYTES"

    __hash__ = str.__hash__  # runs in C; Enum's own is written in Python, and tables of datatypes are on the hot path


_DTYPES: dict[Datatype, np.dtype[np.generic]] = {
    Datatype.BOOL: np.dtype(np.bool_),
    Datatype.UINT8: np.dtype(np.uint8),
    Datatype.UINT16: np.dtype("<u2"),
    Datatype.UINT32: np.dtype("<u4"),
    Datatype.UINT64: np.dtype("<u8"),
    Datatype.INT8: np.dtype(np.int8),
    Datatype.INT16: np.dtype("<i2"),
    Datatype.INT32: np.dtype("<i4"),
    Datatype.INT64: np.dtype("<i8"),
    Datatype.FP16: np.dtype("<f2"),
    Datatype.FP32: np.dtype("<f4"),
    Datatype.FP64: np.dtype("<f8"),
    Datatype.BYTES: np.dtype(np.object_),
}
_DATATYPES = {dtype: datatype for datatype, dtype in _DTYPES.items()}

BY_NAME = {dtype.name: datatype for datatype, dtype in _DTYPES.items() if datatype is not Datatype.BYTES}
"""Datatypes by the name that NumPy, TensorFlow and PyTorch have for them, such as `float32`; all but BYTES."""

FLOATS = (Datatype.FP16, Datatype.FP32, Datatype.FP64)
ITEM_BYTES = {datatype: dtype.itemsize for datatype, dtype in _DTYPES.items()} | {Datatype.BYTES: 48}
"""Bytes of one element in memory. An empty BYTES element takes 48 in CPython: an object of 40, and its pointer of 8."""

_AXIS_END = 1 << 63
_LENGTH = struct.Struct("<I")


def dtype_of(datatype: Datatype) -> np.dtype[np.generic]:
    """Return the NumPy dtype of a datatype: little-endian, and `object` (of `bytes`) for BYTES."""
    return _DTYPES[datatype]


def datatype_of(dtype: np.dtype[np.generic]) -> Datatype:
    """Return the datatype of a NumPy dtype; strings (kinds S, U, O) are BYTES.

    Raises:
        BadTensor: The protocol has no datatype for it (complex numbers, dates, structures).
    """
    found = _DATATYPES.get(dtype) or _DATATYPES.get(dtype.newbyteorder("<"))
    if found:
        return found
    if dtype.kind in "SUO":
        return Datatype.BYTES
    raise BadTensor(
        f"the Open Inference Protocol has no datatype for NumPy's {dtype}; convert it to one of {', '.join(Datatype)}"
    )


def nbytes(datatype: Datatype, shape: tuple[int, ...]) -> int:
    """Count the bytes of an array without making it; exact for any shape, since Python's integers don't overflow.

    Raises:
        BadTensor: The datatype is BYTES, whose size does not follow from its shape.
    """
    if datatype is Datatype.BYTES:
        raise BadTensor("the size of a BYTES tensor does not follow from its shape")
    return prod(shape) * ITEM_BYTES[datatype]


def array_bytes(
    tensor: str, datatype: Datatype, shape: Sequence[object], limits: Limits, named: str = "(tensor_bytes)"
) -> int:
    """Check a claimed shape and count the bytes of its array in memory (for BYTES: of the empty strings).

    Axes of size 0 are left out of the product, since NumPy refuses `[0, 2**62]` as well.

    Args:
        tensor: Its name, for messages.
        datatype: As declared.
        shape: Likewise.
        limits: Bounds.
        named: How a message names the bound on the bytes, for whoever may raise it.

    Raises:
        BadTensor: An entry is no integer, negative or beyond 63 bits.
        LimitExceeded: Too many axes, or too many bytes.
    """
    if len(shape) > limits.dimensions:
        raise LimitExceeded(f"tensor {tensor!r}: {len(shape)} axes; at most {limits.dimensions} are accepted")
    size = ITEM_BYTES[datatype]
    empty = False
    for entry in shape:
        if type(entry) is not int or not 0 <= entry < _AXIS_END:
            raise BadTensor(f"tensor {tensor!r}: every entry of a shape must be an integer from 0 to 2**63 - 1")
        if entry:
            size *= entry
        else:
            empty = True
    if size > limits.tensor_bytes:
        raise LimitExceeded(
            f"tensor {tensor!r}: shape {list(shape)} of {datatype} takes {size} bytes; at most {limits.tensor_bytes}"
            f" are accepted {named}; send less at once"
        )
    return 0 if empty else size


def little_endian(array: Array) -> Array:
    """Return an array with the dtype that travels: little-endian, strings as objects; itself where it has it.

    Raises:
        BadTensor: The protocol has no datatype for it.
    """
    return array.astype(dtype_of(datatype_of(array.dtype)), copy=False)


def raw_bytes(name: str, array: Array) -> Buffer:
    """Return the raw form of an array that `little_endian` made: a view where it is contiguous, else a copy.

    Raises:
        BadTensor: An element of a BYTES array is neither `str` nor `bytes`.
    """
    if array.dtype.kind == "O":
        return join_strings(array.ravel().tolist(), name)
    if not array.size:
        return b""
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def from_raw(name: str, datatype: Datatype, shape: tuple[int, ...], data: Buffer) -> Array:
    """Return the array of raw bytes: a read-only view on them, or an object array of `bytes` for BYTES.

    Raises:
        BadTensor: The bytes are not those of such an array.
    """
    if datatype is Datatype.BYTES:
        found = _split_strings(data, prod(shape), name)
        strings = np.empty(len(found), np.object_)
        strings[:] = found
        return strings.reshape(shape)
    expected, came = nbytes(datatype, shape), memoryview(data).nbytes
    if expected != came:
        raise BadTensor(f"tensor {name!r}: {datatype} of shape {list(shape)} takes {expected} bytes; got {came}")
    if datatype is Datatype.BOOL and came and np.frombuffer(data, np.uint8).max() > 1:
        raise BadTensor(f"tensor {name!r}: a BOOL must be a byte of 0 or 1")
    array = np.frombuffer(data, dtype_of(datatype)).reshape(shape)
    array.flags.writeable = False
    return array


def to_bytes(element: object, tensor: str) -> bytes:
    """Return a string's bytes, in UTF-8 where it is text.

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
    """Return the raw form of strings.

    Raises:
        BadTensor: An element is neither `str` nor `bytes`.
    """
    joined = bytearray()  # and no list of parts: the objects of five million short ones take 1.1 GB
    for element in elements:
        data = to_bytes(element, tensor)
        joined += _LENGTH.pack(len(data))
        joined += data
    return bytes(joined)


def _split_strings(data: Buffer, count: int, tensor: str) -> list[bytes]:
    """Split the raw form of `count` strings, a number that has been checked against the limits."""
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
