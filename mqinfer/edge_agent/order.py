"""Results come back in any order; sinks get them in the order of reading."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Reorder"]

T = TypeVar("T")


class Reorder(Generic[T]):
    """Gives items out by their number, without gaps. Not thread-safe; as large as its owner lets numbers run ahead."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, T] = {}

    def put(self, number: int, item: T) -> Iterator[T]:
        """Take an item in, and yield every item whose turn has come.

        Args:
            number: From 0, each number once.
            item: What to give out.
        """
        self._early[number] = item
        while self._next in self._early:
            item = self._early.pop(self._next)
            self._next += 1
            yield item
