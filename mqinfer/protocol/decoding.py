"""Decoding of maps from strangers, MessagePack or JSON, into typed shapes, and one typed error for each fault.

Shapes are `msgspec.Struct` classes (or dataclasses): msgspec checks types and ranges in C. Fields that a shape does not
have are ignored, so that a newer peer may add some.

How deep maps and arrays lie within each other is checked before anything that recurses reads them: how deep a parser
goes by itself differs between Pythons.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from enum import EnumMeta
from sys import float_info
from typing import Any, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from msgspec import inspect as shapes

from mqinfer.protocol.errors import BadEnvelope, BadTensor, InvalidRequest, LimitExceeded
from mqinfer.protocol.types import Buffer, Scalar

MAX_NESTING = 100
"""As in Triton, for MessagePack and JSON."""

JSON_STRINGS = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)
"""A string of JSON; one without an end reaches to the text's, so that the time grows with the text alone."""
_STEPS = np.zeros(256, np.int8)
_STEPS[list(b"[{]}")] = 1, 1, -1, -1
_QUOTE = ord('"')

_CHUNK = 64 << 10

# Heads of MessagePack.
_SHORT = frozenset(range(0x80, 0xA0))  # maps and arrays of up to 15 items
_LONG = frozenset(range(0xDC, 0xE0))
_MAPS = frozenset({*range(0x80, 0x90), 0xDE, 0xDF})
NO_CONTAINERS = bytes(set(range(256)) - _SHORT - _LONG)
"""All bytes but those with which a map or an array begins in MessagePack. Who has few of those can't be nested deep."""
_LENGTHS = dict.fromkeys((0xC4, 0xC7, 0xD9), 1) | dict.fromkeys((0xC5, 0xC8, 0xDA, 0xDC, 0xDE), 2)
_LENGTHS |= dict.fromkeys((0xC6, 0xC9, 0xDB, 0xDD, 0xDF), 4)
"""Bytes of the length behind a head: of binary, extensions, strings, arrays and maps."""
_FIXED = dict(zip(range(0xCA, 0xD9), (4, 8, 1, 2, 4, 8, 1, 2, 4, 8, 2, 3, 5, 9, 17), strict=True))
_FIXED |= dict.fromkeys(range(0xC7, 0xCA), 1) | {0xA0 + size: size for size in range(32)}
"""Bytes of fixed number behind that: numbers, extensions with their type, short strings."""


def outside_strings(text: bytes, wanted: bytes) -> Iterator[np.ndarray[Any, np.dtype[np.uint8]]]:
    """Yield piece by piece the wanted characters of JSON that stand outside its strings; it need not be well-formed.

    However many strings there are, it takes no more memory than the text.
    """
    if b"\\" in text:  # without what is escaped, a string is what two quotes enclose
        text = text.replace(rb"\\", b"").replace(rb"\"", b"")
    text = text.translate(None, bytes(set(range(256)) - {_QUOTE, *wanted}))
    quotes = 0
    for start in range(0, len(text), _CHUNK):
        piece = np.frombuffer(text[start : start + _CHUNK], np.uint8)
        before = quotes + np.cumsum(piece == _QUOTE, dtype=np.int32)
        quotes = int(before[-1])
        yield piece[(before % 2 == 0) & (piece != _QUOTE)]


def is_deep_json(text: Buffer) -> bool:
    """Return whether JSON is nested deeper than `MAX_NESTING`; it need not be well-formed."""
    whole = bytes(text)
    if whole.count(b"[") + whole.count(b"{") <= MAX_NESTING:
        return False
    depth = 0
    for brackets in outside_strings(whole, b"[{]}"):
        depths = depth + np.cumsum(_STEPS[brackets], dtype=np.int32)
        if depths.max(initial=0) > MAX_NESTING:
            return True
        depth = int(depths[-1]) if len(depths) else depth
    return False


