"""Vehicles that ask at the same time: callers in closed loops, or cameras whose newer frame replaces an older one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from random import Random
from typing import TypeVar

from mqinfer.protocol.errors import MqinferError

_T = TypeVar("_T")
Ask = Callable[[int], Awaitable[object]]
"""Sends the frame of a number, and returns once its output is there."""
_MOST_TIMES = 10_000
"""Times that a turn keeps, so that a million requests take no more memory than ten thousand."""
_MOST_REASONS = 32
"""Codes of errors that a turn tells apart: they come from outside."""
_WARM_UP, _LONGEST_WARM_UP_S = 0.2, 2.0
"""Time before the first turn that is not counted, as a share of a turn."""


@dataclass(frozen=True, slots=True)
class Load:
    """What a turn asks of each contestant.

    Attributes:
        callers: Of each vehicle: requests at a time.
        seconds: After this time no request starts; the last results are waited for.
        samples: After as many requests of all vehicles none starts; 0 for no such end.
        rate: Frames a second of each vehicle's camera: while `callers` are on their way the newest one waits, and an
            older one is dropped; 0 for callers that send the next request once they have a result.
    """

    callers: int = 1
    seconds: float = 1.5
    samples: int = 0
    rate: float = 0.0


@dataclass(slots=True)
class DrivenTurn:
    """What came of one turn, and what it took of the machine.

    Attributes:
        seconds: From the first request's start to the last one's end.
        times: Seconds of a result: from its request, or from the moment that its frame was due. Of more than 10,000
            results those of 10,000 that were drawn at random.
        vehicles: Results of each vehicle.
        failures: Requests without a result, by code.
        dropped: Frames that a newer one replaced.
        cpu_s: Processor seconds of the processes that take part, by role.
        peaks: Peak memory in bytes by role.
    """

    seconds: float
    times: list[float]
    vehicles: list[int]
    failures: Mapping[str, int] = field(default_factory=dict)
    dropped: int = 0
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    peaks: Mapping[str, int] = field(default_factory=dict)

    @property
    def results(self) -> int:
        """Results of all vehicles."""
        return sum(self.vehicles)

    @property
    def rate(self) -> float:
        """Results a second."""
        return self.results / self.seconds

    @property
    def jain(self) -> float:
        """Jain's index of the vehicles' results: 1 where all have as many, 1/n where one of n has all."""
        squares = len(self.vehicles) * sum(each**2 for each in self.vehicles)
        return self.results**2 / squares if squares else 0.0


def merged(turns: Sequence[DrivenTurn]) -> DrivenTurn:
    """Return the turn of vehicles in several processes, each with as many, as that of all of them."""
    failures = sum((Counter(turn.failures) for turn in turns), Counter[str]())
    return DrivenTurn(
        max(turn.seconds for turn in turns),
        [each for turn in turns for each in turn.times],
        [each for turn in turns for each in turn.vehicles],
        dict(failures),
        sum(turn.dropped for turn in turns),
    )


class _Watch:
    """Counts one turn."""

    def __init__(self, load: Load, vehicles: int, clock: Callable[[], float]) -> None:
        self.load, self.clock = load, clock
        self.started, self.begin = 0, clock()
        self.failures: Counter[str] = Counter()
        self.turn = DrivenTurn(0.0, [], [0] * vehicles, self.failures)
        self._random = Random(0)  # noqa: S311 - no secret

    def take(self) -> int | None:
        """Return the number of the next request; None where none may start any more."""
        is_over = self.load.samples and self.started >= self.load.samples
        if is_over or self.clock() - self.begin >= self.load.seconds:
            return None
        self.started += 1
        return self.started - 1

    async def ask(self, ask: Ask, vehicle: int, number: int, since: float) -> None:
        """Send one request, and count what comes of it."""
        try:
            await ask(number)
        except MqinferError as error:
            is_counted = error.code in self.failures or len(self.failures) < _MOST_REASONS
            self.failures[error.code if is_counted else "other"] += 1
        else:
            self.turn.vehicles[vehicle] += 1
            self._keep(self.clock() - since)

    def _keep(self, seconds: float) -> None:
        """Keep a time; of too many each is kept with the same chance (Vitter's algorithm R)."""
        if len(self.turn.times) < _MOST_TIMES:
            self.turn.times.append(seconds)
        elif (place := int(self._random.random() * self.turn.results)) < _MOST_TIMES:
            self.turn.times[place] = seconds


def warm_up(load: Load) -> Load:
    """Return a short turn of a load, which is not counted."""
    seconds = max(0.05, min(load.seconds * _WARM_UP, _LONGEST_WARM_UP_S))
    return replace(load, seconds=seconds, samples=load.samples // 5)


async def drive(asks: Sequence[Ask], load: Load, clock: Callable[[], float] = time.perf_counter) -> DrivenTurn:
    """Have all vehicles ask for a turn.

    Args:
        asks: One for each vehicle.
        load: How.
        clock: In seconds.
    """
    watch = _Watch(load, len(asks), clock)
    if load.rate:
        work = [_camera(watch, ask, number) for number, ask in enumerate(asks)]
    else:
        work = [_caller(watch, ask, number) for number, ask in enumerate(asks) for _ in range(load.callers)]
    await asyncio.gather(*work)
    watch.turn.seconds = watch.clock() - watch.begin
    return watch.turn


def rotated(items: Sequence[_T], number: int) -> Sequence[_T]:
    """Return what takes turns in an order that begins with another one each round: none always follows the same."""
    first = number % len(items) if items else 0
    return [*items[first:], *items[:first]]


async def _caller(watch: _Watch, ask: Ask, vehicle: int) -> None:
    while (number := watch.take()) is not None:
        await watch.ask(ask, vehicle, number, watch.clock())


async def _camera(watch: _Watch, ask: Ask, vehicle: int) -> None:
    """Take frames at a rate, the vehicles one after the other within its interval; the newest one waits for room."""
    load, tasks, waiting = watch.load, set[asyncio.Task[None]](), list[tuple[int, float]]()
    first = watch.begin + vehicle / len(watch.turn.vehicles) / load.rate

    def start(number: int, due: float) -> None:
        task = asyncio.create_task(watch.ask(ask, vehicle, number, due))
        tasks.add(task)
        task.add_done_callback(ended)

    def ended(task: asyncio.Task[None]) -> None:
        tasks.discard(task)
        if waiting:
            start(*waiting.pop())

    for taken in count():
        due = first + taken / load.rate
        await asyncio.sleep(due - watch.clock())
        if (number := watch.take()) is None:
            break
        if len(tasks) < load.callers:
            start(number, due)
        else:
            watch.turn.dropped += len(waiting)
            waiting[:] = [(number, due)]
    while tasks:
        await asyncio.wait(tasks)
        await asyncio.sleep(0)  # for what starts once a task has ended
