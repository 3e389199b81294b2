"""The Open Inference Protocol's tensor datatypes and their NumPy counterparts."""

from __future__ import annotations

from enum import StrEnum
from math import prod

import numpy as np
import numpy.typing as npt

from mqinfer.protocol.errors import BadTensor

__all__ = ["BY_NAME", "Array", "Datatype", "datatype_of", "dtype_of", "nbytes"]

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
"""By the name that NumPy, TensorFlow and PyTorch have for them, such as `float32`; all but strings."""


def dtype_of(datatype: Datatype) -> np.dtype[np.generic]:
    """Give the NumPy dtype of a datatype: little-endian, and `object` (of `bytes`) for BYTES."""
    return _DTYPES[datatype]


def datatype_of(dtype: np.dtype[np.generic]) -> Datatype:
    """Give the datatype of a NumPy dtype; strings (kinds S, U, O) are BYTES.

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
        BadTensor: The datatype is BYTES, whose size the shape does not tell.
    """
    if datatype is Datatype.BYTES:
        raise BadTensor("the size of a BYTES tensor does not follow from its shape")
    return prod(shape) * dtype_of(datatype).itemsize