def is_deep_msgpack(packed: Buffer) -> bool:
    """Return whether MessagePack is nested deeper than `MAX_NESTING`; it need not be well-formed.

    Source: https://github.com/msgpack/msgpack/blob/master/spec.md
    """
    data = bytes(packed)
    still: list[int] = []  # of each map and array around the next value: how many values it still has
    at = 0
    while at < len(data) and len(still) <= MAX_NESTING:
        while still and not still[-1]:
            still.pop()
        if still:
            still[-1] -= 1
        head = data[at]
        behind = at + 1 + _LENGTHS.get(head, 0)
        length = int.from_bytes(data[at + 1 : behind])
        at = behind + _FIXED.get(head, 0)
        if head in _SHORT or head in _LONG:
            count = length if head in _LONG else head & 0x0F
            still.append(2 * count if head in _MAPS else count)
        else:
            at += length
    return len(still) > MAX_NESTING


MAX_JSON_BYTES = 8 << 20
"""Longest JSON that is parsed; Python takes up to 21 times as much memory for it (`[[],[],[]]`)."""

MAX_STATE_BYTES = 64 << 10
"""Longest state, cancellation or body of a call."""

_SCALARS = frozenset((bool, int, float, str))
_FAULT = re.compile(r"(?P<fault>.*?)(?: - at (?P<key>`key` in )?`\$\.?(?P<path>[^`]*)`)?", re.DOTALL)
_NAMES = {
    " | null`": "`",
    f"`float` >= {-float_info.max!r}": "a finite number",
    f"`float` <= {float_info.max!r}": "a finite number",
    "`array`": "an array",
    "`bool`": "a boolean",
    "`bytes`": "binary",
    "`ext`": "an extension type",
    "`float`": "a number",
    "`int`": "an integer",
    "`null`": "nil",
    "`None`": "nil",
    "`object`": "a map",
    "`str`": "a string",
    str((1 << 63) - 1): "2**63 - 1",
    str(-(1 << 63)): "-2**63",
}
_Shape = TypeVar("_Shape", bound=Struct)


def prepare(*shapes: type[Struct]) -> None:
    """Make msgspec build what it needs to decode some shapes, and keep it.

    Called where a module is imported: where several threads decode a shape first, at the same time, one may use what
    another has half built, and the process ends by a segmentation fault (msgspec 0.22).
    """
    for shape in shapes:
        msgspec.json.Decoder(shape)


def read_json(text: Buffer, shape: type[_Shape], what: str, limit: int = MAX_JSON_BYTES) -> _Shape:
    """Decode a JSON object of a shape.

    Args:
        text: UTF-8.
        shape: The fields that it must have.
        what: What it is, such as `model card`; for the message.
        limit: In bytes.

    Raises:
        BadEnvelope: It is not JSON, or a field is missing or wrong: the message names the field.
        BadTensor: A datatype does not exist.
        LimitExceeded: It is longer than `limit`.
    """
    return check(parse_json(text, what, limit), shape, what)


def check(found: object, shape: type[_Shape], what: str) -> _Shape:
    """Return the shape of a decoded map; errors as for `read_json`."""
    try:
        return msgspec.convert(found, shape)
    except msgspec.ValidationError as error:
        raise refusal(error, shape, what) from error


def parse_json(text: Buffer, what: str, limit: int = MAX_JSON_BYTES) -> Any:
    """Parse any JSON whose strings can be written as UTF-8; arguments and errors as for `read_json`."""
    size = memoryview(text).nbytes
    if size > limit:
        raise LimitExceeded(f"{what}: {size} bytes of JSON; at most {limit} are accepted; send large tensors as binary")
    if is_deep_json(text):
        raise BadEnvelope(f"{what}: JSON is nested more than {MAX_NESTING} deep")
    try:
        source = str(text, "utf-8-sig")
        # Not msgspec's parser: it refuses a byte order mark, and the bare NaN that many libraries write.
        found = json.loads(source, parse_constant=float)
        if "\\ud" in source or "\\uD" in source:
            json.dumps(found, ensure_ascii=False).encode()  # fails on halves of surrogate pairs, wherever they stand
    except UnicodeEncodeError as error:
        raise BadEnvelope(f"{what}: contains half of a surrogate pair; strings must be Unicode") from error
    except (ValueError, RecursionError) as error:
        raise BadEnvelope(f"{what}: not JSON in UTF-8: {error}") from error
    return found


