"""Which calls a gateway accepts, and whose is sent next: bounds on their number and bytes, and turns among callers.

A call that finds room at its model is sent at once; the others wait here, where callers take turns, and not in the
client, which would send them in the order in which they came. Pure: no thread, no clock, no loop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from mqinfer.fair_queue import FairQueue, Queued
from mqinfer.gateway.access import BY_KEY
from mqinfer.gateway.errors import Overloaded
from mqinfer.protocol.errors import LimitExceeded
from mqinfer.web.arriving import SHARE, Arriving
from mqinfer.web.quotas import Quotas

_MOST_IDLE = 64
"""Above this number of models, those without calls are forgotten."""


def take_room(arriving: Arriving, caller: str, size: int) -> int:
    """Count bytes of a request, and return how many, which its owner gives back.

    Raises:
        Overloaded: There is no room for them.
    """
    if not arriving.take(caller, size):
        raise Overloaded(
            "the gateway holds as many bytes of requests as it may, or as this caller may; try again later"
        )
    return size


@dataclass(slots=True, eq=False)
class Ticket:
    """A call that was accepted and has not left.

    Attributes:
        model: Name of the model.
        caller: Who calls.
        size: Bytes of the inputs.
        settle: Called once for a ticket that had to wait: with None when the call may be sent, or with the error.
        is_running: Whether the call may be sent.
        since: When it began to wait for its turn, in seconds of its owner's clock.
    """

    model: str
    caller: str
    size: int
    settle: Callable[[Overloaded | None], None] = lambda _: None
    is_running: bool = True
    place: Queued[Ticket] | None = None
    since: float = math.inf


@dataclass(slots=True)
class _Caller:
    """One caller's calls: how many there are, their bytes, and those that wait, the newest last."""

    calls: int = 0
    bytes: int = 0
    queued: dict[int, Ticket] = field(default_factory=dict)
    queued_bytes: int = 0


@dataclass(slots=True)
class _Lane:
    """One model's calls."""

    model: str
    running: int = 0
    queue: FairQueue[Ticket] = field(default_factory=FairQueue)


