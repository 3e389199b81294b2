"""Reading fields of a decoded map (MessagePack or JSON) that a stranger filled in: typed, or a clear error.

Not a schema library: these few functions run on the hot path, where a small request has some 50 us in all.
"""

from __future__ import annotations

from collections.abc import Mapping
from sys import float_info
from typing import Any

from mqinfer.protocol.errors import BadEnvelope
from mqinfer.protocol.types import Scalar

__all__ = [
    "Record",
    "array",
    "boolean",
    "integer",
    "number",
    "numbers",
    "record",
    "records",
    "scalars",
    "text",
    "texts",
]

Record = Mapping[str, Any]

_INTEGER_END = 1 << 63
_SCALARS = frozenset((bool, int, float, str))
_NAMES = {dict: "a map", list: "an array", str: "a string", int: "an integer", bool: "a boolean", float: "a number"}


def _wrong(fields: Record, key: str, where: str, wanted: str) -> BadEnvelope:
    if fields.get(key) is None:
        return BadEnvelope(f"{where}: {key!r} is missing; it must be {wanted}")
    kind = type(fields[key])
    return BadEnvelope(f"{where}: {key!r} must be {wanted}, not {_NAMES.get(kind, kind.__name__)}")


def text(fields: Record, key: str, where: str, default: str | None = None) -> str:
    """Read a string; `default` stands in where the field is absent, without one it is required."""
    value = fields.get(key, default)
    if type(value) is not str:
        raise _wrong(fields, key, where, "a string")
    return value


def boolean(fields: Record, key: str, where: str, *, default: bool) -> bool:
    """Read true or false; `default` stands in where the field is absent."""
    value = fields.get(key, default)
    if type(value) is not bool:
        raise _wrong(fields, key, where, "a boolean")
    return value


def integer(fields: Record, key: str, where: str, default: int | None = None, minimum: int = 0) -> int:
    """Read an integer of 63 bits and a sign that is not below `minimum`."""
    value = fields.get(key, default)
    if type(value) is not int:
        raise _wrong(fields, key, where, "an integer")
    if not minimum <= value < _INTEGER_END:
        raise BadEnvelope(f"{where}: {key!r} must be an integer from {minimum} to 2**63 - 1")
    return value


def number(fields: Record, key: str, where: str, default: float | None = None) -> float:
    """Read a finite number, whole or not."""
    value = fields.get(key, default)
    if not _is_finite(value):
        raise _wrong(fields, key, where, "a finite number")
    return float(value)


def numbers(fields: Record, key: str, where: str) -> tuple[float, ...]:
    """Read an array of finite numbers; empty where the field is absent."""
    found = array(fields, key, where)
    if not all(map(_is_finite, found)):
        raise BadEnvelope(f"{where}: {key!r} must be an array of finite numbers")
    return tuple(map(float, found))


def _is_finite(value: Any) -> bool:
    """Whether it is a number that a float holds; JSON's integers have up to 4300 digits."""
    return type(value) in (int, float) and abs(value) <= float_info.max


def record(fields: Record, key: str, where: str) -> dict[str, Any]:
    """Read a map with string keys; empty where the field is absent."""
    value = fields.get(key)
    if value is None:
        return {}
    if type(value) is not dict:
        raise _wrong(fields, key, where, "a map")
    return value


def array(fields: Record, key: str, where: str) -> list[Any]:
    """Read an array; empty where the field is absent."""
    value = fields.get(key)
    if value is None:
        return []
    if type(value) is not list:
        raise _wrong(fields, key, where, "an array")
    return value


def records(fields: Record, key: str, where: str) -> list[dict[str, Any]]:
    """Read an array of maps; empty where the field is absent."""
    found = array(fields, key, where)
    for index, entry in enumerate(found):
        if type(entry) is not dict:
            raise BadEnvelope(f"{where}: {key!r}[{index}] must be a map")
    return found


def texts(fields: Record, key: str, where: str) -> tuple[str, ...]:
    """Read an array of strings; empty where the field is absent."""
    found = array(fields, key, where)
    if any(type(entry) is not str for entry in found):
        raise BadEnvelope(f"{where}: {key!r} must be an array of strings")
    return tuple(found)


def scalars(fields: dict[str, Any], where: str) -> dict[str, Scalar]:
    """Check that further parameters are booleans, numbers and strings, as the Open Inference Protocol wants them."""
    for key, value in fields.items():
        if type(value) not in _SCALARS:
            raise BadEnvelope(f"{where}: parameter {key!r} must be a boolean, a number or a string")
        if type(key) is not str:
            raise BadEnvelope(f"{where}: a parameter's name must be a string, not {key!r}")
    return fields
