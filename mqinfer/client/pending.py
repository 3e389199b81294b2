"""The table of requests that have no outcome yet: pure bookkeeping, no thread, no link, an injected clock.

A request waits its turn, is in flight (sent and unanswered), or rests until it may be sent again. At most `window` are
in flight, so the queue is here, where it can be seen and bounded, and not in the broker. Whoever takes an entry out
(`settle`, `wake`, `drain`) owns its one outcome: the table gives each entry out exactly once.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from mqinfer.client.result import InferResult
from mqinfer.protocol.types import InferRequest

__all__ = ["Entry", "PendingTable", "Settle"]

Settle = Callable[[InferResult], None]
_SLACK = 64
"""Alarms of settled entries are swept once they outnumber the living by this many."""


@dataclass(slots=True, eq=False)
class Entry:
    """One request on its way to its outcome. All times are the table's clock, in seconds.

    Attributes:
        request: What was asked; its `attempt` and `timeout_us` are set anew at each sending.
        settle: Gets the outcome, once.
        submitted: When the caller asked.
        deadline: When the request expires.
        sent: When it was last sent; equal to `submitted` before that.
        attempts: How often it was sent.
        bytes_sent: Of all attempts together.
        refused_since: When it was turned away first on this connection, or None.
    """

    request: InferRequest
    settle: Settle
    submitted: float
    deadline: float
    sent: float
    attempts: int = 0
    bytes_sent: int = 0
    refused_since: float | None = None


@dataclass(slots=True)
class PendingTable:
    """Requests by id, in the order in which they will be sent. Not thread-safe: its owner holds a lock.

    Attributes:
        window: Requests that may be in flight at a time.
        late: Replies that came for an id that is not here any more, or never was.
        retries: Sendings beyond each request's first.
    """

    window: int
    late: int = 0
    retries: int = 0
    _waiting: OrderedDict[str, Entry] = field(default_factory=OrderedDict)
    _in_flight: dict[str, Entry] = field(default_factory=dict)
    _resting: dict[str, Entry] = field(default_factory=dict)
    _alarms: list[tuple[float, int, Literal["expire", "resume"], Entry]] = field(default_factory=list)
    _ticket: int = 0

    def __len__(self) -> int:
        """Count the requests without an outcome."""
        return len(self._waiting) + len(self._in_flight) + len(self._resting)

    @property
    def in_flight(self) -> int:
        """Requests that are sent and unanswered."""
        return len(self._in_flight)

    def add(self, entry: Entry) -> None:
        """Take in a request; its deadline runs from now on."""
        self._waiting[entry.request.id] = entry
        self._set_alarm(entry.deadline, "expire", entry)

    def next_to_send(self, now: float) -> Entry | None:
        """Move the first waiting request into the window, or give None if none waits or the window is full."""
        if not self._waiting or len(self._in_flight) >= self.window:
            return None
        request_id, entry = self._waiting.popitem(last=False)
        entry.attempts += 1
        entry.sent = now
        self.retries += entry.attempts > 1
        self._in_flight[request_id] = entry
        return entry

    def __contains__(self, request_id: str) -> bool:
        """Tell whether a request has no outcome yet."""
        return request_id in self._in_flight or request_id in self._resting or request_id in self._waiting

    def in_flight_entry(self, request_id: str) -> Entry | None:
        """Look at a request that is in flight, without taking it out."""
        return self._in_flight.get(request_id)

    def settle(self, request_id: str) -> Entry | None:
        """Take out the request that a reply is for; None (and counted as late) when it has its outcome already."""
        entry = self._remove(request_id)
        self.late += entry is None
        return entry

    def rest(self, request_id: str, until: float) -> bool:
        """Take a request out of flight and let it queue again at `until`; False if it is not in flight."""
        entry = self._in_flight.pop(request_id, None)
        if entry is None:
            return False
        self._resting[request_id] = entry
        self._set_alarm(until, "resume", entry)
        return True

    def recall(self) -> int:
        """Put everything in flight back at the head of the queue, oldest first: the connection was lost.

        On the next one all patience begins anew, since workers may need as long as clients to be there again.
        """
        recalled = len(self._in_flight)
        for store in (self._in_flight, self._resting, self._waiting):
            for entry in store.values():
                entry.refused_since = None
        for request_id, entry in reversed(self._in_flight.items()):
            self._waiting[request_id] = entry
            self._waiting.move_to_end(request_id, last=False)
        self._in_flight.clear()
        return recalled

    def next_alarm(self) -> float | None:
        """Tell when `wake` has something to do next."""
        return self._alarms[0][0] if self._alarms else None

    def wake(self, now: float) -> list[Entry]:
        """Take out the requests whose deadline has passed, and queue the resting ones that are due."""
        expired = []
        while self._alarms and self._alarms[0][0] <= now:
            _, _, action, entry = heapq.heappop(self._alarms)
            request_id = entry.request.id
            if action == "expire" and self._remove(request_id):
                expired.append(entry)
            elif action == "resume" and request_id in self._resting:
                self._waiting[request_id] = self._resting.pop(request_id)
        return expired

    def drain(self) -> list[Entry]:
        """Take out everything: the client is closing."""
        left = [*self._in_flight.values(), *self._resting.values(), *self._waiting.values()]
        for store in (self._in_flight, self._resting, self._waiting, self._alarms):
            store.clear()
        return left

    def _remove(self, request_id: str) -> Entry | None:
        for store in (self._in_flight, self._resting, self._waiting):
            if request_id in store:
                return store.pop(request_id)
        return None

    def _set_alarm(self, when: float, action: Literal["expire", "resume"], entry: Entry) -> None:
        self._ticket += 1
        heapq.heappush(self._alarms, (when, self._ticket, action, entry))
        if len(self._alarms) > 2 * len(self) + _SLACK:
            self._alarms = [alarm for alarm in self._alarms if alarm[3].request.id in self]
            heapq.heapify(self._alarms)
