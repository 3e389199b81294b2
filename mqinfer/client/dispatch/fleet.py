"""The workers that a client knows, and which of them gets the next request: the one expected to finish it first.

Mosquitto deals a shared subscription blindly in turn, so a slow or halted worker gets as much as a fast one. Here the
client keeps a lane per worker and sends to the worker with the least expected finish, `(in flight + others + 1) *
service`: join-the-shortest-queue weighted by speed (Weinberg 1978 shows that it is near the optimum for equal workers).
Only a reply renews what is known of a worker, so one that was slow once would never be asked again: what is known of an
idle worker counts for less the older it is, until it gets one request.
Pure: the owner passes the clock's reading and holds a lock. Choosing changes nothing; sending does.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from enum import Enum

from mqinfer.client.dispatch.channels import Channel, SharedChannels
from mqinfer.client.dispatch.lane import Lane
from mqinfer.client.options import Silence
from mqinfer.protocol.states import WorkerState, WorkerStatus

_STARTING_LIMIT = 2
"""Requests in flight at a worker while another one's first reply is awaited: else the first to reply would get all."""
_ALIKE, _ALIKE_S = 1.3, 0.005
"""Workers take turns while they are expected to finish within `_ALIKE * best + max(_ALIKE_S, run - service)`, the times
of a batch and of one request at the best one: so much is noise, since a request waits for the end of a batch. Without
it the worker that happens to get the largest batches seems the fastest, and gets larger ones still (339 of 1000
requests for one of four equal workers)."""
_STALE_REQUESTS, _STALE_S = 40, 2.0
"""An idle worker's expected time is divided by `age = min(requests since / _STALE_REQUESTS, silence / _STALE_S)`.

One that is `n` times as slow as the best is asked again after about `30 * n` requests, and `1.5 * n` seconds: so asking
adds less than 4 % of the best worker's time to the mean, however slow it is.
"""
_GONE = frozenset({WorkerStatus.LOST, WorkerStatus.STOPPED, WorkerStatus.CRASHED})
_MOST_CHANNELS = 1024
"""Channels whose workers are kept ready."""


class NoLane(Enum):
    """Where a request goes if not to a worker that the client chooses."""

    SHARED = "shared"
    """The model's channel: no worker of it is known."""
    WAIT = "wait"
    """Nowhere yet: every worker of it has enough in flight, or is silent."""


