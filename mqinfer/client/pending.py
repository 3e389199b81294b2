"""The table of requests that have no outcome yet: pure bookkeeping, no thread, no link, an injected clock.

A request waits its turn, is in flight (sent and unanswered), or rests until it may be sent again. At most `window` are
in flight, so the queue is here, where it can be seen and bounded, and not in the broker. Whoever takes an entry out
(`settle`, `wake`, `drain`) owns its one outcome: the table gives each entry out exactly once.
"""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from mqinfer.client.fleet import Way
from mqinfer.client.lane import Lane
from mqinfer.client.result import InferResult
from mqinfer.protocol.types import InferRequest

__all__ = ["DEADLY", "Choose", "Entry", "PendingTable", "Settle"]

Settle = Callable[[InferResult], None]
DEADLY = 2
"""Workers that may die on a request."""
_SLACK = 64
"""Alarms of settled entries are swept once they outnumber the living by this many."""
_Channel = tuple[str, str | None]
"""Model and version: what waits for one need not wait for another."""


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
        lane: The worker that it was sent to, or None on a model's channel.
        retry_at: When its last sending counts as unanswered.
        deaths: Workers that were lost while they had it, each with its boot number.
    """

    request: InferRequest
    settle: Settle
    submitted: float
    deadline: float
    sent: float
    attempts: int = 0
    bytes_sent: int = 0
    refused_since: float | None = None
    lane: Lane | None = None
    retry_at: float = math.inf
    deaths: frozenset[tuple[str, int]] = frozenset()

    @property
    def channel(self) -> _Channel:
        """The model and version asked for."""
        return self.request.model_name, self.request.model_version

    @property
    def is_deadly(self) -> bool:
        """Whether so many workers died while they had it that no other one should."""
        return len(self.deaths) >= DEADLY


Choose = Callable[[Entry], Lane | Way]
"""Says where an entry goes next."""


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
    _waiting: dict[_Channel, OrderedDict[str, Entry]] = field(default_factory=dict)
    _in_flight: dict[str, Entry] = field(default_factory=dict)
    _resting: dict[str, Entry] = field(default_factory=dict)
    _alarms: list[tuple[float, int, Literal["expire", "resume"], Entry]] = field(default_factory=list)
    _ticket: int = 0
    _waiting_count: int = 0

    def __len__(self) -> int:
        """Count the requests without an outcome."""
        return self._waiting_count + len(self._in_flight) + len(self._resting)

    @property
    def in_flight(self) -> int:
        """Requests that are sent and unanswered."""
        return len(self._in_flight)

    @property
    def waiting(self) -> int:
        """Requests that wait to be sent."""
        return self._waiting_count

    def waiting_with(self, entry: Entry) -> int:
        """Count the requests that wait for the same model and version as an entry, with it."""
        return len(self._waiting.get(entry.channel, ()))

    def add(self, entry: Entry) -> None:
        """Take in a request; its deadline runs from now on."""
        self._queue(entry)
        self._set_alarm(entry.deadline, "expire", entry)

    def next_to_send(self, now: float, choose: Choose = lambda _: Way.SHARED) -> Entry | None:
        """Move the first waiting request that can go somewhere into the window.

        Args:
            now: The clock's reading.
            choose: Says where; the entry's `lane` is set to it. Models take turns.

        Returns:
            The entry, or None where none waits, none can go anywhere, or the window is full.
        """
        if len(self._in_flight) >= self.window:
            return None
        for channel in list(self._waiting):
            first = next(iter(self._waiting[channel].values()))
            way = choose(first)
            entry = self._in_time(first, way, now)
            if entry and way is not Way.WAIT:
                self._leave_queue(entry)
                if channel in self._waiting:  # to the end, so that models take turns
                    self._waiting[channel] = self._waiting.pop(channel)
                return self._launch(entry, way if isinstance(way, Lane) else None, now)
        return None

    def __contains__(self, request_id: str) -> bool:
        """Tell whether a request has no outcome yet."""
        return self.entry(request_id) is not None

    def entry(self, request_id: str) -> Entry | None:
        """Look at a request, without taking it out."""
        found = self._in_flight.get(request_id) or self._resting.get(request_id)
        if found:
            return found
        return next((queue[request_id] for queue in self._waiting.values() if request_id in queue), None)

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
        entry = self._land(request_id)
        if entry is None:
            return False
        self._resting[request_id] = entry
        self._set_alarm(until, "resume", entry)
        return True

    def requeue(self, request_id: str) -> bool:
        """Put a request in flight back at the head of its queue, to be sent elsewhere; False if it isn't in flight."""
        entry = self._land(request_id)
        if entry is None:
            return False
        self._queue(entry, first=True)
        return True

    def recall(self, lane: Lane | None = None) -> list[Entry]:
        """Put what is in flight back at the head of the queue, oldest first.

        Args:
            lane: Only what was sent to this worker: it is lost. None for everything: the connection was lost; on the
                next one all patience begins anew, since workers may need as long as clients to be there again.

        Returns:
            The entries.
        """
        recalled = [entry for entry in self._in_flight.values() if lane is None or entry.lane is lane]
        for entry in reversed(recalled):
            self.requeue(entry.request.id)
        if lane is None:
            for entry in self._all():
                entry.refused_since = None
                entry.deaths = frozenset()  # with the broker goes what it said of workers
        return recalled

    def hold(self, entry: Entry, until: float) -> None:
        """Let a waiting request rest, which is deadly: where that is not taken back until then, `wake` gives it out."""
        if self._leave_queue(entry):
            self._resting[entry.request.id] = entry
            self._set_alarm(until, "resume", entry)

    def acquit(self, worker: str, boot: int) -> None:
        """Take a death back: the worker is here, under the same boot number, so its connection was lost and no more.

        What was held only for that is sent again.
        """
        for entry in [entry for entry in self._all() if (worker, boot) in entry.deaths]:
            was_deadly = entry.is_deadly
            entry.deaths -= {(worker, boot)}
            if was_deadly and not entry.is_deadly and entry.request.id in self._resting:
                self._queue(self._resting.pop(entry.request.id), first=True)

    def overdue(self, now: float) -> list[Entry]:
        """List what is in flight and got no reply in the time of one attempt."""
        return [entry for entry in self._in_flight.values() if entry.retry_at <= now]

    def next_overdue(self) -> float:
        """Tell when the next entry in flight is overdue; infinite where none is in flight."""
        return min((entry.retry_at for entry in self._in_flight.values()), default=math.inf)

    def next_alarm(self) -> float | None:
        """Tell when `wake` has something to do next."""
        return self._alarms[0][0] if self._alarms else None

    def wake(self, now: float) -> list[Entry]:
        """Take out the requests whose deadline has passed, or that are deadly; queue the resting ones that are due."""
        expired = []
        while self._alarms and self._alarms[0][0] <= now:
            _, _, action, entry = heapq.heappop(self._alarms)
            request_id = entry.request.id
            is_over = action == "expire" or (entry.is_deadly and request_id in self._resting)
            if is_over and self._remove(request_id):
                expired.append(entry)
            elif action == "resume" and request_id in self._resting:
                self._queue(self._resting.pop(request_id))
        return expired

    def drain(self) -> list[Entry]:
        """Take out everything: the client is closing."""
        left = self._all()
        for request_id in list(self._in_flight):
            self._land(request_id)
        for store in (self._resting, self._waiting, self._alarms):
            store.clear()
        self._waiting_count = 0
        return left

    def _in_time(self, first: Entry, way: Lane | Way, now: float) -> Entry | None:
        """Choose who is sent: the first of a queue, or the last where the first would be answered too late.

        In an overload whoever has waited longest is sent just in time to be late, and the workers do nothing of use;
        the last has the most time left (adaptive LIFO: Maurer, "Fail at Scale", ACM Queue 2015). Where that would be
        late too, nobody is sent before the worker has less in hand.
        """
        if not isinstance(way, Lane) or first.deaths or way.is_in_time(first.deadline, now):
            return first
        last = next(reversed(self._waiting[first.channel].values()))
        if last.deaths or not way.outstanding or way.is_in_time(last.deadline, now):
            return first if last.deaths else last
        return None

    def _all(self) -> list[Entry]:
        queued = [entry for queue in self._waiting.values() for entry in queue.values()]
        return [*self._in_flight.values(), *self._resting.values(), *queued]

    def _launch(self, entry: Entry, lane: Lane | None, now: float) -> Entry:
        entry.attempts += 1
        entry.sent = now
        entry.lane = lane
        self.retries += entry.attempts > 1
        self._in_flight[entry.request.id] = entry
        return entry

    def _land(self, request_id: str) -> Entry | None:
        """Take a request out of flight."""
        entry = self._in_flight.pop(request_id, None)
        if entry and entry.lane:
            entry.lane.forget(request_id)
        return entry

    def _queue(self, entry: Entry, *, first: bool = False) -> None:
        queue = self._waiting.setdefault(entry.channel, OrderedDict())
        queue[entry.request.id] = entry
        self._waiting_count += 1
        if first:
            queue.move_to_end(entry.request.id, last=False)

    def _leave_queue(self, entry: Entry) -> bool:
        queue = self._waiting.get(entry.channel)
        if not queue or entry.request.id not in queue:
            return False
        del queue[entry.request.id]
        self._waiting_count -= 1
        if not queue:
            del self._waiting[entry.channel]
        return True

    def _remove(self, request_id: str) -> Entry | None:
        entry = self.entry(request_id)
        if entry and not self._land(request_id) and not self._leave_queue(entry):
            del self._resting[request_id]
        return entry

    def _set_alarm(self, when: float, action: Literal["expire", "resume"], entry: Entry) -> None:
        self._ticket += 1
        heapq.heappush(self._alarms, (when, self._ticket, action, entry))
        if len(self._alarms) > 2 * len(self) + _SLACK:
            self._alarms = [alarm for alarm in self._alarms if alarm[3].request.id in self]
            heapq.heapify(self._alarms)