class CallAdmission:
    """Not thread-safe.

    Args:
        max_pending: Calls accepted at a time.
        max_bytes: Bytes of their inputs.
        room: Returns how many calls of a model may be sent at a time.
        retry_after: Returns when a model may have finished so many calls, in seconds.

    Attributes:
        running: Calls that were handed to the client and have no outcome.
        queued: Calls that wait for their turn.
        bytes: Bytes of the inputs of both.
        accepted: Calls accepted since the start.
        of_keys: Of these, number and bytes of each caller of the file of keys, by name.
        refused: Calls refused since the start, by reason: `count`, `bytes`, `share` (the caller had its share),
            `evicted` (it had waited, and made room for a caller with fewer), `quota`.
        over_quota: Of these, those above the quota of each caller of the file of keys, by name.
        quotas: Of the callers of the file of keys; None without one.
    """

    def __init__(
        self,
        max_pending: int,
        max_bytes: int,
        room: Callable[[str], int],
        retry_after: Callable[[str, int], float] = lambda _model, _calls: 1.0,
    ) -> None:
        self._max_pending, self._max_bytes = max_pending, max_bytes
        self._room, self._retry_after = room, retry_after
        self._callers: dict[str, _Caller] = {}
        self._lanes: dict[str, _Lane] = {}
        self.running = self.queued = self.bytes = self.accepted = 0
        self.of_keys: dict[str, tuple[int, int]] = {}
        self.refused: Counter[str] = Counter()
        self.over_quota: Counter[str] = Counter()
        self.quotas: Quotas | None = None

    def waiting(self) -> dict[str, tuple[int, float]]:
        """Return by model how many calls wait, and since when the first does; from any thread."""
        found = {lane.model: [ticket.since for ticket in lane.queue.items()] for lane in list(self._lanes.values())}
        return {model: (len(times), min(times)) for model, times in found.items() if times}

    def enter(self, model: str, caller: str, size: int) -> Ticket:
        """Accept a call; it may be sent where its ticket `is_running`, else once `settle` is called.

        Where the gateway is full, the newest call that waits of the caller with most of them makes room for a caller
        with fewer.

        Raises:
            Overloaded: There is no room.
            LimitExceeded: There never will be, for so many bytes.
        """
        if self.quotas is not None and caller.startswith(BY_KEY):
            self._check_quota(self.quotas, caller.removeprefix(BY_KEY), size)
        self._check_room(model, caller, size)
        own = self._callers.get(caller)
        if own is None:
            own = self._callers[caller] = _Caller()
        lane = self._lanes.get(model)
        if lane is None:
            lane = self._lanes[model] = _Lane(model)
        ticket = Ticket(model, caller, size)
        self.accepted += 1
        if caller.startswith(BY_KEY):
            name = caller.removeprefix(BY_KEY)
            before = self.of_keys.get(name, (0, 0))
            self.of_keys[name] = before[0] + 1, before[1] + size
        own.calls += 1
        own.bytes += size
        self.bytes += size
        if lane.running < self._room(model) and not lane.queue:
            lane.running += 1
            self.running += 1
            return ticket
        ticket.is_running = False
        ticket.place = lane.queue.put(ticket, caller)
        own.queued[id(ticket)] = ticket
        own.queued_bytes += size
        self.queued += 1
        self._start(lane)
        return ticket

    def priority(self, caller: str, asked: int) -> int:
        """Return the priority of a call: no higher than its caller may ask for; 0, the model's default, stays."""
        if not asked or self.quotas is None or not caller.startswith(BY_KEY):
            return asked
        return self.quotas.held(caller.removeprefix(BY_KEY), asked)

    def _check_quota(self, quotas: Quotas, name: str, size: int) -> None:
        if wait := quotas.take(name, size):
            self.refused["quota"] += 1
            self.over_quota[name] += 1
            error = Overloaded(f"{name!r} has used up its quota of requests or bytes; try again in {wait:.3g} s")
            error.retry_after_s = wait
            raise error

    def _check_room(self, model: str, caller: str, size: int) -> None:
        """Raise unless there is room for a call, or can be made."""
        if size > self._max_bytes:
            raise LimitExceeded(f"inputs of {size} bytes; this gateway accepts at most {self._max_bytes} (--max-bytes)")
        own = self._callers.get(caller)
        if own and (own.calls >= SHARE * self._max_pending or own.bytes + size > SHARE * self._max_bytes):
            raise self._refuse(model, "share", "this caller has as much pending as one may have")
        if self._is_full() or self.bytes + size > self._max_bytes:
            self._make_room(model, own or _Caller(), size)

    def leave(self, ticket: Ticket) -> None:
        """Forget a call that has its outcome or was cancelled, and start those that there is room for."""
        if not ticket.is_running and not self._unqueue(ticket):
            return  # evicted
        lane = self._lanes[ticket.model]
        if ticket.is_running:
            lane.running -= 1
            self.running -= 1
        self._forget(ticket)
        self._start(lane)
        if len(self._lanes) > _MOST_IDLE and not lane.running and not lane.queue:
            del self._lanes[ticket.model]

    def start(self) -> None:
        """Start the calls that there is room for by now."""
        for lane in list(self._lanes.values()):
            self._start(lane)

    def _is_full(self) -> bool:
        return self.running + self.queued >= self._max_pending

    def _start(self, lane: _Lane) -> None:
        while lane.queue and lane.running < self._room(lane.model):
            turn, _, caller, ticket = lane.queue.pop()
            lane.queue.served(turn)
            self._dequeue(self._callers[caller], ticket)
            self.running += 1
            lane.running += 1
            ticket.is_running = True
            ticket.settle(None)

    def _make_room(self, model: str, own: _Caller, size: int) -> None:
        """Refuse calls that wait, of the caller that has most of them, if it keeps as much as this one has then."""
        excess = self.bytes + size - self._max_bytes
        if excess > 0:
            most = max(self._callers.values(), key=lambda each: each.queued_bytes)
            if most.queued_bytes - excess < own.queued_bytes + size:
                raise self._refuse(model, "bytes", f"calls of {self.bytes} bytes are pending")
            while self.bytes + size > self._max_bytes:
                self._evict(most)
        if self._is_full():
            most = max(self._callers.values(), key=lambda each: len(each.queued))
            if len(most.queued) - 1 < len(own.queued) + 1:
                raise self._refuse(model, "count", f"{self._max_pending} calls are pending")
            self._evict(most)

    def _evict(self, caller: _Caller) -> None:
        ticket = next(reversed(caller.queued.values()))
        self._unqueue(ticket)
        self._forget(ticket)
        ticket.settle(self._refuse(ticket.model, "evicted", "a caller with fewer calls takes the place"))

    def _unqueue(self, ticket: Ticket) -> bool:
        """Take a call out of the line; return False where it is not there any more."""
        own = self._callers.get(ticket.caller)
        if own is None or ticket.place is None or id(ticket) not in own.queued:
            return False
        self._dequeue(own, ticket)
        self._lanes[ticket.model].queue.remove(ticket.place)
        return True

    def _dequeue(self, own: _Caller, ticket: Ticket) -> None:
        del own.queued[id(ticket)]
        own.queued_bytes -= ticket.size
        self.queued -= 1

    def _forget(self, ticket: Ticket) -> None:
        own = self._callers[ticket.caller]
        own.calls -= 1
        own.bytes -= ticket.size
        self.bytes -= ticket.size
        if not own.calls:
            del self._callers[ticket.caller]

    def _refuse(self, model: str, reason: str, why: str) -> Overloaded:
        self.refused[reason] += 1
        error = Overloaded(f"Exceeds maximum queue size: {why}; send less at a time, or raise --max-pending")
        error.retry_after_s = self._retry_after(model, self.running + self.queued)
        return error
