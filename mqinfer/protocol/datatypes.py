"""The Open Inference Protocol's tensor datatypes, their NumPy counterparts, and the bytes that a shape takes."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from math import prod

import numpy as np
import numpy.typing as npt

from mqinfer.protocol.errors import BadTensor, LimitExceeded
from mqinfer.protocol.limits import Limits

__all__ = [
    "BY_NAME",
    "Array",
    "Datatype",
    "array_bytes",
    "datatype_named",
    "datatype_of",
    "dtype_of",
    "nbytes",
]

Array = npt.NDArray[np.generic]


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

    __hash__ = str.__hash__  # in C: Enum's own is written in Python, and each look into a table would call it


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
_BY_DTYPE = {dtype: datatype for datatype, dtype in _DTYPES.items()}

BY_NAME = {dtype.name: datatype for datatype, dtype in _DTYPES.items() if datatype is not Datatype.BYTES}
"""By the name that NumPy, TensorFlow and PyTorch have for them, such as `float32`; all but strings."""


def dtype_of(datatype: Datatype) -> np.dtype[np.generic]:
    """Give the NumPy dtype of a datatype: little-endian, and `object` (of `bytes`) for BYTES."""
    return _DTYPES[datatype]


def datatype_of(dtype: np.dtype[np.generic]) -> Datatype:
    """Give the datatype of a NumPy dtype; strings (kinds S, U, O) are BYTES.

    Raises:
        BadTensor: The protocol has no datatype for it (complex numbers, dates, structures).
    """
    found = _BY_DTYPE.get(dtype) or _BY_DTYPE.get(dtype.newbyteorder("<"))
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
        BadTensor: The datatype is BYTES, whose size the shape does not tell.
    """
    if datatype is Datatype.BYTES:
        raise BadTensor("the size of a BYTES tensor does not follow from its shape")
    return prod(shape) * dtype_of(datatype).itemsize


_STRING_BYTES = 48
"""What an empty element of a BYTES array takes in CPython: 33 bytes of object, rounded up, and 8 of pointer."""

_AXIS_END = 1 << 63
ITEM_BYTES = {datatype: dtype_of(datatype).itemsize for datatype in Datatype} | {Datatype.BYTES: _STRING_BYTES}
_DATATYPES: dict[object, Datatype] = {datatype.value: datatype for datatype in Datatype}


def datatype_named(name: object, tensor: str) -> Datatype:
    """Give the datatype of that name.

    Raises:
        BadTensor: There is none, or the name is no string.
    """
    try:
        return _DATATYPES[name]
    except (KeyError, TypeError):
        known = ", ".join(Datatype)
        said = (
            name[:40] if isinstance(name, str) else type(name).__name__
        )  # a list may be nested deeper than repr can follow
        raise BadTensor(f"tensor {tensor!r}: unknown datatype {said!r}; known are {known}") from None


def array_bytes(tensor: str, datatype: Datatype, shape: Sequence[object], limits: Limits) -> int:
    """Check a shape and count the bytes of its array in memory (for BYTES: of the empty strings).

    Axes of size 0 are left out of the product, since NumPy refuses `[0, 2**62]` as well.

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
            " are accepted: send less at once, or raise the receiver's limit tensor_bytes"
        )
    return 0 if empty else size
