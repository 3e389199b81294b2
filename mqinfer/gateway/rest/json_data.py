"""From the JSON of a tensor's `data` to the tensor's raw form.

Arrays of numbers are never made into Python objects as a whole, which would take ten times the memory of their text:
the elements are counted by their commas, and the numbers are converted piece by piece. Nested arrays are read in the
order of their text, however they are nested, as Triton reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import msgspec
from msgspec import Raw

from mqinfer.gateway.tfs.json_tensors import to_binary
from mqinfer.protocol.datatypes import Datatype, join_strings
from mqinfer.protocol.errors import BadEnvelope, BadTensor, InvalidRequest, LimitExceeded
from mqinfer.protocol.oip_json import raw_of_data

_CHUNK = 1 << 20
"""Text of numbers that is converted at a time, so that the loop's thread gets its turns."""
_MOST_ITEMS = 4 << 20
"""Strings, or whatever else, in one BYTES tensor of JSON; each takes 60 bytes or more of memory."""


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
            return _raw_of_strings(name, list(_flat(msgspec.json.decode(text))))
        if prod(shape):
            return b"".join(raw_of_data(name, datatype, (len(piece),), piece) for piece in _numbers(name, shape, text))
        if text.strip(b"[], \t\r\n"):
            raise _other_shape(name, shape)
    except InvalidRequest as error:
        raise type(error)(f"Unable to parse 'data': {error}") from error
    except (ValueError, RecursionError) as error:
        raise BadEnvelope(f"Unable to parse 'data': tensor {name!r}: {error}") from error
    return b""


def _raw_of_strings(name: str, strings: list[Any]) -> bytes:
    """Return the raw form of strings; where these are more or fewer than stated, that is refused as for binary ones."""
    if dict in map(type, strings):  # in base64, as for TensorFlow Serving
        return join_strings([to_binary(each) if isinstance(each, dict) else each for each in strings], name)
    return raw_of_data(name, Datatype.BYTES, (len(strings),), strings)


def _flat(items: list[Any]) -> Iterator[Any]:
    for item in items:
        if type(item) is list:
            yield from _flat(item)
        else:
            yield item


def _numbers(name: str, shape: tuple[int, ...], text: bytes) -> Iterator[list[Any]]:
    """Yield the elements of an array in pieces."""
    # An array has one comma less than elements, however it is nested.
    if text.count(b",") != prod(shape) - 1:
        raise _other_shape(name, shape)
    flat = text.translate(None, b"[]")
    start = 0
    while start <= len(flat):
        end = flat.find(b",", start + _CHUNK)
        end = len(flat) if end < 0 else end
        yield msgspec.json.decode(b"[%b]" % flat[start:end])
        start = end + 1


def _other_shape(name: str, shape: tuple[int, ...]) -> BadTensor:
    return BadTensor(
        f"Shape does not match true shape of 'data' field: tensor {name!r} of shape {list(shape)}: expected"
        f" {prod(shape)} elements"
    )
