"""Shapes that a message claims, checked before memory is taken for them."""

from __future__ import annotations

from collections.abc import Sequence

from mqinfer.protocol.datatypes import Datatype, dtype_of
from mqinfer.protocol.errors import BadTensor, LimitExceeded
from mqinfer.protocol.limits import Limits

__all__ = ["array_bytes", "datatype_named"]

_STRING_BYTES = 48
"""What an empty element of a BYTES array takes in CPython: 33 bytes of object, rounded up, and 8 of pointer."""

_AXIS_END = 1 << 63
_ITEM_BYTES = {datatype: dtype_of(datatype).itemsize for datatype in Datatype} | {Datatype.BYTES: _STRING_BYTES}
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
    size = _ITEM_BYTES[datatype]
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