class Fleet:
    """The workers by name. Not thread-safe.

    Attributes:
        channels: What is known of the models' channels, which a request takes where no worker is known.
    """

    def __init__(self, silence: Silence | None = None) -> None:
        """Start with no worker.

        Args:
            silence: When a worker's silence means something.
        """
        self._silence = silence or Silence()
        self.channels = SharedChannels(self._silence)
        self._lanes: dict[str, Lane] = {}
        self._serving: dict[Channel, list[Lane]] = {}  # open lanes by channel; forgotten when a state changes them
        self._turn = 0
        self._shares: dict[str, int] | None = {}

    @property
    def shares(self) -> dict[str, int]:
        """Per cent of the requests without a version that go to the canary, by model; only of models with one."""
        if self._shares is None:
            shares = self._shares = {}
            for each in (each for lane in self._lanes.values() if lane.open for each in lane.models if each.share):
                shares[each.name] = max(shares.get(each.name, 0), each.share)
        return self._shares

    def lane(self, worker: str) -> Lane | None:
        """Return a worker's lane, or None where it is not known."""
        return self._lanes.get(worker)

    def update(self, state: WorkerState) -> Lane | None:
        """Handle a state that a worker, or the broker on its behalf, published.

        Returns:
            The lane whose requests in flight will not be answered: its worker is lost, has ended, or started anew.
        """
        lane = self._lanes.get(state.worker)
        foreign = lane is not None and lane.incarnation != state.incarnation
        if foreign and state.status is not WorkerStatus.READY:
            return None  # the will or the last state of a twin or a predecessor: it is not about the known worker
        if state.status in _GONE:
            return self.remove(state.worker)
        replaced = lane if foreign else None
        if lane is None or replaced:
            lane = self._lanes[state.worker] = Lane(state.worker, self._silence)
        before = lane.open, lane.models
        lane.update(state)
        if replaced or before != (lane.open, lane.models):
            self._forget()
        self.channels.open_for(lane)
        return replaced

    def remove(self, worker: str) -> Lane | None:
        """Drop a worker whose state was removed from the broker; return its lane, or None where it is not known."""
        lane = self._lanes.pop(worker, None)
        self._forget()
        return lane

    def close(self, lane: Lane) -> None:
        """Send a worker nothing until its next state: it does not subscribe to its lane any more."""
        lane.open = False
        self._forget()

    def choose(
        self,
        channel: Channel,
        now: float,
        *,
        queued: int = 1,
        avoid: Collection[Lane] = (),
        deadline: float = math.inf,
    ) -> Lane | NoLane:
        """Return where the next request for a model goes; nothing is changed.

        Args:
            channel: Model and version asked for.
            now: The clock's reading.
            queued: Requests for them that are queued in this client.
            avoid: Workers that it does not go to.
            deadline: The request's; one that can't wait is not sent to find out whether a slow worker is faster by now.
        """
        serving = self._serving.get(channel)
        if serving is None:
            serving = self._find(channel)
        if not serving:
            return NoLane.WAIT if self.channels.is_closed(channel, now) else NoLane.SHARED
        usable = [lane for lane in serving if lane.is_usable(now) and lane not in avoid]
        if not usable:
            return NoLane.WAIT
        if len(usable) == 1:
            return usable[0] if usable[0].has_room() else NoLane.WAIT
        return self._first_to_finish([(self._expected(lane, now, deadline), lane) for lane in usable], queued)

    def has_other(self, channel: Channel, avoid: Collection[Lane], now: float) -> bool:
        """Return whether a worker but those to avoid takes a request for a model now."""
        serving = self._serving.get(channel) or self._find(channel)
        return any(lane.is_usable(now) and lane.has_room() and lane not in avoid for lane in serving)

    def pinned(self, worker: str, channel: Channel, now: float) -> Lane | NoLane | None:
        """Return the lane of the worker that a request should go to; None where that does not take such requests.

        A request waits for room there: elsewhere it could not be decoded, and would be sent twice.
        """
        lane = self._lanes.get(worker)
        if lane is None or not lane.serves(*channel) or not lane.is_usable(now):
            return None
        return lane if lane.has_room() else NoLane.WAIT

    def sent(self, request_id: str, lane: Lane, now: float) -> float:
        """Record a request that is being sent to a worker; return when it counts as unanswered."""
        self._turn += 1
        lane.turn = self._turn
        expected = lane.expected() + lane.times.transit
        lane.in_flight[request_id] = (now, expected)
        if not lane.times.service:
            return now + self._silence.attempt_unknown
        return now + max(self._silence.attempt, self._silence.attempt_factor * expected)

    def next_opening(self, since: float) -> float:
        """Return when a lane or a channel opens again that was closed at a time; infinite where none does."""
        times = [lane.opens_at for lane in self._lanes.values() if lane.open and lane.opens_at > since]
        return min([*times, *self.channels.openings(since)], default=math.inf)

    def clear(self) -> None:
        """Drop everything: on a new connection the broker sends the states of all workers again."""
        self._lanes.clear()
        self._forget()
        self.channels.clear()

    def falls_back(self, channel: Channel, now: float, queued: int) -> bool:
        """Return whether a canary's requests go to the default version instead of waiting.

        That is where no worker of it answers, or more requests are queued for it than its workers take at a time.
        """
        usable = [lane for lane in self._serving.get(channel, ()) if lane.is_usable(now)]
        return queued > sum(max(1, lane.limit) for lane in usable)

    def _forget(self) -> None:
        """Derive again who serves what, with the next request: not with each of many states."""
        self._serving.clear()
        self._shares = None

    def _find(self, channel: Channel) -> list[Lane]:
        if len(self._serving) >= _MOST_CHANNELS:
            self._serving.clear()
        found = self._serving[channel] = [lane for lane in self._lanes.values() if lane.open and lane.serves(*channel)]
        return found

    def _expected(self, lane: Lane, now: float, deadline: float) -> float:
        """Return how long a request would take, in seconds; less where that is old, so that it is found out anew."""
        expected = lane.expected()
        if lane.in_flight:
            return expected
        age = min((self._turn - lane.turn) / _STALE_REQUESTS, (now - lane.replied_at) / _STALE_S)
        return expected / age if age > 1 and lane.finish(now) <= deadline else expected

    def _first_to_finish(self, usable: list[tuple[float, Lane]], queued: int) -> Lane | NoLane:
        """Return the lane that finishes a request first, if it pays to send it there now."""
        best, first = min(usable, key=lambda each: each[0])
        bound = _ALIKE * best + max(_ALIKE_S, first.times.run - first.times.service)
        most = _STARTING_LIMIT if any(_awaits_first_reply(lane) for _, lane in usable) else math.inf
        spare = [each for each in usable if each[1].has_room() and len(each[1].in_flight) < most]
        alike = [lane for expected, lane in spare if expected <= bound]
        if alike:
            return min(alike, key=lambda lane: (len(lane.in_flight), lane.turn))
        if not spare:
            return NoLane.WAIT
        # Those that finish first are full. Waiting for them is better than a slower one that has room, unless so much
        # is queued that the last of it would finish later still.
        by_waiting = best + queued / sum(1 / max(lane.times.service, 1e-6) for _, lane in usable)
        expected, second = min(spare, key=lambda each: (each[0], each[1].turn))
        return second if expected <= by_waiting else NoLane.WAIT


def _awaits_first_reply(lane: Lane) -> bool:
    """Return whether a worker has its first request and has not replied yet, though its service time is known."""
    return bool(lane.in_flight) and lane.replied_at == -math.inf and lane.times.service > 0
