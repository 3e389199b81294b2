"""The typed contents of a tensor (`InferTensorContents`), from their bytes to the raw form of the tensor.

Numbers of 4 or 8 bytes have that form already and are not copied; strings are converted one by one.
"""

from __future__ import annotations

from math import prod

import numpy as np

from mqinfer.gateway.checks import check_shape
from mqinfer.gateway.varints import count_varints, unpack_varints
from mqinfer.protobuf_wire import DELIMITED, VARINT, fields
from mqinfer.protocol.datatypes import Buffer, Datatype
from mqinfer.protocol.errors import BadTensor, LimitExceeded

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
    if count_varints(run) > count:
        raise _too_many(name, model, count)
    what = f"contents of input '{name}' for model '{model}'"
    return unpack_varints(run, datatype, what).view(np.uint8).data


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
