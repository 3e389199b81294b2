"""Reads TOML tables against a description: which keys there are, and what each may hold.

A description is built of checks. A check takes a value and the place where it stands, and returns the converted value
or raises ConfigError with file, key, value and what is allowed.
"""

from __future__ import annotations

import logging
import tomllib
from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from sys import float_info
from typing import Any, NoReturn, TypeVar

from mqinfer.protocol.errors import ConfigError

__all__ = [
    "Check",
    "array",
    "choice",
    "flag",
    "integer",
    "mapping",
    "number",
    "numbers",
    "one_or_more",
    "read_toml",
    "scalar",
    "table",
    "text",
]

log = logging.getLogger("mqinfer.models")

Check = Callable[[object, str], Any]
_T = TypeVar("_T")


def _refuse(where: str, value: object, allowed: str) -> NoReturn:
    raise ConfigError(f"{where} = {value!r}: must be {allowed}")


def _at(where: str, key: str) -> str:
    return f"{where} {key}" if where.endswith(":") else f"{where}.{key}"


def _colon(where: str) -> str:
    return where if where.endswith(":") else f"{where}:"


def integer(low: int, high: int | None = None) -> Check:
    """A whole number of at least `low` and, where `high` is given, at most `high`."""
    allowed = f"a whole number of at least {low}" if high is None else f"a whole number from {low} to {high}"

    def check(value: object, where: str) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and low <= value and (high is None or value <= high):
            return value
        _refuse(where, value, allowed)

    return check


def number(value: object, where: str) -> float:
    """Any whole or decimal number that a float holds; no NaN and no infinity."""
    if isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= float_info.max:
        return float(value)
    _refuse(where, value, "a finite number")


def numbers(value: object, where: str) -> tuple[float, ...]:
    """One number, or a list of them; a tuple either way."""
    values = value if isinstance(value, list) else [value]
    if not values:
        _refuse(where, value, "a number or a list of numbers")
    return tuple(number(each, where) for each in values)


def text(value: object, where: str) -> str:
    """A string that is not empty."""
    if isinstance(value, str) and value:
        return value
    _refuse(where, value, "a string")


def flag(value: object, where: str) -> bool:
    """True or false."""
    if isinstance(value, bool):
        return value
    _refuse(where, value, "true or false")


def scalar(value: object, where: str) -> bool | int | float | str:
    """A string, a number, or true or false."""
    if isinstance(value, (bool, int, float, str)):
        return value
    _refuse(where, value, "a string, a number, true or false")


def choice(kinds: type[StrEnum], prefix: str = "") -> Check:
    """One of an enumeration's values; `prefix` may stand before it (Triton's `TYPE_FP32` for `FP32`)."""
    allowed = f"one of {', '.join(kinds)}"

    def check(value: object, where: str) -> StrEnum:
        if isinstance(value, str) and value.removeprefix(prefix) in list(kinds):
            return kinds(value.removeprefix(prefix))
        _refuse(where, value, allowed)

    return check


def array(element: Check) -> Check:
    """A list whose every element passes `element`; gives a tuple."""

    def check(value: object, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            _refuse(where, value, "a list")
        return tuple(element(each, f"{where}[{index}]") for index, each in enumerate(value))

    return check


def one_or_more(element: Check) -> Check:
    """`element` itself, or a list of at least one (Triton writes a list where mostly one is meant); gives a tuple."""

    def check(value: object, where: str) -> tuple[Any, ...]:
        if not isinstance(value, list):
            return (element(value, where),)
        if not value:
            _refuse(where, value, "a table, or a list of them")
        return tuple(element(each, f"{where}[{index}]") for index, each in enumerate(value))

    return check


def mapping(element: Check) -> Check:
    """A table of any names whose every value passes `element`; gives a dictionary."""

    def check(value: object, where: str) -> dict[str, Any]:
        if not isinstance(value, dict):
            _refuse(where, value, "a table of names and values")
        return {key: element(each, f"{where}.{key}") for key, each in value.items()}

    return check


def table(
    keys: Mapping[str, Check], make: Callable[..., _T], *, required: Iterable[str] = (), ignored: Iterable[str] = ()
) -> Check:
    """A table with the given keys; gives `make(**values)`, so the defaults are those of `make`.

    Args:
        keys: Name of every key, with its check.
        make: Called with the keys that are there; its ValueError becomes a ConfigError.
        required: Keys that must be there.
        ignored: Keys that are legal elsewhere (in Triton) and do nothing here: they are logged.
    """
    unused = frozenset(ignored)

    def check(value: object, where: str) -> _T:
        if not isinstance(value, dict):
            _refuse(where, value, f"a table with the keys {', '.join(keys)}")
        _refuse_unknown(value, keys, unused, where)
        if missing := [key for key in required if key not in value]:
            raise ConfigError(f"{_colon(where)} the key {missing[0]!r} is missing")
        given = {key: keys[key](each, _at(where, key)) for key, each in value.items() if key in keys}
        try:
            return make(**given)
        except ValueError as error:
            raise ConfigError(f"{_colon(where)} {error}") from error

    return check


def _refuse_unknown(value: Mapping[str, object], keys: Mapping[str, Check], unused: frozenset[str], where: str) -> None:
    for key in sorted(unused & value.keys()):
        log.warning("%s is known to Triton but does nothing here", _at(where, key))
    unknown = [key for key in value if key not in keys and key not in unused]
    if unknown:
        named = "; ".join(_suggestion(key, keys) for key in unknown)
        raise ConfigError(f"{_colon(where)} unknown key {named} (keys here: {', '.join(keys)})")


def _suggestion(key: str, keys: Mapping[str, Check]) -> str:
    near = get_close_matches(key, keys, n=1)
    return f"{key!r}, did you mean {near[0]!r}?" if near else repr(key)


def read_toml(path: Path, description: Check) -> Any:
    """Read a TOML file against a description.

    Raises:
        ConfigError: The file can't be read, is no TOML, or breaks the description.
    """
    try:
        content = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from error
    except (ValueError, RecursionError) as error:  # TOMLDecodeError; an integer of more digits than Python reads
        raise ConfigError(f"{path}: no valid TOML: {error}") from error
    try:
        return description(content, f"{path}:")
    except RecursionError as error:
        raise ConfigError(f"{path}: tables within tables, too many for a model's configuration") from error
