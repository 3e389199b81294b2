"""Which requests run together: pure, with the clock's reading as an argument.

Requests with the same key (shapes and wanted outputs) may share a batch. A batch is ready when it is full, or when its
oldest request has waited `max_delay`; with a delay of 0 that is at once: what gathers while one batch runs is the next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

__all__ = ["Batcher"]

T = TypeVar("T")


@dataclass(slots=True)
class _Group(Generic[T]):
    """Requests that may share a batch, oldest first, as (arrival, rows, item)."""

    queue: deque[tuple[float, int, T]] = field(default_factory=deque)
    rows: int = 0


class Batcher(Generic[T]):
    """Gathers requests into batches. Not thread-safe: its owner holds a lock."""

    def __init__(self, max_rows: int, max_delay: float = 0.0) -> None:
        """Set the bounds.

        Args:
            max_rows: Rows (entries of the batch axis) of a batch at most; 1 or more.
            max_delay: Seconds that a request may wait for others.
        """
        self._max_rows = max(1, max_rows)
        self._max_delay = max_delay
        self._groups: dict[Hashable, _Group[T]] = {}
        self._items = 0

    def __len__(self) -> int:
        """Count the requests that wait."""
        return self._items

    def add(self, item: T, key: Hashable, rows: int, now: float) -> None:
        """Take in a request.

        Args:
            item: The request.
            key: Only requests with equal keys share a batch.
            rows: Its entries on the batch axis; at most `max_rows`.
            now: The clock's reading, in seconds.
        """
        group = self._groups.setdefault(key, _Group())
        group.queue.append((now, rows, item))
        group.rows += rows
        self._items += 1

    def wait(self, now: float) -> float | None:
        """Tell how many seconds are left until `take` has a batch: 0 for now, None for not before another `add`."""
        if not self._items:
            return None
        return min(self._wait_of(group, now) for group in self._groups.values())

    def take(self, now: float) -> list[T]:
        """Take the ready batch whose oldest request came first; empty when none is ready."""
        ready = [key for key, group in self._groups.items() if self._wait_of(group, now) <= 0]
        if not ready:
            return []
        key = min(ready, key=lambda candidate: self._groups[candidate].queue[0][0])
        return self._cut(key)

    def clear(self) -> list[T]:
        """Take everything that waits."""
        left = [item for group in self._groups.values() for _, _, item in group.queue]
        self._groups.clear()
        self._items = 0
        return left

    def _wait_of(self, group: _Group[T], now: float) -> float:
        if group.rows >= self._max_rows:
            return 0.0
        return max(0.0, group.queue[0][0] + self._max_delay - now)

    def _cut(self, key: Hashable) -> list[T]:
        group = self._groups[key]
        batch: list[T] = []
        rows = 0
        while group.queue and (not batch or rows + group.queue[0][1] <= self._max_rows):
            _, more, item = group.queue.popleft()
            batch.append(item)
            rows += more
        group.rows -= rows
        self._items -= len(batch)
        if not group.queue:
            del self._groups[key]
        return batch
