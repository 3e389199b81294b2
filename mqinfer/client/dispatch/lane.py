"""One worker as a client sees it: what it reported, what it owes, and when it would finish one request more.

Pure: times are readings of the owner's clock, in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from mqinfer.client.options import Silence
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.types import WorkerLoad

__all__ = ["CANARY", "Lane", "doubled"]

CANARY = "canary"
"""Stands for a version where a request names none and goes to the canary."""

_FIRST_LIMIT = 1
"""Requests in flight at a worker until its first reply, which states how many it allows this client."""
_MARGIN = 1.25
"""Expected times are exceeded by a quarter without being wrong."""
_WEIGHT = 0.2
"""Weight of the newest reading in the smoothed transit."""
_MOST = 3.0
"""A reading counts as `_MOST * transit_s` at most: a worker that was halted was not far away."""
_DOUBLINGS = 30
"""A pause is doubled so often at most."""
_LONGEST_PAUSE_S = 1.0
"""A busy worker is asked again after this, whatever it states."""
_MOST_UNANSWERED = 64
"""Ids of requests that left a lane without a reply are kept up to this number; the oldest go first."""


@dataclass(slots=True, eq=False)
class Lane:
    """A worker.

    Attributes:
        worker: Its name.
        silence: When its silence means something.
        incarnation: The number of its process's start.
        models: What it serves.
        open: Whether it takes requests.
        capacity: Requests that it takes from all clients together.
        limit: Requests of this client that may be in flight at it; 0 until it has stated that.
        service: Smoothed time of one request, in seconds; 0 while unknown.
        run: Time of the batch of its last reply, in seconds.
        transit: Smoothed time that a request and its reply are on the network, in seconds; 0 while unknown.
        others: Depth that other clients caused, when it last replied.
        closed_until: It was busy: nothing is sent before.
        replied_at: When it last replied.
        turn: How many requests this client had sent, to any worker, when this one last got one.
        in_flight: By request id: when it was sent, the seconds its reply was expected to take, and whether a worker was
            lost while it had the request.
        unanswered: Requests that were sent to it and have left without its reply, which may still come.
    """

    worker: str
    silence: Silence = field(default_factory=Silence)
    incarnation: int = 0
    models: tuple[ServedModel, ...] = ()
    open: bool = False
    capacity: int = 1
    limit: int = 0
    service: float = 0.0
    run: float = 0.0
    transit: float = 0.0
    others: int = 0
    closed_until: float = 0.0
    replied_at: float = -math.inf
    turn: int = 0
    in_flight: dict[str, tuple[float, float, bool]] = field(default_factory=dict)
    unanswered: dict[str, bool] = field(default_factory=dict)
    _strikes: int = 0
    _quarantined_until: float = 0.0

    @property
    def opens_at(self) -> float:
        """When it may get requests again, after it was busy or silent."""
        return max(self.closed_until, self._quarantined_until)

    def serves(self, model: str, version: str | None) -> bool:
        """Return whether it serves a model: in a version, as its canary or, where none is stated, as the default."""
        return any(
            each.name == model
            and (each.default if version is None else each.share > 0 if version == CANARY else each.version == version)
            for each in self.models
        )

    def expected(self) -> float:
        """Return how long a request sent now would take: `(in flight + others + 1) * service`, in seconds."""
        return (len(self.in_flight) + self.others + 1) * self.service

    def finish(self, now: float) -> float:
        """Return when the reply to a request sent now should have come: `now + _MARGIN * expected_s + transit_s`."""
        return now + _MARGIN * self.expected() + self.transit

    def is_usable(self, now: float) -> bool:
        """Return whether it takes requests, and answers in the time that it should."""
        if not self.open or now < self.closed_until or now < self._quarantined_until:
            return False
        if not self.in_flight:
            return True
        sent, expected, _ = next(iter(self.in_flight.values()))
        allowed = max(self.silence.doubt, self.silence.doubt_factor * expected)
        return now - max(sent, self.replied_at) <= (allowed if self.service else self.silence.attempt_unknown)

    def has_room(self) -> bool:
        """Return whether fewer requests of this client are in flight at it than it allows."""
        if self._strikes:
            return not self.in_flight  # one at a time until it replies
        return len(self.in_flight) < (self.limit or max(1, min(self.capacity, _FIRST_LIMIT)))

    def holds_crasher(self) -> bool:
        """Return whether a request is in flight at it that another worker was lost with."""
        return any(crashed for _, _, crashed in self.in_flight.values())

    def send(self, request_id: str, now: float, *, crashed: bool = False) -> float:
        """Record a request that is being sent; return when it counts as unanswered."""
        expected = self.expected() + self.transit
        self.in_flight[request_id] = (now, expected, crashed)
        if not self.service:
            return now + self.silence.attempt_unknown
        return now + max(self.silence.attempt, self.silence.attempt_factor * expected)

    def land(self, request_id: str) -> None:
        """Remove a request from those in flight without a reply of this worker."""
        if self.in_flight.pop(request_id, None) is not None:
            self.unanswered[request_id] = True
            if len(self.unanswered) > _MOST_UNANSWERED:
                del self.unanswered[next(iter(self.unanswered))]

    def suspect(self, request_id: str) -> None:
        """Record that a worker has crashed on a request that is in flight at this one."""
        if flight := self.in_flight.get(request_id):
            self.in_flight[request_id] = *flight[:2], True

    def measure_transit(self, seconds: float) -> None:
        """Record how long a request and its reply were on the network; over a slow link that includes their queue."""
        if self.transit:
            seconds = min(seconds, max(_MOST * self.transit, self.silence.attempt / 2))
        self.transit += (seconds - self.transit) * (_WEIGHT if self.transit else 1.0)

    def update_load(self, load: WorkerLoad, now: float) -> None:
        """Store what a reply, however late, reports: that the worker runs, and how busy it is."""
        self._strikes, self._quarantined_until, self.replied_at = 0, 0.0, now
        self.others = max(0, load.depth - 1 - len(self.in_flight))  # the depth counts the request that it answers
        if load.service_time_us:
            self.service = load.service_time_us / 1e6
        if load.window:
            self.limit = load.window

    @property
    def awaits_first_reply(self) -> bool:
        """Whether it has its first request and has not replied yet, though its service time is known."""
        return bool(self.in_flight) and self.replied_at == -math.inf and self.service > 0

    def has_just_replied(self, now: float) -> bool:
        """Return whether it has answered something just now: then its other replies are slow, and not lost."""
        return now - self.replied_at < self.silence.attempt / 2

    def quarantine(self, now: float) -> None:
        """Send it nothing for a time, since a request got no reply in its time; longer each time."""
        self._strikes += 1
        pause = doubled(self.silence.quarantine, self._strikes - 1, self.silence.quarantine_most)
        self._quarantined_until = now + pause

    def pause(self, now: float, seconds: float = 0.0) -> None:
        """Send it nothing for `max(service, seconds)`, since it turned a request away; `seconds` is what it stated."""
        self.closed_until = max(self.closed_until, now + max(self.service, min(seconds, _LONGEST_PAUSE_S), 0.001))

    def update(self, state: WorkerState) -> None:
        """Store the worker's state."""
        if state.incarnation != self.incarnation:
            self._strikes, self._quarantined_until, self.closed_until, self.others = 0, 0.0, 0.0, 0
        self.incarnation, self.models = state.incarnation, state.models
        self.open = state.status is WorkerStatus.READY
        self.capacity = state.capacity
        if state.service_time_us:
            self.service = state.service_time_us / 1e6


def doubled(first: float, times: int, most: float) -> float:
    """Return `min(first * 2 ** times, most)`; `times` may grow for days."""
    return min(first * (1 << min(times, _DOUBLINGS)), most)
