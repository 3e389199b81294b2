"""Items in the order of their numbers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["ReadingOrder"]

T = TypeVar("T")


class ReadingOrder(Generic[T]):
    """Yields items by their number, without gaps. Not thread-safe; its owner bounds how far numbers run ahead."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, T] = {}

    def put(self, number: int, item: T) -> Iterator[T]:
        """Add an item, and yield every item that has no gap before it.

        Args:
            number: From 0, each number once.
            item: To be yielded.
        """
        self._early[number] = item
        while self._next in self._early:
            item = self._early.pop(self._next)
            self._next += 1
            yield item
