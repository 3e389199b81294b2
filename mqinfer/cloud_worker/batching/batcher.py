"""Which requests run together: pure, with the clock's reading as an argument.

Requests with the same key (shapes and wanted outputs) may share a batch, in the order of their places in the line. When
a batch runs and how large it is, a policy decides for each key. Requests of one stream never overtake each other,
whatever their priorities and keys.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, TypeVar

from mqinfer.cloud_worker.batching.batch_policy import BatchPolicy, Choice, Ended

__all__ = ["PRIORITY_TURNS", "Batch", "Batcher", "Ready"]

T = TypeVar("T")
_GROUPS = 32
"""Groups that are kept at most when they are empty: one a key, so that its policy learns what its shapes cost."""

PRIORITY_TURNS = 64
"""Turns by which each level of priority goes before the next. So long a lower one waits at most: none starves."""


class Ready(NamedTuple, Generic[T]):
    """A request that is ready to run.

    Attributes:
        item: The request.
        key: Only requests with equal keys share a batch.
        rows: Its entries on the batch axis.
        client: Who sent it.
        source: Its stream at that client; empty where it belongs to none.
        level: Of priority, 0 the highest.
    """

    item: T
    key: Hashable
    rows: int
    client: str = ""
    source: str = ""
    level: int = 0


class Batch(NamedTuple, Generic[T]):
    """Requests that run together.

    Attributes:
        items: In the order of their places.
        rows: Entries on the batch axis, all together.
        turn: The latest of theirs.
        key: Of all of them.
        policy: Whose choice it was.
    """

    items: list[T]
    rows: int
    turn: float
    key: Hashable
    policy: BatchPolicy


class _Waiting(NamedTuple, Generic[T]):
    """A request in line. The first two fields sort; no two numbers are equal."""

    place: float
    number: int
    turn: float
    came: float
    ready: Ready[T]


_Stream = tuple[str, str]


def _stream(ready: Ready[T]) -> _Stream | None:
    return (ready.client, ready.source) if ready.source else None


@dataclass(slots=True)
class _Group(Generic[T]):
    """Requests that may share a batch, sorted."""

    policy: BatchPolicy
    oldest: float = 0.0
    line: list[_Waiting[T]] = field(default_factory=list)
    rows: int = 0

    def choose(self, now: float, idle: int) -> Choice:
        return self.policy.choose(max(1, self.rows), self.oldest, now, idle)

    def remove(self, gone: list[_Waiting[T]], rows: int) -> None:
        count = len(gone)
        if gone[-1] is self.line[count - 1]:  # the first ones, as nearly always
            del self.line[:count]
        else:
            numbers = {waiting.number for waiting in gone}
            self.line = [waiting for waiting in self.line if waiting.number not in numbers]
        self.rows -= rows
        if self.line:
            self.oldest = min(waiting.came for waiting in self.line)


class Batcher(Generic[T]):
    """Gathers requests into batches. Not thread-safe: its owner holds a lock."""

    def __init__(self, make_policy: Callable[[], BatchPolicy]) -> None:
        """Begin with nothing.

        Args:
            make_policy: Makes the policy of a key that is new.
        """
        self._make_policy = make_policy
        self._known: dict[Hashable, _Group[T]] = {}  # also empty ones, for what their policies have learned
        self._groups: dict[Hashable, _Group[T]] = {}  # those in which something waits
        self._places: dict[_Stream, float] = {}  # of the last request of each stream, while any wait
        self._items = 0
        self._number = 0

    def __len__(self) -> int:
        """Count the requests that wait."""
        return self._items

    def add(self, ready: Ready[T], now: float, turn: float = 0.0) -> None:
        """Take in a request.

        Args:
            ready: The request.
            now: The clock's reading, in seconds.
            turn: The smallest goes first; equal ones in the order of coming.
        """
        group = self._groups.get(ready.key) or self._open(ready.key, now)
        self._number += 1
        place = self._place(ready, turn) if ready.source or ready.level else turn
        insort(group.line, _Waiting(place, self._number, turn, now, ready))
        group.rows += ready.rows
        self._items += 1
        group.policy.came(group.rows, now)

    def take(self, now: float, idle: int = 1) -> Batch[T] | float | None:
        """Take the batch that is to run now, of several the one whose first request is first in line.

        Args:
            now: The clock's reading, in seconds.
            idle: How many batches could begin now.

        Returns:
            The batch; or the seconds until there is one; or None where nothing waits.
        """
        soonest: float | None = None
        chosen: tuple[_Waiting[T], int] | None = None
        for group in self._groups.values():
            rows, wait = group.choose(now, idle)
            if wait > 0:
                soonest = wait if soonest is None else min(soonest, wait)
            elif chosen is None or group.line[0][:2] < chosen[0][:2]:
                chosen = group.line[0], rows
        return soonest if chosen is None else self._cut(chosen[0].ready.key, chosen[1], now)

    def ended(self, batch: Batch[T], ran: int, seconds: float, now: float) -> None:
        """Note that a batch has ended.

        Args:
            batch: As it was taken.
            ran: Rows that the model was given of it.
            seconds: That it kept the model busy.
            now: The clock's reading.
        """
        group = self._groups.get(batch.key)
        batch.policy.ended(Ended(batch.rows, ran, seconds), group.rows if group else 0, now)

    def clients(self) -> Counter[str]:
        """Count the requests that wait, by client."""
        return Counter(waiting.ready.client for waiting in self._all())

    def give_up(self, client: str) -> T | None:
        """Take out the request of a client that is the last in line; None where none waits."""
        last = max((each for each in self._all() if each.ready.client == client), default=None)
        if last is None:
            return None
        self._remove(last.ready.key, [last], last.ready.rows)
        return last.ready.item

    def clear(self) -> list[T]:
        """Take everything that waits."""
        left = [waiting.ready.item for waiting in self._all()]
        self._known.clear()
        self._groups.clear()
        self._places.clear()
        self._items = 0
        return left

    def _all(self) -> Iterator[_Waiting[T]]:
        return (waiting for group in self._groups.values() for waiting in group.line)

    def _open(self, key: Hashable, now: float) -> _Group[T]:
        """Find a key's group, which is empty; the one that was used longest ago makes room for a new one."""
        group = self._known.pop(key, None) or _Group(self._make_policy())
        group.oldest = now
        self._known[key] = self._groups[key] = group
        if len(self._known) > _GROUPS:
            del self._known[next(iter(self._known))]
        return group

    def _place(self, ready: Ready[T], turn: float) -> float:
        """Find a place in line by turn and priority, but behind the stream's earlier requests."""
        place = turn + ready.level * PRIORITY_TURNS
        stream = _stream(ready)
        if stream is not None:
            place = self._places[stream] = max(place, self._places.get(stream, place))
        return place

    def _cut(self, key: Hashable, most: int, now: float) -> Batch[T]:
        group = self._groups[key]
        passed = self._passed_over(key) if len(self._groups) > 1 else None
        batch: list[_Waiting[T]] = []
        rows = 0
        for waiting in group.line:
            if passed and waiting[:2] > passed.get(_stream(waiting.ready), waiting[:2]):
                continue
            if batch and rows + waiting.ready.rows > most:
                break
            batch.append(waiting)
            rows += waiting.ready.rows
        if not batch:  # each of them has an earlier one of its stream in another group: first come, first served
            first = min(self._all())
            return self._cut(first.ready.key, most, now)
        self._remove(key, batch, rows)
        group.policy.began(rows, now)
        return Batch([each.ready.item for each in batch], rows, max(each.turn for each in batch), key, group.policy)

    def _passed_over(self, key: Hashable) -> dict[_Stream | None, tuple[float, int]]:
        """Find the first place of each stream in the other groups: nothing of it behind that may run before."""
        first: dict[_Stream | None, tuple[float, int]] = {}
        for other, group in self._groups.items():
            for place, number, _, _, ready in group.line if other != key else ():
                stream = _stream(ready)
                if stream is not None:
                    first[stream] = min(first.get(stream, (place, number)), (place, number))
        return first

    def _remove(self, key: Hashable, gone: list[_Waiting[T]], rows: int) -> None:
        group = self._groups[key]
        group.remove(gone, rows)
        self._items -= len(gone)
        if not group.line:
            del self._groups[key]
        if not self._items:
            self._places.clear()
