"""Check configuration values against a description: which keys there are, and what each may hold; write TOML.

A description is built of checks. A check takes a value and its place, and returns the converted value or raises
ConfigError with file, key, value and what is expected. `table_of` makes the checks of a class from its fields.
"""

from __future__ import annotations

import json
import logging
import re
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from msgspec import Meta, Struct, ValidationError, convert, structs

from mqinfer.logs import log_once
from mqinfer.protocol.card import Layout
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Finite, Scalar
from mqinfer.toml_files import parse_toml, read_text

log = logging.getLogger("mqinfer.models")

_T = TypeVar("_T")
_PREFIXES: Mapping[type, str] = {Layout: "FORMAT_", Datatype: "TYPE_"}
"""What Triton writes before an enumeration's values."""
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_MOST_NAMED, _MOST_KEY, _MOST_SHOWN = 16, 80, 500
"""Unknown keys, and characters of one and of a value, that a message shows."""
_UNBOUNDED = 1 << 32
"""A bound above this is that of the number's type."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands in a configuration file.

    Attributes:
        file: The file.
        key: The key in it, such as `input[0].dims`; empty for the file as a whole.
        names_checked: Whether Triton's own descriptor has checked the keys: one without a check here has no effect.
        unused: Collects the keys that have no effect; all places of a file share it.
    """

    file: Path
    key: str = ""
    names_checked: bool = False
    unused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.file}: {self.key}" if self.key else str(self.file)

    def at(self, key: str) -> Place:
        """Return the place of a key in the table at this place."""
        return replace(self, key=f"{self.key}.{key}" if self.key else key)

    def item(self, index: int) -> Place:
        """Return the place of an element of the list at this place."""
        return replace(self, key=f"{self.key}[{index}]")

    def refusal(self, value: object, expected: str) -> ConfigError:
        """Return the error of a wrong value."""
        shown = repr(value)
        shown = shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "…"
        return ConfigError(f"{self} = {shown}: expected {expected}")

    def add_unused(self, key: str) -> None:
        """Add a key of the table at this place to those without effect, without the numbers of list elements."""
        self.unused.append(re.sub(r"\[\d+\]", "", self.at(key).key))

    def warn_of_unused(self) -> None:
        """Log the keys of the file that have no effect, in one warning."""
        if self.unused:
            log_once(
                log, logging.WARNING, "%s: without effect here: %s", self.file, ", ".join(dict.fromkeys(self.unused))
            )


Check = Callable[[object, Place], Any]


def numbers(value: object, place: Place) -> tuple[float, ...]:
    """Check for a number or a list of numbers; return a tuple either way."""
    values = value if isinstance(value, list) else [value]
    if not values:
        raise place.refusal(value, "a number or a list of numbers")
    return tuple(_NUMBER(each, place) for each in values)


def array(element: Check) -> Check:
    """Check for a list whose every element passes `element`; the check returns a tuple."""

    def check(value: object, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list):
            raise place.refusal(value, "a list")
        return tuple(element(each, place.item(index)) for index, each in enumerate(value))

    return check


def one_or_more(element: Check) -> Check:
    """Check for one `element`, or a list of at least one, since Triton has lists where one is usual; return a tuple."""

    def check(value: object, place: Place) -> tuple[Any, ...]:
        if not isinstance(value, list):
            return (element(value, place),)
        if not value:
            raise place.refusal(value, "a table, or a list of them")
        return tuple(element(each, place.item(index)) for index, each in enumerate(value))

    return check


def mapping(element: Check) -> Check:
    """Check for a table of any names whose every value passes `element`; the check returns a dictionary."""

    def check(value: object, place: Place) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise place.refusal(value, "a table of names and values")
        return {key: element(each, place.at(key)) for key, each in value.items()}

    return check


def table(
    keys: Mapping[str, Check], make: Callable[..., _T], *, required: Iterable[str] = (), ignored: Iterable[str] = ()
) -> Check:
    """Check for a table with the given keys; the check returns `make(**values)`, so the defaults are those of `make`.

    Args:
        keys: Every key's name and check.
        make: Called with the keys that are there; its ValueError becomes a ConfigError.
        required: Keys that must be there.
        ignored: Keys of Triton's that have no effect here; `Place.unused` collects them.
    """
    without_effect = frozenset(ignored)

    def check(value: object, place: Place) -> _T:
        if not isinstance(value, dict):
            raise place.refusal(value, f"a table with the keys {', '.join(keys)}")
        _refuse_unknown(value, keys, without_effect, place)
        if missing := [key for key in required if key not in value]:
            raise ConfigError(f"{place}: the key {missing[0]!r} is missing")
        given = {key: keys[key](each, place.at(key)) for key, each in value.items() if key in keys}
        try:
            return make(**given)
        except ValueError as error:
            raise ConfigError(f"{place}: {error}") from error

    return check


