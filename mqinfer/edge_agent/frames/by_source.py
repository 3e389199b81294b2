"""Options with a value for all sources, `12`, or for single ones, `/topic=12`; they may be repeated."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self, TypeVar

from mqinfer.protocol.errors import ConfigError

T = TypeVar("T")
_LOWEST = 1000


def read_by_source(
    option: str, given: Iterable[str], read: Callable[[str], T | None], expected: str
) -> tuple[T | None, dict[str, T]]:
    """Return the value of the sources without one of their own, None where there is none, and the values of the others.

    Args:
        option: Its name.
        given: Its values.
        read: Returns what a text stands for, None where it is wrong.
        expected: What it should be, for messages.

    Raises:
        ConfigError: One is wrong.
    """
    others: T | None = None
    by_source: dict[str, T] = {}
    for text in given:
        source, _, value = text.rpartition("=")
        found = read(value)
        if found is None:
            raise ConfigError(f"{option} {text}: expected {expected}")
        if source:
            by_source[source] = found
        else:
            others = found
    return others, by_source


def check_sources(option: str, by_source: Mapping[str, object], sources: Sequence[str]) -> None:
    """Check that each source with a value of its own is there.

    Raises:
        ConfigError: One is not.
    """
    if missing := [source for source in by_source if source not in sources]:
        raise ConfigError(f"{option}: no image topic {', '.join(missing)}; there are {', '.join(sources)}")


def whole_number(least: int, most: int) -> Callable[[str], int | None]:
    """Return what reads a whole number from `least` to `most`."""

    def read(text: str) -> int | None:
        is_number = text.isascii() and text.isdigit() and len(text) <= len(str(most))
        return int(text) if is_number and least <= int(text) <= most else None

    return read


@dataclass(frozen=True, slots=True)
class Priorities:
    """The priorities of the frames; 1 is the highest, 0 the model's default.

    Attributes:
        others: Of the sources without an entry of their own.
        by_source: Of single topics, files or devices.
    """

    others: int = 0
    by_source: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def parse(cls, options: Iterable[str]) -> Self:
        """Read `1`, for all sources, and `/topic=1`.

        Raises:
            ConfigError: Something else.
        """
        expected = f"1 (the highest) to {_LOWEST}, such as 1 or /topic=1"
        others, by_source = read_by_source("--priority", options, whole_number(1, _LOWEST), expected)
        return cls(others or 0, by_source)

    def of(self, source: str) -> int:
        """Return the priority of a source's frames."""
        return self.by_source.get(source, self.others)
