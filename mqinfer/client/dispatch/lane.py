"""One worker as a client sees it: what it reported, what it owes, and when it would finish one request more.

Pure: times are readings of the owner's clock, in seconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

from mqinfer.client.options import Silence
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.types import Timings, WorkerLoad
from mqinfer.recent_ids import RecentIds
from mqinfer.smoothing import WEIGHT

CANARY = "canary"
"""Stands for a version where a request names none and goes to the canary."""
LONGEST_PAUSE_S = 1.0
"""A request that was turned away is sent again after this at the latest: a busy worker is asked again, whatever it
states, and a channel without subscribers tried again."""

_FIRST_LIMIT = 1
"""Requests in flight at a worker until its first reply, which states how many it allows this client."""
_MARGIN = 1.25
"""Expected times are exceeded by a quarter without being wrong."""
_MOST = 3.0
"""A reading counts as `_MOST * transit_s` at most: a worker that was halted was not far away."""
_DOUBLINGS = 30
"""A pause is doubled so often at most."""
_MOST_UNANSWERED = 64
"""Ids of requests that left a lane without a reply are kept up to this number; the oldest go first."""


@dataclass(slots=True)
class LaneTimes:
    """How long a worker takes, in seconds.

    Attributes:
        service: Smoothed time of one request; 0 while unknown.
        run: Time of the batch of its last reply.
        transit: Smoothed time that a request and its reply are on the network; 0 while unknown.
    """

    service: float = 0.0
    run: float = 0.0
    transit: float = 0.0

    def measure(self, elapsed: float, worker: Timings, least: float) -> None:
        """Record the times of a reply; over a slow link the transit includes the time in its queues.

        Args:
            elapsed: From publication to reply.
            worker: Its part of the time.
            least: A transit up to this counts in full.
        """
        self.run = worker.inference / 1e9
        seconds = max(0.0, elapsed - worker.server / 1e9)
        if self.transit:
            seconds = min(seconds, max(_MOST * self.transit, least))
        self.transit += (seconds - self.transit) * (WEIGHT if self.transit else 1.0)


@dataclass(slots=True)
class Quarantine:
    """Time in which a worker that let requests time out gets none; then it gets one at a time until it replies.

    Attributes:
        strikes: How often it was set since the last reply.
        until: When the time is over.
    """

    strikes: int = 0
    until: float = 0.0

    def begin(self, now: float, silence: Silence) -> None:
        """Start it, twice as long as the one before."""
        self.until = now + doubled(silence.quarantine, self.strikes, silence.quarantine_most)
        self.strikes += 1


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
        times: How long it takes.
        others: Depth that other clients caused, when it last replied.
        closed_until: It was busy: nothing is sent before.
        replied_at: When it last replied.
        turn: How many requests this client had sent, to any worker, when this one last got one.
        in_flight: By request id: when it was sent, and the seconds its reply was expected to take.
        unanswered: Requests that were sent to it and have left without its reply, which may still come.
        quarantine: When it may get requests again after it was silent.
    """

    worker: str
    silence: Silence = field(default_factory=Silence)
    incarnation: int = 0
    models: tuple[ServedModel, ...] = ()
    open: bool = False
    capacity: int = 1
    limit: int = 0
    times: LaneTimes = field(default_factory=LaneTimes)
    others: int = 0
    closed_until: float = 0.0
    replied_at: float = -math.inf
    turn: int = 0
    in_flight: dict[str, tuple[float, float]] = field(default_factory=dict)
    unanswered: RecentIds = field(default_factory=partial(RecentIds, _MOST_UNANSWERED))
    quarantine: Quarantine = field(default_factory=Quarantine)

    @property
    def opens_at(self) -> float:
        """When it may get requests again, after it was busy or silent."""
        return max(self.closed_until, self.quarantine.until)

    def serves(self, model: str, version: str | None) -> bool:
        """Return whether it serves a model: in a version, as its canary or, where none is stated, as the default."""
        return any(
            each.name == model
            and (each.default if version is None else each.share > 0 if version == CANARY else each.version == version)
            for each in self.models
        )

    def expected(self) -> float:
        """Return how long a request sent now would take: `(in flight + others + 1) * service`, in seconds."""
        return (len(self.in_flight) + self.others + 1) * self.times.service

    def finish(self, now: float) -> float:
        """Return when the reply to a request sent now should have come: `now + _MARGIN * expected_s + transit_s`."""
        return now + _MARGIN * self.expected() + self.times.transit

    def is_usable(self, now: float) -> bool:
        """Return whether it takes requests, and answers in the time that it should."""
        if not self.open or now < self.closed_until or now < self.quarantine.until:
            return False
        if not self.in_flight:
            return True
        sent, expected = next(iter(self.in_flight.values()))
        allowed = max(self.silence.doubt, self.silence.doubt_factor * expected)
        return now - max(sent, self.replied_at) <= (allowed if self.times.service else self.silence.attempt_unknown)

    def has_room(self) -> bool:
        """Return whether fewer requests of this client are in flight at it than it allows."""
        if self.quarantine.strikes:
            return not self.in_flight  # one at a time until it replies
        return len(self.in_flight) < (self.limit or max(1, min(self.capacity, _FIRST_LIMIT)))

    def has_just_replied(self, now: float) -> bool:
        """Return whether it has answered something just now: then its other replies are slow, and not lost."""
        return now - self.replied_at < self.silence.attempt / 2

    def land(self, request_id: str) -> None:
        """Remove a request from those in flight without a reply of this worker."""
        if self.in_flight.pop(request_id, None) is not None:
            self.unanswered.add(request_id)

    def update_load(self, load: WorkerLoad, now: float) -> None:
        """Store what a reply, however late, reports: that the worker runs, and how busy it is."""
        self.replied_at = now
        if self.quarantine.strikes:
            self.quarantine = Quarantine()
        self.others = max(0, load.depth - 1 - len(self.in_flight))  # the depth counts the request that it answers
        if load.service_time_us:
            self.times.service = load.service_time_us / 1e6
        if load.window:
            self.limit = load.window

    def pause(self, now: float, seconds: float = 0.0) -> None:
        """Send it nothing for `max(service, seconds)`, since it turned a request away; `seconds` is what it stated."""
        seconds = max(self.times.service, min(seconds, LONGEST_PAUSE_S), 0.001)
        self.closed_until = max(self.closed_until, now + seconds)

    def update(self, state: WorkerState) -> None:
        """Store the worker's state."""
        if state.incarnation != self.incarnation:
            self.quarantine, self.closed_until, self.others = Quarantine(), 0.0, 0
        self.incarnation, self.models = state.incarnation, state.models
        self.open = state.status is WorkerStatus.READY
        self.capacity = state.capacity
        if state.service_time_us:
            self.times.service = state.service_time_us / 1e6


def doubled(first: float, times: int, most: float) -> float:
    """Return `min(first * 2 ** times, most)`; `times` may grow for days."""
    return min(first * (1 << min(times, _DOUBLINGS)), most)
