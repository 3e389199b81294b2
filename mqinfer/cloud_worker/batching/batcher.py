"""Which requests run together: pure, with the clock's reading as an argument.

Requests with the same key (shapes and wanted outputs) may share a batch, in the order of their places in line. When a
batch runs and how large it is, a policy decides for each key: the contract of policies stands here, with the fixed one.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Generic, NamedTuple, Protocol, TypeVar

from mqinfer.fair_queue import PRIORITY_TURNS

T = TypeVar("T")
_KEYS = 32
"""Keys whose policies are kept while none of their requests waits: a policy has learned what its shapes cost."""


class Choice(NamedTuple):
    """What to do with the requests that wait.

    Attributes:
        rows: Rows of the next batch at most.
        wait: Seconds until it runs unless more come; 0 to run now.
    """

    rows: int
    wait: float = 0.0


class FinishedBatch(NamedTuple):
    """A batch that has ended.

    Attributes:
        rows: Its rows when it began.
        ran: The rows that the model ran: requests of the batch may have expired.
        seconds: How long it kept the model busy.
    """

    rows: int
    ran: int
    seconds: float


class BatchPolicy(Protocol):
    """Decides for the requests of one key. Not thread-safe; `now` is in seconds and never goes backward."""

    def came(self, waiting: int, now: float) -> None:
        """Learn from a request that came, after which `waiting` rows wait."""

    def choose(self, waiting: int, oldest: float, now: float, idle: int = 1) -> Choice:
        """Choose the next batch.

        Args:
            waiting: Rows that wait; 1 or more.
            oldest: When the first of them came, in seconds.
            now: The clock's reading, in seconds.
            idle: How many batches could begin now.
        """

    def began(self, rows: int, now: float) -> None:
        """Learn that a batch begins."""

    def ended(self, batch: FinishedBatch, waiting: int, now: float) -> None:
        """Learn from a batch that has ended, after which `waiting` rows wait."""


class FixedPolicy:
    """Triton's dynamic batcher: https://github.com/triton-inference-server/server, user_guide/batcher.md.

    A preferred size is run as soon as it can be formed, the largest of them first; so is a full batch where there is no
    preferred size. Otherwise the oldest request waits for company until its delay is over, and then what waits runs.
    """

    def __init__(self, max_rows: int, max_delay: float = 0.0, preferred: Sequence[int] = ()) -> None:
        """Set the bounds.

        Args:
            max_rows: Rows of a batch at most; 1 or more.
            max_delay: Seconds that a request may wait for others.
            preferred: Sizes; those above `max_rows` are left out.
        """
        self._max_rows = max(1, max_rows)
        self._max_delay = max_delay
        self._sizes = sorted({size for size in preferred if size <= self._max_rows} or {self._max_rows}, reverse=True)

    def came(self, waiting: int, now: float) -> None:
        """Learn nothing."""

    def choose(self, waiting: int, oldest: float, now: float, idle: int = 1) -> Choice:  # noqa: ARG002 - the contract's
        """Choose by size, then by delay."""
        for size in self._sizes:
            if size <= waiting:
                return Choice(size)
        return Choice(self._max_rows, max(0.0, oldest + self._max_delay - now))

    def began(self, rows: int, now: float) -> None:
        """Learn nothing."""

    def ended(self, batch: FinishedBatch, waiting: int, now: float) -> None:
        """Learn nothing."""


class Ready(NamedTuple, Generic[T]):
    """A request that is ready to run.

    Attributes:
        item: The request.
        key: Only requests with equal keys share a batch.
        rows: Its entries on the batch axis.
        client: Who sent it.
        level: Its priority, 0 the highest.
        nbytes: Memory that it takes while it waits and runs.
    """

    item: T
    key: Hashable
    rows: int
    client: str = ""
    level: int = 0
    nbytes: int = 0


class Batch(NamedTuple, Generic[T]):
    """Requests that run together.

    Attributes:
        items: In the order of their places.
        rows: Entries on the batch axis, all together.
        turn: The latest of their turns.
        key: Of all of them.
        policy: The policy that chose it.
        began: Since when it keeps others from the model, in seconds: since the batch before it ended, where requests
            waited then. So a batch costs what it takes to change from one to the next as well.
        nbytes: Memory of its requests, all together.
    """

    items: list[T]
    rows: int
    turn: float
    key: Hashable
    policy: BatchPolicy
    began: float
    nbytes: int


class _Waiting(NamedTuple, Generic[T]):
    """A request in line. The first two fields sort; no two numbers are equal."""

    place: float
    number: int
    turn: float
    came: float
    ready: Ready[T]


@dataclass(slots=True)
class _Group(Generic[T]):
    """Requests that may share a batch, sorted."""

    policy: BatchPolicy
    oldest: float = 0.0
    line: list[_Waiting[T]] = field(default_factory=list)
    rows: int = 0


class Batcher(Generic[T]):
    """Gathers requests into batches. Not thread-safe: its owner holds a lock.

    Attributes:
        nbytes: Memory of the requests that wait.
    """

    def __init__(self, make_policy: Callable[[], BatchPolicy]) -> None:
        """Begin with nothing.

        Args:
            make_policy: Makes the policy of a key that is new.
        """
        self._make_policy = make_policy
        self._known: dict[Hashable, _Group[T]] = {}  # also empty ones, for what their policies have learned
        self._groups: dict[Hashable, _Group[T]] = {}  # those in which something waits
        self._items = 0
        self.nbytes = 0
        self._number = 0
        self._running = 0  # batches
        self._free_since: float | None = None  # while the model could run what waits

    def __len__(self) -> int:
        """Count the requests that wait."""
        return self._items

    def items(self) -> list[T]:
        """Return the requests that wait."""
        return [waiting.ready.item for waiting in self._all()]

    def add(self, ready: Ready[T], now: float, turn: float = 0.0) -> None:
        """Add a request.

        Args:
            ready: The request.
            now: The clock's reading, in seconds.
            turn: The smallest goes first; equal ones in the order of coming.
        """
        group = self._groups.get(ready.key) or self._open(ready.key, now)
        self._number += 1
        insort(group.line, _Waiting(turn + ready.level * PRIORITY_TURNS, self._number, turn, now, ready))
        group.rows += ready.rows
        self._items += 1
        self.nbytes += ready.nbytes
        group.policy.came(group.rows, now)

    def take(self, now: float, idle: int = 1) -> Batch[T] | float | None:
        """Remove and return the batch that runs now: of several the one whose first request is first in line.

        Args:
            now: The clock's reading, in seconds.
            idle: How many batches could begin now.

        Returns:
            The batch; or the seconds until there is one; or None where nothing waits.
        """
        if not self._items:
            return None
        soonest: float | None = None
        first: _Waiting[T] | None = None
        most = 0
        for group in self._groups.values():
            rows, wait = group.policy.choose(max(1, group.rows), group.oldest, now, idle)
            if wait > 0:
                soonest = wait if soonest is None else min(soonest, wait)
            elif first is None or group.line[0] < first:
                first, most = group.line[0], rows
        if first is None:
            self._free_since = None  # it waits for company
            return soonest
        return self._cut(first.ready.key, most, now)

    def ended(self, batch: Batch[T], ran: int, now: float) -> None:
        """Report the end of a batch to its policy.

        Args:
            batch: As it was taken.
            ran: Rows of it that the model ran.
            now: The clock's reading, in seconds.
        """
        self._running -= 1
        self._free_since = now if self._items and not self._running else None
        group = self._groups.get(batch.key)
        batch.policy.ended(FinishedBatch(batch.rows, ran, now - batch.began), group.rows if group else 0, now)

    def count_by_client(self) -> Counter[str]:
        """Count the requests that wait, by client."""
        return Counter(waiting.ready.client for waiting in self._all())

    def pop_last(self, client: str) -> T | None:
        """Remove and return a client's last request in line; None where none is queued."""
        last = max((each for each in self._all() if each.ready.client == client), default=None)
        if last is None:
            return None
        group = self._groups[last.ready.key]
        group.line.remove(last)
        self.nbytes -= last.ready.nbytes
        self._removed(group, last.ready.key, 1, last.ready.rows)
        return last.ready.item

    def clear(self) -> list[T]:
        """Remove and return everything."""
        left = self.items()
        self._known.clear()
        self._groups.clear()
        self._items = self.nbytes = 0
        return left

    def _all(self) -> Iterator[_Waiting[T]]:
        return (waiting for group in self._groups.values() for waiting in group.line)

    def _open(self, key: Hashable, now: float) -> _Group[T]:
        """Find a key's group, which is empty; the one that was used longest ago makes room for a new one."""
        group = self._known.pop(key, None) or _Group(self._make_policy())
        group.oldest = now
        self._known[key] = self._groups[key] = group
        if len(self._known) > _KEYS:
            del self._known[next(iter(self._known))]
        return group

    def _cut(self, key: Hashable, most: int, now: float) -> Batch[T]:
        group = self._groups[key]
        items: list[T] = []
        rows, nbytes, latest = 0, 0, 0.0
        for _, _, turn, _, ready in group.line:
            if items and rows + ready.rows > most:
                break
            items.append(ready.item)
            rows += ready.rows
            nbytes += ready.nbytes
            latest = max(latest, turn)
        del group.line[: len(items)]
        self.nbytes -= nbytes
        self._removed(group, key, len(items), rows)
        group.policy.began(rows, now)
        began, self._free_since = now if self._free_since is None else self._free_since, None
        self._running += 1
        return Batch(items, rows, latest, key, group.policy, began, nbytes)

    def _removed(self, group: _Group[T], key: Hashable, count: int, rows: int) -> None:
        group.rows -= rows
        self._items -= count
        if group.line:
            group.oldest = min(waiting.came for waiting in group.line)
        else:
            del self._groups[key]
