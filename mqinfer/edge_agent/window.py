"""One stream of frames at the edge: how many may be under way, and the one that waits. Not thread-safe, no thread."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from mqinfer.client.result import InferResult
from mqinfer.edge_agent.quality_ladder import QualityLadder
from mqinfer.protocol.types import Outcome, Timings

__all__ = ["DelayWindow", "Policy", "Stream"]

T = TypeVar("T")


class Policy(StrEnum):
    """What happens to a frame that comes while the window is full."""

    LATEST = "latest"
    """It waits, and takes the place of one that waits already: for live streams, which must be fresh."""
    ALL = "all"
    """The reader waits: for recordings, of which nothing may be lost."""


@dataclass(slots=True)
class Stream(Generic[T]):
    """The state of one stream.

    Attributes:
        window: How many of its frames may be under way.
        economy: How they are sent.
        under_way: Frames from the beginning of their preparation to their outcome.
        waiting: With `latest`, the newest frame that found the window full.
    """

    window: DelayWindow
    economy: QualityLadder
    under_way: int = 0
    waiting: T | None = None

    @property
    def has_room(self) -> bool:
        """Whether another frame may be sent."""
        return self.under_way < self.window.limit

    def enter(self) -> None:
        """Begin with a frame."""
        self.under_way += 1

    def give_up(self) -> None:
        """Let go of a frame that is not sent now."""
        self.under_way -= 1

    def offer(self, item: T) -> tuple[T | None, T | None]:
        """Take in a frame by the policy `latest`.

        Returns:
            What is to be sent now, and what has lost its place.
        """
        if self.has_room and self.waiting is None:
            self.enter()
            return item, None
        lost, self.waiting = self.waiting, item
        return None, lost

    def leave(self, result: InferResult, now: float) -> T | None:
        """Note a frame's outcome.

        Returns:
            The frame that waited, if it is to be sent now.
        """
        self.under_way -= 1
        if result.outcome is Outcome.OK:
            self.window.answered(result.timings, now)
            self.economy.answered()
        elif result.outcome in {Outcome.EXPIRED, Outcome.REJECTED}:
            self.window.unanswered()
        if self.waiting is None or not self.has_room:
            return None
        item, self.waiting = self.waiting, None
        self.enter()
        return item


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
