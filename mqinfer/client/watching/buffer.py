"""The buffer of a watch: bounded by count and by bytes, and the oldest goes first. Pure: no thread, no link."""

from __future__ import annotations

from collections import Counter, deque

from mqinfer.client.watching.seen import Arrival, DropReason, WatchCounters


class Buffer:
    """Messages that came and that nobody has taken yet, and the books about all that came.

    Args:
        most: Messages at a time.
        most_bytes: What they may take in memory.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._arrivals: deque[Arrival] = deque()
        self._bytes = 0
        self._taken = 0  # and not settled yet
        self._received = self._yielded = self._ignored = 0
        self._dropped: Counter[DropReason] = Counter()
        self.disconnected = 0
        """How often the connection was lost."""

    def __len__(self) -> int:
        return len(self._arrivals)

    def put(self, arrival: Arrival) -> None:
        """Add a message; the oldest ones make room for it."""
        if arrival.size > self._most_bytes:
            self.refuse(DropReason.TOO_LARGE)
            return
        self._received += 1
        while self._arrivals and (len(self._arrivals) >= self._most or self._bytes + arrival.size > self._most_bytes):
            self._remove()
            self._dropped[DropReason.OVERFLOW] += 1
        self._arrivals.append(arrival)
        self._bytes += arrival.size

    def refuse(self, reason: DropReason) -> None:
        """Count a message that is dropped as it comes."""
        self._received += 1
        self._dropped[reason] += 1

    def ignore(self) -> None:
        """Count a message that is of no interest."""
        self._received += 1
        self._ignored += 1

    def take(self) -> Arrival | None:
        """Remove the oldest message, and return it; `settle` must follow. None if there is none."""
        if not self._arrivals:
            return None
        self._taken += 1
        return self._remove()

    def settle(self, outcome: DropReason | bool) -> None:  # noqa: FBT001 - one of three ends of a message
        """Count what became of a message that was taken: yielded (True), ignored (False), or dropped."""
        self._taken -= 1
        if isinstance(outcome, DropReason):
            self._dropped[outcome] += 1
        elif outcome:
            self._yielded += 1
        else:
            self._ignored += 1

    def counters(self) -> WatchCounters:
        """Return what became of all messages."""
        return WatchCounters(
            received=self._received,
            yielded=self._yielded,
            ignored=self._ignored,
            buffered=len(self._arrivals) + self._taken,
            buffered_bytes=self._bytes,
            dropped=dict(self._dropped),
            disconnected=self.disconnected,
        )

    def _remove(self) -> Arrival:
        arrival = self._arrivals.popleft()
        self._bytes -= arrival.size
        return arrival
