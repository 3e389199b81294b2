"""From the JSON of a tensor's `data` to the tensor's raw form.

Arrays of numbers are never made into Python objects as a whole, which would take ten times the memory of their text:
their brackets are compared with the shape, and the numbers are converted piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import msgspec
from msgspec import Raw

from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import BadEnvelope, BadTensor, InvalidRequest, LimitExceeded
from mqinfer.protocol.oip_json import raw_of_data

__all__ = ["raw_of_text"]

_CHUNK = 1 << 20
"""Text of numbers that is converted at a time, so that the loop's thread gets its turns."""
_MOST_ITEMS = 4 << 20
"""Strings, or whatever else, in one BYTES tensor of JSON; each takes 60 bytes or more of memory."""
_OF_NUMBERS = b'0123456789+-.eE \t\r\n"truefalsnNaIity'
"""Whatever numbers, booleans and the names of numbers that JSON lacks are written with."""


def raw_of_text(name: str, datatype: Datatype, shape: tuple[int, ...], raw: Raw) -> bytes:
    """Return the raw form of a tensor's `data`.

    Args:
        name: Name of the tensor.
        datatype: As declared.
        shape: As declared, and checked against the limits.
        raw: JSON that was found to be well formed.

    Raises:
        InvalidRequest: The data differ from what is declared.
    """
    text = bytes(raw)
    if not text.startswith(b"["):
        raise BadTensor(f"Unable to parse 'data': tensor {name!r}: 'data' must be an array")
    try:
        if datatype is Datatype.BYTES:
            if text.count(b",") + text.count(b"[") > _MOST_ITEMS:
                raise LimitExceeded(f"tensor {name!r}: too many strings for JSON; send them as binary data")
            return raw_of_data(name, datatype, shape, msgspec.json.decode(text))
        if prod(shape):
            return b"".join(raw_of_data(name, datatype, (len(piece),), piece) for piece in _numbers(name, shape, text))
        if text.strip(b"[], \t\r\n"):
            raise _other_shape(name, shape)
    except InvalidRequest as error:
        raise type(error)(f"Unable to parse 'data': {error}") from error
    except (ValueError, RecursionError) as error:
        raise BadEnvelope(f"Unable to parse 'data': tensor {name!r}: {error}") from error
    return b""


def _numbers(name: str, shape: tuple[int, ...], text: bytes) -> Iterator[list[Any]]:
    """Yield the elements of an array in pieces; it is flat, or nested exactly as the shape."""
    # An array has one comma less than elements, however it is nested.
    if text.count(b",") != prod(shape) - 1 or not _has_shape(text, shape):
        raise _other_shape(name, shape)
    flat = text.translate(None, b"[]") if len(shape) > 1 else text.strip(b"[] \t\r\n")
    start = 0
    while start <= len(flat):
        end = flat.find(b",", start + _CHUNK)
        end = len(flat) if end < 0 else end
        yield msgspec.json.decode(b"[%b]" % flat[start:end])
        start = end + 1


def _has_shape(text: bytes, shape: tuple[int, ...]) -> bool:
    skeleton = text.translate(None, _OF_NUMBERS)
    return skeleton in {_skeleton((prod(shape),)), _skeleton(shape)}


def _skeleton(shape: tuple[int, ...]) -> bytes:
    """Return brackets and commas of an array without zeros in its shape."""
    found = b""
    for size in reversed(shape):
        found = b"[%b]" % ((found + b",") * (size - 1) + found)
    return found


def _other_shape(name: str, shape: tuple[int, ...]) -> BadTensor:
    return BadTensor(
        f"Shape does not match true shape of 'data' field: tensor {name!r}: expected a flat list of {prod(shape)}"
        f" elements, or one nested as {list(shape)}"
    )