def table_of(
    kind: type[_T],
    make: Callable[..., _T] | None = None,
    *,
    required: Iterable[str] | None = None,
    ignored: Iterable[str] = (),
    **own: Check,
) -> Check:
    """Check for a table with a key for each field of a class, by the fields' types.

    Args:
        kind: A dataclass or Struct.
        make: Called in place of the class.
        required: Keys that must be there; None for the fields without a default.
        ignored: As of `table`.
        own: Checks of fields that have rules of their own, and of further keys for `make`.
    """
    hints, needed = get_type_hints(kind, include_extras=True), _fields(kind)
    keys = {name: own.pop(name) if name in own else check_of(hints[name]) for name in needed}
    wanted = [name for name, is_needed in needed.items() if is_needed] if required is None else required
    return table(keys | own, make or kind, required=wanted, ignored=ignored)


def _fields(kind: Any) -> dict[str, bool]:
    """Return the names of a class's fields, and whether each has no default."""
    if issubclass(kind, Struct):
        return {each.name: each.required for each in structs.fields(kind)}
    return {each.name: each.default is MISSING is each.default_factory for each in fields(kind)}


def check_of(hint: Any) -> Check:
    """Check for a value of a type: a number or a string within its bounds, an enumeration's value, a list or a table.

    A list that is never empty may be one number, and Triton's prefix may stand before an enumeration's value.
    """
    plain, bounds = get_args(hint) if get_origin(hint) is Annotated else (hint, Meta())
    if plain is int:
        return _integer(bounds.ge or 0, bounds.le)
    if plain in _SIMPLE:
        return _converted(*_SIMPLE[plain])
    if inner := get_args(plain):
        return _check_of_parts(get_origin(plain), inner, is_filled=bounds.min_length is not None)
    if issubclass(plain, StrEnum):
        return _converted(plain, f"one of {', '.join(plain)}", _PREFIXES.get(plain, ""))
    return table_of(plain)


def _integer(low: float, high: float | None) -> Check:
    if high is None or high > _UNBOUNDED:
        return _converted(
            Annotated[int, Meta(ge=low, le=(1 << 63) - 1)], f"a whole number of at least {low}, below 2**63"
        )
    return _converted(Annotated[int, Meta(ge=low, le=high)], f"a whole number from {low} to {high}")


def _converted(kind: Any, expected: str, prefix: str = "") -> Check:
    def check(value: object, place: Place) -> Any:
        try:
            return convert(value.removeprefix(prefix) if isinstance(value, str) else value, kind)
        except ValidationError:
            raise place.refusal(value, expected) from None

    return check


def _check_of_parts(origin: Any, inner: tuple[Any, ...], *, is_filled: bool) -> Check:
    """Return the check of several values, or of one that may be None."""
    if origin is tuple:
        return numbers if is_filled else array(check_of(inner[0]))
    if origin is Mapping:
        return mapping(check_of(inner[1]))
    return check_of(next(each for each in inner if each is not type(None)))


_SIMPLE: Mapping[Any, tuple[Any, str]] = {
    bool: (bool, "true or false"),
    float: (Finite, "a finite number"),
    str: (Annotated[str, Meta(min_length=1)], "a string"),
    Scalar: (Scalar, "a string, a number, true or false"),
}
_NUMBER = check_of(float)


def _refuse_unknown(
    value: Mapping[str, object], keys: Mapping[str, Check], ignored: frozenset[str], place: Place
) -> None:
    others = [key for key in value if key not in keys]
    unknown = [] if place.names_checked else [key for key in others if key not in ignored]
    if unknown:
        named = "; ".join(_suggestion(key, keys) for key in unknown[:_MOST_NAMED])
        named += f" and {len(unknown) - _MOST_NAMED} more" if len(unknown) > _MOST_NAMED else ""
        raise ConfigError(f"{place}: unknown key {named} (keys here: {', '.join(keys)})")
    for key in others:
        place.add_unused(key)


def _suggestion(key: str, keys: Mapping[str, Check]) -> str:
    key = key[:_MOST_KEY]
    near = get_close_matches(key, keys, n=1)
    return f"{key!r}, did you mean {near[0]!r}?" if near else repr(key)


def read_toml(path: Path, description: Check) -> Any:
    """Read a TOML file against a description.

    Raises:
        ConfigError: The file can't be read, is no TOML, or breaks the description.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # reading a pipe would block
            raise ConfigError(f"{path}: not a file")
        content = parse_toml(read_text(path))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't be read: {error}") from error
    except ValueError as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from error
    place = Place(path)
    checked = description(content, place)
    place.warn_of_unused()
    return checked


def as_toml(value: Any) -> str:
    """Return a value as TOML on one line; only types that TOML and JSON share."""
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{toml_key(key)} = {as_toml(each)}' for key, each in value.items())} }}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(as_toml, value))}]"
    # JSON's strings, numbers, true and false are valid TOML, except that TOML requires DEL to be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def toml_key(key: str) -> str:
    """Return a key as TOML has it."""
    return key if _BARE.fullmatch(key) else as_toml(key)
