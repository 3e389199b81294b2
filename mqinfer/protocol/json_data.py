"""The `data` of a tensor in Open Inference Protocol JSON: lists to raw bytes, and arrays to lists.

NaN and the infinities, which JSON lacks, are the strings `"NaN"`, `"Infinity"` and `"-Infinity"`, as in the JSON form
of Protocol Buffers (https://protobuf.dev/programming-guides/json/).
"""

from __future__ import annotations

from itertools import chain
from math import prod
from typing import Any

import numpy as np

from mqinfer.protocol.datatypes import Array, Datatype, datatype_of, dtype_of
from mqinfer.protocol.errors import BadTensor
from mqinfer.protocol.strings import join_strings, to_bytes

__all__ = ["data_of_array", "raw_of_data"]

_NOT_FINITE = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}
_FLOATS = frozenset((Datatype.FP32, Datatype.FP64))
_KINDS = {str: "string", bool: "true or false", int: "integer"}
_FP16 = "FP16 goes only by the binary tail (user property Inference-Header-Content-Length), as the protocol has it"


def raw_of_data(name: str, datatype: Datatype, shape: tuple[int, ...], data: list[Any]) -> bytes:
    """Make the raw form of a tensor's `data`.

    Args:
        name: The tensor's.
        datatype: As declared.
        shape: As declared.
        data: Flat, or nested as `shape` says.

    Raises:
        BadTensor: The data are not what is declared.
    """
    flat = _flatten(name, data, shape)
    kinds = set(map(type, flat))
    if datatype in _FLOATS:
        return _raw_floats(name, datatype, flat, kinds)
    if datatype is Datatype.FP16:
        raise BadTensor(f"tensor {name!r}: {_FP16}")
    wanted = {Datatype.BYTES: str, Datatype.BOOL: bool}.get(datatype, int)
    if kinds - {wanted}:
        raise BadTensor(f"tensor {name!r}: every element of {datatype} data must be a JSON {_KINDS[wanted]}")
    if datatype is Datatype.BYTES:
        return join_strings(flat, name)
    return bytes(flat) if datatype is Datatype.BOOL else _raw_integers(name, datatype, flat)


def data_of_array(name: str, array: Array) -> list[Any]:
    """Make a tensor's flat `data`.

    Raises:
        BadTensor: It is FP16, or holds strings that are not UTF-8: these go only by the binary tail.
    """
    datatype = datatype_of(array.dtype)
    if datatype is Datatype.FP16:
        raise BadTensor(f"tensor {name!r}: {_FP16}; set the request parameter binary_data_output")
    flat: list[Any] = array.ravel().tolist()
    if datatype is Datatype.BYTES:
        return [_text(name, element) for element in flat]
    if datatype in _FLOATS and not np.isfinite(array).all():
        return [element if np.isfinite(element) else _name_of(element) for element in flat]
    return flat


def _flatten(name: str, data: list[Any], shape: tuple[int, ...]) -> list[Any]:
    """Give the elements in row-major order; what is nested must be nested as the shape says, all the way."""
    flat = data
    if len(shape) > 1 and data and type(data[0]) is list:
        if len(data) != shape[0]:
            raise _does_not_match(name, shape)
        for size in shape[1:]:
            if any(type(row) is not list or len(row) != size for row in flat):
                raise _does_not_match(name, shape)
            flat = list(chain.from_iterable(flat))
    if len(flat) != prod(shape):
        raise _does_not_match(name, shape)
    return flat


def _does_not_match(name: str, shape: tuple[int, ...]) -> BadTensor:
    return BadTensor(
        f"tensor {name!r}: data are neither a flat list of {prod(shape)} elements nor nested as {list(shape)}"
    )


def _raw_floats(name: str, datatype: Datatype, flat: list[Any], kinds: set[type]) -> bytes:
    if str in kinds:
        flat = [_NOT_FINITE.get(element, element) if type(element) is str else element for element in flat]
        kinds = set(map(type, flat))
    if kinds - {int, float}:
        names = ", ".join(_NOT_FINITE)
        raise BadTensor(f"tensor {name!r}: every element of {datatype} data must be a JSON number, or one of {names}")
    try:
        wide = np.array(flat, np.float64)
    except OverflowError as error:
        raise BadTensor(f"tensor {name!r}: a number does not fit {datatype}") from error
    with np.errstate(over="ignore"):
        narrow = wide.astype(dtype_of(datatype))
    if (np.isinf(narrow) != np.isinf(wide)).any():
        raise BadTensor(f"tensor {name!r}: a number does not fit {datatype}")
    return narrow.tobytes()


def _raw_integers(name: str, datatype: Datatype, flat: list[int]) -> bytes:
    dtype = dtype_of(datatype)
    bounds = np.iinfo(dtype.name)
    if flat and not (bounds.min <= min(flat) and max(flat) <= bounds.max):
        raise BadTensor(f"tensor {name!r}: {datatype} holds {bounds.min} to {bounds.max}; an element is outside")
    return np.array(flat, dtype).tobytes()


def _text(name: str, element: object) -> str:
    try:
        return to_bytes(element, name).decode()
    except UnicodeDecodeError as error:
        raise BadTensor(f"tensor {name!r}: a string is not UTF-8; it goes only by the binary tail") from error


def _name_of(element: float) -> str:
    if np.isnan(element):
        return "NaN"
    return "Infinity" if element > 0 else "-Infinity"
