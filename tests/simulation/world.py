"""One clock, one heap of events and one source of chance: whatever happens in a run is decided here, by its seed."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random
from typing import Any

__all__ = ["Halted", "Killed", "Node", "World", "in_world", "running"]

_MOST_STEPS = 100_000
"""A run of more events does not end by itself."""


class Halted(BaseException):
    """A rule was broken: the run ends here, whatever is on the stack."""


class Killed(BaseException):
    """The process whose code runs has ended."""


class World:
    """The clock and what is due, in seconds of true time; no process sees it, each has a clock of its own.

    Attributes:
        random: The only source of chance.
        now: True time.
        steps: Events so far.
        depth: Loops within one another: code that waits runs the world meanwhile.
        trace: What happened: time, words, and what they are about.
        violations: Rules that were broken, in words.
        checks: Called after each event with the node that had it.
        current: The process whose code runs.
        touched: The process whose code ran last.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = Random(seed)  # noqa: S311  no secret depends on it
        self.now = 0.0
        self.steps = 0
        self.depth = 0
        self.trace: list[tuple[Any, ...]] = []
        self.violations: list[str] = []
        self.checks: list[Callable[[], None]] = []
        self.current: Node | None = None
        self.touched: Node | None = None
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = 0

    def note(self, *what: Any) -> None:
        """Add to the trace."""
        self.trace.append((self.now, *what))

    def violate(self, rule: str) -> None:
        """Report a broken rule; the run ends after the event that goes on."""
        self.violations.append(rule)
        self.note("VIOLATION", rule)

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call something at a time."""
        self._number += 1
        heapq.heappush(self._events, (max(when, self.now), self._number, call, arguments))

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Call something later."""
        self.at(self.now + seconds, call, *arguments)

    def run(self, until: float, is_over: Callable[[], bool] | None = None) -> bool:
        """Let events happen until a time, or until something is so; return whether it is.

        Raises:
            Halted: A rule was broken.
        """
        events = self._events
        self.depth += 1
        try:
            while not (is_over is not None and is_over()):
                if not events or events[0][0] > until:
                    if until < math.inf:
                        self.now = max(self.now, until)
                    return is_over is not None and is_over()
                self._step()
        finally:
            self.depth -= 1
        return True

    def _step(self) -> None:
        self.now, _, call, arguments = heapq.heappop(self._events)
        self.steps += 1
        call(*arguments)
        for check in self.checks:
            check()
        if self.steps > _MOST_STEPS:
            self.violate(f"the run does not end: {_MOST_STEPS} events")
        if self.violations:
            raise Halted


@dataclass(slots=True, eq=False)
class Node:
    """A process: its clocks, and whether it runs.

    Attributes:
        world: The run.
        name: For the trace.
        offset: Of its monotonic clock at the start.
        rate: Seconds of its clock in a true one.
        leap: What its clock has leapt forward.
        wall: Of its wall clock, which may jump either way.
        lead: How far the code that runs now has got ahead of the world: it has worked for so long.
        halted_until: Nothing happens in it before.
        dead: Whether it has ended.
        is_stuck: Whether the code that runs now never returns; what it seems to do from then on does not happen.
        leapt_at: When its clock leapt last.
        on_leap: Called when its clock has leapt.
    """

    world: World
    name: str
    offset: float = 0.0
    rate: float = 1.0
    leap: float = 0.0
    wall: float = 0.0
    lead: float = 0.0
    halted_until: float = 0.0
    dead: bool = False
    is_stuck: bool = False
    leapt_at: float = 0.0
    on_leap: Callable[[], None] = lambda: None

    def clock(self) -> float:
        """Return the reading of its monotonic clock."""
        return self.offset + self.leap + (self.world.now + self.lead) * self.rate

    def wall_ns(self) -> int:
        """Return the reading of its wall clock."""
        return int((1_700_000_000 + self.wall + self.world.now + self.lead) * 1e9)

    def let_leap(self, seconds: float) -> None:
        """Let its monotonic clock leap forward, as after a suspension."""
        self.leap += seconds
        self.leapt_at = self.world.now
        self.on_leap()

    def when(self, reading: float) -> float:
        """Return the true time of a reading of its clock."""
        return (reading - self.offset - self.leap) / self.rate

    def call(self, call: Callable[..., None], *arguments: Any) -> None:
        """Let its code run now, or as soon as it is not halted; time that the code takes halts it."""
        world = self.world
        if self.dead:
            return
        if world.now < self.halted_until:
            if self.halted_until < math.inf:
                world.at(self.halted_until, self.call, call, *arguments)
            return
        before = world.current
        world.current = world.touched = self
        try:
            call(*arguments)
        except Killed:
            if not self.dead:
                raise
        finally:
            world.current = before
            if self.is_stuck:
                self.halted_until, self.is_stuck = math.inf, False
            if self.lead:
                self.halted_until = max(self.halted_until, world.now + self.lead)
                self.lead = 0.0

    def after(self, seconds: float, call: Callable[..., None], *arguments: Any) -> None:
        """Let its code run later, by true time."""
        self.world.after(seconds, self.call, call, *arguments)

    def wait(self, is_over: Callable[[], bool], seconds: float | None) -> bool:
        """Let the world go on while its code waits.

        Raises:
            Killed: It ended meanwhile.
        """
        until = math.inf if seconds is None else self.world.now + seconds / self.rate
        found = self.world.run(until, lambda: self.dead or is_over())
        self.world.current = self
        if self.dead:
            raise Killed
        return found


def running() -> Node:
    """Return the process whose code runs."""
    if _WORLD.world is None or _WORLD.world.current is None:
        raise RuntimeError("no process of a simulation runs")
    return _WORLD.world.current


@dataclass(slots=True)
class _Now:
    world: World | None = None


_WORLD = _Now()


@contextmanager
def in_world(world: World) -> Iterator[None]:
    """Make a world the one that `running` looks into."""
    before, _WORLD.world = _WORLD.world, world
    try:
        yield
    finally:
        _WORLD.world = before
