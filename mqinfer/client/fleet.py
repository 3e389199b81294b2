"""The workers that a client knows, and which of them gets the next request: the one expected to finish it first.

Mosquitto deals a shared subscription blindly in turn, so a slow or stalled worker gets as much as a fast one. Here the
client holds a window per worker and sends to the worker with the least expected finish, (outstanding + others' + 1) x
smoothed service time: join-the-shortest-queue weighted by speed (Weinberg 1978 has its near-optimality for equal
workers). Only a reply renews what is known of a worker, so one that was slow once would get nothing for ever: now and
then it gets one request, less often while it stays slow (a half-open circuit breaker: Nygard, "Release It!", 2007).
Pure: the owner passes the clock's reading and holds a lock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from mqinfer.client.lane import Lane, Patience
from mqinfer.protocol.states import WorkerState, WorkerStatus
from mqinfer.protocol.types import WorkerLoad

__all__ = ["Fleet", "Way"]

_Channel = tuple[str, str | None]

_ALIKE, _ALIKE_S = 1.3, 0.005
"""Workers whose expected finishes differ by less, as a factor and in seconds, take turns: so much is noise."""
_PROBE_EVERY = 100
"""Requests for each one that goes to a worker that seems slow, at least: 1 % of them are late for it at most."""
_LONGEST_PAUSE_S = 1.0
"""A model's channel that nobody listens on is tried again after this at the latest."""
_WEIGHT = 0.2
"""Weight of the newest reading in a smoothed time."""


class Way(Enum):
    """Where a request goes if not to a worker of its own."""

    SHARED = "shared"
    """The model's channel: no worker of it is known."""
    WAIT = "wait"
    """Nowhere yet: every worker of it has its hands full, or is in doubt."""


@dataclass(slots=True)
class _Unserved:
    """A model's channel that nobody listens on: since when, when it is tried again, and how long it then rests."""

    since: float
    closed_until: float
    pause: float