def write_json(fields: Mapping[str, Any], what: str) -> bytes:
    """Return a JSON object without blanks.

    Raises:
        BadEnvelope: JSON has no such value; it has neither NaN nor infinities.
    """
    try:
        return json.dumps(fields, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    except (TypeError, ValueError) as error:
        raise BadEnvelope(
            f"{what}: can't be written as JSON ({error}); use booleans, finite numbers and strings"
        ) from error


def scalars(parameters: Mapping[str, Any], known: frozenset[str], what: str) -> Mapping[str, Scalar]:
    """Return the parameters that are not among the `known` ones.

    Raises:
        BadEnvelope: One is neither a boolean, a number nor a string.
    """
    if known.issuperset(parameters):
        return {}
    found = {name: value for name, value in parameters.items() if name not in known}
    for name, value in found.items():
        if type(value) not in _SCALARS:
            raise BadEnvelope(f"{what}: parameter {name!r} must be a boolean, a number or a string")
    return found


def refusal(error: Exception, shape: type[Struct], what: str, wrong: str = "") -> InvalidRequest:
    """Return the error of this protocol for an error of msgspec.

    Args:
        error: The error of msgspec.
        shape: The shape that it was to decode.
        what: What was decoded, as for `read_json`.
        wrong: The fault where the bytes are not of the format at all.
    """
    if not isinstance(error, msgspec.ValidationError):
        return BadEnvelope(f"{what}: {wrong}: {error}")
    found = _FAULT.fullmatch(str(error))
    fault, path, key = (found["fault"], found["path"] or "", found["key"]) if found else (str(error), "", None)
    if fault.startswith("Object missing required field "):
        path = f"{path}.{fault.split('`')[1]}".lstrip(".")
        fault = "is missing"
    elif fault.startswith("Invalid enum value"):
        fault = f"is {fault.removeprefix('Invalid enum value ')[:40]}; it must be one of {_choices(shape, path)}"
    else:
        fault = _sentence(fault)
    field = path.rpartition(".")[2].partition("[")[0]
    kind = BadTensor if field in getattr(shape, "TENSOR_FIELDS", ("datatype",)) else BadEnvelope
    subject = f"{what}: {path[:80]!r}" if path else what
    return kind(f"{subject}{': every key' if key else ''} {fault}")


def _sentence(fault: str) -> str:
    """Return a fault that msgspec found, such as "Expected `int`, got `str`", in plain words."""
    if not fault.startswith("Expected "):
        return f"is wrong: {fault}"
    for theirs, ours in _NAMES.items():
        fault = fault.replace(theirs, ours)
    expected, _, got = fault.removeprefix("Expected ").partition(", got ")
    return f"must be {expected}" + (f", not {got}" if got else "")


def _choices(shape: type[Struct], path: str) -> str:
    """List the values of the enumeration at a path of a shape, such as `inputs[0].datatype`."""
    kind: shapes.Type = shapes.type_info(shape)
    for name in re.sub(r"\[.*?\]", "", path).split("."):
        while isinstance(kind, shapes.UnionType | shapes.ListType | shapes.VarTupleType):
            kind = kind.types[0] if isinstance(kind, shapes.UnionType) else kind.item_type
        if isinstance(kind, shapes.StructType | shapes.DataclassType):
            kind = next((field.type for field in kind.fields if field.encode_name == name), kind)
    while isinstance(kind, shapes.UnionType):
        kind = kind.types[0]
    names: EnumMeta | tuple[()] = kind.cls if isinstance(kind, shapes.EnumType) else ()
    return ", ".join(names)
