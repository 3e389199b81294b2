"""How many requests of one stream may be unanswered: a window that follows the queueing delay. Pure.

The control is that of Swift (Kumar et al., "Swift: Delay is Simple and Effective for Congestion Control in the
Datacenter", SIGCOMM 2020, section 3.1): additive increase while the delay is below a target, a multiplicative decrease
in proportion to the excess above it, at most once a round trip. Here the delay is what a request waited and not what it
was worked on: in the client, on the way beyond the shortest one, in the worker's queue. The target is a share of the
time that the model takes, since a request that waits for less than that keeps the worker busy and no more; over a thin
link, which is then what is to be kept busy, of the time between two answers.

It starts carefully, with one request, and doubles each round trip until the delay first exceeds the target (slow
start), or, where freshness counts, until one worker is busy; after a time-out it starts so again, which recovers
quickly.
"""

from __future__ import annotations

from mqinfer.protocol.types import Timings

__all__ = ["DelayWindow"]

_INCREASE = 0.2
"""Added a round trip."""
_BETA = 0.8
_DEEPEST = 0.5
"""Largest part that one decrease takes away."""
_WEIGHT = 0.2
"""Of the newest reading in the smoothed time between two answers."""
_LEAST_TARGET_S = 0.002
"""Below this a delay is the machine's noise."""
_DRIFT = 0.02
"""Part of the way that the shortest transmission follows a longer one, so that a changed route is found out."""


class DelayWindow:
    """The window of one stream. Not thread-safe."""

    def __init__(self, most: int, share: float = 1.0) -> None:
        """Begin with one request.

        Args:
            most: Requests at most.
            share: Of the model's time that a request may wait: 1 for throughput, less for freshness.
        """
        self._most = most
        self._share = share
        self._window = 1.0
        self._slow_start = True
        self._shortest: float | None = None
        self._decreased = -1e9
        self._answered = -1e9
        self._interval = 0.0

    @property
    def limit(self) -> int:
        """Requests that may be unanswered now."""
        return max(1, min(self._most, int(self._window)))

    def answered(self, timings: Timings, now: float) -> None:
        """Learn from a reply.

        Args:
            timings: Where its time went.
            now: In seconds.
        """
        transmission = timings.transmission / 1e9
        if self._shortest is None or transmission < self._shortest:
            self._shortest = transmission
        delay = (timings.client_queue + timings.server_queue) / 1e9 + transmission - self._shortest
        self._shortest += _DRIFT * (transmission - self._shortest)
        total, work = timings.total / 1e9, (timings.server - timings.server_queue) / 1e9
        # Where requests go out now and then the time between answers says nothing of the way: its own time bounds it.
        interval = min(now - self._answered, total)
        self._interval += (interval - self._interval) * (_WEIGHT if self._interval else 1.0)
        self._answered = now
        target = max(_LEAST_TARGET_S, self._share * max(work, self._interval))
        if delay <= target:
            # Little's law: of one worker no more than time / work requests can be under way without one that waits.
            fills = self._window * work < total - delay
            doubles = self._slow_start and (fills or self._share >= 1)
            self._window += 1.0 if doubles else _INCREASE / self._window
            self._window = min(self._window, float(self._most))
        elif now - self._decreased >= total:
            self._slow_start = False
            self._decreased = now
            # Of three the third waits; what keeps a thin link busy are the other two, so one decrease leaves them.
            least = 2.0 if self._window >= 3.0 else 1.0
            self._window = max(least, self._window * max(1 - _BETA * (delay - target) / delay, _DEEPEST))

    def unanswered(self) -> None:
        """Learn from a request that expired or was turned away: begin anew."""
        self._window, self._slow_start = 1.0, True
