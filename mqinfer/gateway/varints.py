"""Varints of Protocol Buffers as arrays: packed numbers are converted by NumPy, in parts of bounded size."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.protocol.datatypes import Array, Buffer, Datatype, dtype_of
from mqinfer.protocol.errors import BadTensor

_PART = 1 << 18
"""Bytes that are converted at a time: it takes some 30 times as much memory."""
_LONGEST = 10
"""Bytes of the longest varint."""
_LAST = 0x80  # bytes below end a varint


def count_varints(data: Buffer) -> int:
    """Return how many varints end in some bytes."""
    return int(np.count_nonzero(np.frombuffer(data, np.uint8) < _LAST))


def unpack_varints(data: Buffer, datatype: Datatype, what: str) -> Array:
    """Return the numbers of packed varints.

    Args:
        data: As packed fields have them.
        datatype: Of the numbers; those of FP16 are its bits.
        what: Where they are, for messages.

    Raises:
        BadTensor: The last one is cut off, or one is beyond 64 bits or the datatype's range.
    """
    octets = np.frombuffer(data, np.uint8)
    dtype = np.dtype("<u2") if datatype is Datatype.FP16 else dtype_of(datatype)
    if octets.size and octets[-1] >= _LAST:
        raise BadTensor(f"{what} end within a number")
    count = count_varints(data)
    if count == octets.size:  # numbers below 128, one byte each
        return octets.astype(dtype).view(dtype_of(datatype))
    found = np.empty(count, dtype)
    done = at = 0
    while at < octets.size:
        part = octets[at : at + _PART]
        ends = np.flatnonzero(part < _LAST)
        if not ends.size:
            raise BadTensor(f"{what} contain a number of more than 64 bits")
        part = part[: ends[-1] + 1]
        found[done : done + ends.size] = _converted(_unpack(part, ends, what), datatype, dtype, what)
        done, at = done + ends.size, at + part.size
    return found.view(dtype_of(datatype))


def _unpack(part: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64], what: str) -> npt.NDArray[np.uint64]:
    """Return the numbers of whole varints."""
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    if lengths.max() > _LONGEST:
        raise BadTensor(f"{what} contain a number of more than 64 bits")
    places = np.arange(len(part)) - np.repeat(starts, lengths)
    shifted = (part & 0x7F).astype(np.uint64) << (7 * places).astype(np.uint64)
    return np.add.reduceat(shifted, starts)


def _converted(values: npt.NDArray[np.uint64], datatype: Datatype, dtype: np.dtype[Any], what: str) -> Array:
    """Return numbers as the datatype has them, checked against its range."""
    if datatype is Datatype.BOOL:
        return values.astype(np.bool_)
    stated = values.view(np.int64) if dtype.kind == "i" else values
    found = stated.astype(dtype)
    if not np.array_equal(found, stated):
        raise BadTensor(f"{what} contain a number beyond {datatype}")
    return found


def pack_varints(values: npt.NDArray[np.uint64]) -> bytes:
    """Return integers as varints."""
    parts = []
    for start in range(0, len(values), _PART):
        left = values[start : start + _PART].copy()
        content = np.zeros((len(left), _LONGEST), np.uint8)
        used = np.zeros((len(left), _LONGEST), np.bool_)
        for place in range(_LONGEST):
            used[:, place] = (left > 0) if place else True
            content[:, place] = left & 0x7F
            left >>= 7
            content[:, place] |= ((left > 0) * 0x80).astype(np.uint8)
        parts.append(content[used].tobytes())
    return b"".join(parts)
