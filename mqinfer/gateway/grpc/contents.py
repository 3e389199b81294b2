"""The typed contents of a tensor (`InferTensorContents`), from their bytes to the raw form of the tensor.

Numbers of 4 or 8 bytes have that form already and are not copied; varints are converted by NumPy in parts of bounded
size; strings one by one.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.gateway.checks import check_shape
from mqinfer.gateway.grpc.wire import DELIMITED, VARINT, fields
from mqinfer.protocol.datatypes import Buffer, Datatype, dtype_of
from mqinfer.protocol.errors import BadTensor, LimitExceeded

__all__ = ["raw_contents"]

_KINDS = ("BOOL", "INT32", "INT64", "UINT32", "UINT64", "FP32", "FP64", "BYTES")  # of the fields 1 to 8
_FIELDS = {
    Datatype.BOOL: 1,
    **dict.fromkeys((Datatype.INT8, Datatype.INT16, Datatype.INT32), 2),
    Datatype.INT64: 3,
    **dict.fromkeys((Datatype.UINT8, Datatype.UINT16, Datatype.UINT32), 4),
    Datatype.UINT64: 5,
    Datatype.FP32: 6,
    Datatype.FP64: 7,
    Datatype.BYTES: 8,
}
_STRINGS = _FIELDS[Datatype.BYTES]
_FLOATS = {_FIELDS[Datatype.FP32]: 5, _FIELDS[Datatype.FP64]: 1}  # wire types of one number
_MOST_SINGLE = 1 << 16
"""Numbers that may stand in fields of their own instead of all in one; no encoder of today writes them so."""
_PART = 1 << 20
_LONGEST_VARINT = 10
_LAST = 0x80  # bytes below end a varint


def raw_contents(name: str, model: str, datatype: Datatype, shape: tuple[int, ...], contents: memoryview) -> Buffer:
    """Return the raw form of typed contents: a view where they have it, else a copy.

    Args:
        name: Of the input, for messages.
        model: Likewise.
        datatype: As the request declares it.
        shape: Likewise.
        contents: Bytes of the message.

    Raises:
        BadTensor: They are of another datatype, more than the shape has room for, or beyond the datatype's range.
        LimitExceeded: The shape takes more memory than one tensor may.
        InvalidRequest: They are no message.
    """
    check_shape(name, datatype, shape)
    count, number = prod(shape), _FIELDS.get(datatype, 0)
    if number == _STRINGS:
        return _strings(name, model, count, contents)
    run = _one_run(name, model, datatype, contents)
    if number in _FLOATS:
        return run
    octets = np.frombuffer(run, np.uint8)
    found = int(np.count_nonzero(octets < _LAST))
    if found > count:
        raise _too_many(name, model, count)
    if octets.size and octets[-1] >= _LAST:
        raise BadTensor(f"contents of input '{name}' for model '{model}' end within a number")
    if found == octets.size and datatype is not Datatype.BOOL:  # numbers below 128, one byte each
        return octets.astype(dtype_of(datatype), copy=False).view(np.uint8).data
    return _numbers(name, model, datatype, octets, found)


def _one_run(name: str, model: str, datatype: Datatype, contents: memoryview) -> Buffer:
    """Return all numbers as one run of bytes: packed ones, and those in fields of their own."""
    expected, runs = _FIELDS.get(datatype, 0), []
    for number, kind, _, start, end in fields(contents):
        if number != expected:
            raise _other(name, model, datatype, number)
        if kind not in (DELIMITED, _FLOATS.get(number, VARINT)):
            raise BadTensor(f"contents of input '{name}' for model '{model}' are not of the type of their field")
        runs.append(contents[start:end])
        if len(runs) > _MOST_SINGLE:
            raise LimitExceeded(f"contents of input '{name}' for model '{model}': expected packed numbers")
    return runs[0] if len(runs) == 1 else b"".join(runs)


def _numbers(name: str, model: str, datatype: Datatype, octets: npt.NDArray[np.uint8], count: int) -> Buffer:
    array = np.empty(count, dtype_of(datatype))
    done = at = 0
    while at < octets.size:
        part = octets[at : at + _PART]
        ends = np.flatnonzero(part < _LAST)
        part = part[: ends[-1] + 1] if ends.size else part
        array[done : done + ends.size] = _converted(name, model, datatype, part, ends)
        done, at = done + ends.size, at + part.size
    return array.view(np.uint8).data


def _converted(
    name: str, model: str, datatype: Datatype, part: npt.NDArray[np.uint8], ends: npt.NDArray[np.int64]
) -> npt.NDArray[Any]:
    """Return the numbers of whole varints, checked against the range of the datatype."""
    starts = np.concatenate(([0], ends[:-1] + 1))
    lengths = ends - starts + 1
    longest = int(lengths.max(initial=_LONGEST_VARINT + 1 if not ends.size else 0))
    if longest > _LONGEST_VARINT:
        raise BadTensor(f"contents of input '{name}' for model '{model}' contain a number of more than 64 bits")
    values = np.zeros(ends.size, np.uint64)
    for place in range(longest):
        longer = lengths > place
        values[longer] |= (part[starts[longer] + place] & 0x7F).astype(np.uint64) << np.uint64(7 * place)
    if datatype is Datatype.BOOL:
        return values.astype(np.bool_)
    if datatype is Datatype.UINT64:
        return values
    signed = values.view(np.int64)
    bounds = np.iinfo(dtype_of(datatype).name)
    if signed.min() < bounds.min or signed.max() > bounds.max:
        raise BadTensor(f"contents of input '{name}' for model '{model}' contain a number beyond {datatype}")
    return signed


def _strings(name: str, model: str, count: int, contents: memoryview) -> bytes:
    raw = bytearray()
    for found, (number, kind, _, start, end) in enumerate(fields(contents)):
        if number != _STRINGS or kind != DELIMITED:
            raise _other(name, model, Datatype.BYTES, number)
        if found == count:
            raise _too_many(name, model, count)
        raw += (end - start).to_bytes(4, "little")
        raw += contents[start:end]
    return bytes(raw)


def _other(name: str, model: str, datatype: Datatype, number: int) -> BadTensor:
    kind = _KINDS[number - 1] if number <= len(_KINDS) else f"of the unknown field {number}"
    return BadTensor(
        f"unexpected explicit tensor data for input tensor '{name}' for model '{model}' of type '{kind}', expected"
        f" datatype '{datatype}'"
    )


def _too_many(name: str, model: str, count: int) -> BadTensor:
    return BadTensor(
        f"unexpected additional input data for model '{model}': contents of input '{name}' are more than the {count}"
        " elements of its shape"
    )
