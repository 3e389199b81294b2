"""One stream of frames at the edge: how many may be under way, and the one that waits. Not thread-safe, no thread."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Generic, TypeVar

from mqinfer.client.result import InferResult
from mqinfer.edge_agent.delay_window import DelayWindow
from mqinfer.edge_agent.quality_ladder import Economy
from mqinfer.protocol.types import Outcome

__all__ = ["Policy", "Stream"]

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
    economy: Economy
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
