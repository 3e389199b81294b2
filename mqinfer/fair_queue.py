"""Whose request comes next: round robin over clients, by start-time fair queueing. Pure.

Each request gets a turn when it comes: that of the last one served, or one after its client's own last, whichever is
later (Goyal, Vin and Cheng, SIGCOMM 1996, with every request of length 1). Served by their turns, a client that sends
one request now and then is next in line, however many another one has sent.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from typing import Generic, NamedTuple, TypeVar

T = TypeVar("T")
PRIORITY_TURNS = 64
"""A request's place in line is `turn + level * PRIORITY_TURNS`: so many of each higher level go before one that came
earlier, and no more."""
_LOWEST_PRIORITY = 4
LAST = PRIORITY_TURNS * _LOWEST_PRIORITY
"""`turn_at(number, 0) - number`: what has no priority comes so many turns after its number."""
_CLIENTS = 1024
"""Above this number of clients, those whose last turn has been served are forgotten."""


class Queued(NamedTuple, Generic[T]):
    """A request in line. The first two fields sort; no two numbers are equal."""

    turn: float
    number: int
    client: str
    item: T


def turn_at(number: int, priority: int) -> int:
    """Return the turn of a request at an edge or client, where the model's levels and its default are not known.

    Args:
        number: Of the request, in the order of coming.
        priority: 1 is the highest; 0, none, counts as 4, as all lower ones do.
    """
    return number + PRIORITY_TURNS * min(priority or _LOWEST_PRIORITY, _LOWEST_PRIORITY)


class FairQueue(Generic[T]):
    """Requests in the order of their turns. Not thread-safe: its owner holds a lock."""

    def __init__(self) -> None:
        self._line: list[Queued[T]] = []
        self._number = 0
        self._now = 0.0  # the last turn that was served
        self._last: dict[str, float] = {}  # turn of each client's last request

    def __len__(self) -> int:
        """Count the requests in line."""
        return len(self._line)

    def items(self) -> list[T]:
        """Return the requests in line."""
        return [each.item for each in self._line]

    @property
    def remembered_clients(self) -> int:
        """Clients whose turns are remembered; bounded."""
        return len(self._last)

    def put(self, item: T, client: str) -> Queued[T]:
        """Add a client's new request; return its place."""
        self._number += 1
        queued = Queued(self.next_turn(client), self._number, client, item)
        insort(self._line, queued)
        return queued

    def remove(self, queued: Queued[T]) -> None:
        """Remove a request that is in line."""
        del self._line[bisect_left(self._line, queued)]

    def pop(self) -> Queued[T]:
        """Remove and return the first request in line."""
        return self._line.pop(0)

    def pop_last(self, client: str) -> T | None:
        """Remove and return a client's last request in line; None where it has none."""
        last = max((each for each in self._line if each.client == client), default=None)
        if last is None:
            return None
        self._line.remove(last)
        return last.item

    def count_by_client(self) -> Counter[str]:
        """Count the requests in line, by client."""
        return Counter(each.client for each in self._line)

    def clear(self) -> list[T]:
        """Remove and return everything."""
        items = self.items()
        self._line.clear()
        return items

    def next_turn(self, client: str) -> float:
        """Return the turn of a client's new request."""
        last = self._last
        if len(last) >= _CLIENTS:
            last = self._last = {each: turn for each, turn in last.items() if turn >= self._now}
        turn = last[client] = max(self._now, last.get(client, -1.0) + 1)
        return turn

    def served(self, turn: float) -> None:
        """Advance to the turn of a request that is being served."""
        self._now = max(self._now, turn)

    def reset(self) -> None:
        """Forget all turns, since nothing waits anywhere: a client that got more until now owes nothing."""
        self._now = 0.0
        self._last.clear()