class Fleet:
    """The workers by name. Not thread-safe."""

    def __init__(self, patience: Patience | None = None) -> None:
        """Begin with none.

        Args:
            patience: With silent workers.
        """
        self._patience = patience or Patience()
        self._lanes: dict[str, Lane] = {}
        self._turn = 0
        self._probed = 0  # the turn of the last probe
        self._shared: dict[str, float] = {}  # smoothed seconds from sending to reply, by model
        self._unserved: dict[_Channel, _Unserved] = {}

    def __len__(self) -> int:
        """Count the workers that take requests."""
        return sum(lane.open for lane in self._lanes.values())

    def lane(self, worker: str) -> Lane | None:
        """Look at a worker."""
        return self._lanes.get(worker)

    def update(self, state: WorkerState) -> Lane | None:
        """Take in what a worker, or the broker for it, says.

        Returns:
            The lane whose unanswered requests nobody will answer: the worker is lost, has stopped, or begun anew.
        """
        lane = self._lanes.get(state.worker)
        foreign = lane is not None and lane.boot != state.incarnation
        if foreign and state.status is not WorkerStatus.READY:
            return None  # the will or the farewell of a twin or a forerunner: the worker that is known is not meant
        if state.status in {WorkerStatus.LOST, WorkerStatus.STOPPED}:
            return self._lanes.pop(state.worker, None)
        reborn = lane if foreign else None
        if lane is None or reborn:
            lane = self._lanes[state.worker] = Lane(state.worker, self._patience)
        lane.update(state)
        for channel in [channel for channel in self._unserved if lane.open and lane.serves(*channel)]:
            del self._unserved[channel]
        return reborn

    def heard(self, worker: str, load: WorkerLoad, now: float) -> None:
        """Note a reply of a worker."""
        if lane := self._lanes.get(worker):
            lane.heard(load, now)

    def gone(self, lane: Lane) -> None:
        """Note that nobody listens on a lane any more; its worker counts again with its next state."""
        if self._lanes.get(lane.worker) is lane:
            lane.open = False

    def choose(  # noqa: PLR0913 - what is known of the request
        self,
        model: str,
        version: str | None,
        now: float,
        *,
        waiting: int = 1,
        suspect: bool = False,
        deadline: float = math.inf,
    ) -> Lane | Way:
        """Choose where the next request for a model goes.

        Args:
            model: Asked for.
            version: Asked for, or None.
            now: The clock's reading.
            waiting: Requests for the model that wait in this client.
            suspect: Whether a worker died on the request: it goes where no other such request is, since one of the
                two would be blamed for the other.
            deadline: Of the request.
        """
        serving = [lane for lane in self._lanes.values() if lane.open and lane.serves(model, version)]
        if not serving:
            return self._knock(model, version, now)
        usable = [lane for lane in serving if lane.is_usable(now) and not (suspect and lane.has_suspect)]
        best = min(usable, key=Lane.expected, default=None)
        if best is None:
            return Way.WAIT
        bound = _ALIKE * best.expected() + _ALIKE_S
        if not suspect and (probe := self._next_probe(usable, bound, deadline, now)):
            return self._take(probe, probe=True)
        alike = [lane for lane in usable if lane.expected() <= bound and not lane.is_full]
        if alike:
            return self._take(min(alike, key=lambda lane: (lane.outstanding, lane.turn)))
        # Those that finish first are full. Waiting for them is better than a slower one that has room, unless so much
        # waits that the last of it would finish later still.
        second = min((lane for lane in usable if not lane.is_full), key=Lane.expected, default=None)
        by_waiting = best.expected() + waiting / sum(1 / max(lane.service, 1e-6) for lane in usable)
        return self._take(second) if second and second.expected() <= by_waiting else Way.WAIT

    def _knock(self, model: str, version: str | None, now: float) -> Way:
        """Send over a model's channel; one at a time where nobody listened the last time."""
        unserved = self._unserved.get((model, version))
        if unserved is None:
            return Way.SHARED
        if now < unserved.closed_until:
            return Way.WAIT
        unserved.closed_until = now + unserved.pause
        return Way.SHARED

    def unserved(self, channel: _Channel, now: float, pause: float) -> float:
        """Note that nobody listens on a model's channel: all who ask for it wait, and one of them tries again later.

        Args:
            channel: Model and version.
            now: The clock's reading.
            pause: Seconds until the first new try; doubled each time, at most one second.

        Returns:
            Since when.
        """
        state = self._unserved.setdefault(channel, _Unserved(now, now, pause))
        state.closed_until = now + state.pause
        state.pause = min(2 * state.pause, _LONGEST_PAUSE_S)
        return state.since

    def reopen(self, channel: _Channel, at: float) -> None:
        """Let a model's channel be tried at a time, if it would not be sooner."""
        if unserved := self._unserved.get(channel):
            unserved.closed_until = min(unserved.closed_until, at)

    def _next_probe(self, usable: Iterable[Lane], bound: float, deadline: float, now: float) -> Lane | None:
        """Choose a worker that seems slow, and about which nothing is known any more, if it is time for that."""
        if self._turn - self._probed < _PROBE_EVERY:
            return None
        due = (lane for lane in usable if lane.wants_probe(now) and lane.expected() > bound)
        return min((lane for lane in due if lane.is_in_time(deadline, now)), key=lambda lane: lane.turn, default=None)

    def _take(self, lane: Lane, *, probe: bool = False) -> Lane:
        self._turn += 1
        if probe:
            self._probed = self._turn
        lane.chosen(self._turn, probe=probe)
        return lane

    def shared_retry(self, model: str, now: float) -> float:
        """Tell when to send a request again that goes over a model's channel, where nobody knows the queue."""
        usual = self._shared.get(model)
        if usual is None:
            return now + self._patience.attempt_unknown
        return now + max(self._patience.attempt_shared, self._patience.attempt_factor * usual)

    def shared_heard(self, model: str, seconds: float) -> None:
        """Note how long a reply took that came over a model's channel."""
        for channel in [channel for channel in self._unserved if channel[0] == model]:
            del self._unserved[channel]
        usual = self._shared.get(model, seconds)
        self._shared[model] = usual + _WEIGHT * (seconds - usual)

    def next_opening(self, since: float) -> float | None:
        """Tell when a lane or a channel opens again that was closed at some time, at the earliest."""
        times = [lane.opens_at for lane in self._lanes.values() if lane.open and lane.opens_at > since]
        times += [each.closed_until for each in self._unserved.values() if each.closed_until > since]
        return min(times, default=None)

    def clear(self) -> None:
        """Forget everything: on a new connection the broker tells again who is there."""
        self._lanes.clear()
        self._unserved.clear()
