"""Measures models side by side: each in a process of its own, so that memory is its own, taking turns on the machine.

The order of a measurement is: batch sizes outside, rounds inside, subjects innermost, forwards and backwards in turn.
What else goes on on the machine then hits all subjects alike, and ratios within a round mean something where absolute
times do not.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from types import TracebackType
from typing import Self, TypeVar

from mqinfer.lab.profiling.child import Order, Subject, run_child
from mqinfer.lab.profiling.results import Loaded, Point, Profile, Turn
from mqinfer.protocol.errors import ConfigError, ModelFailed

__all__ = ["Plan", "Subject", "measure"]

_Answer = TypeVar("_Answer", Loaded, Turn)
_END_TIMEOUT_S = 5.0
_TOLD = 80
"""Characters of a reason that are told while it goes on; the profile has all of it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How subjects are measured.

    Attributes:
        batches: Batch sizes, ascending: memory that an engine once took it rarely gives back.
        rounds: Turns of each subject at each batch size.
        seconds: Length of a turn.
        least: Runs of a turn, however long they take.
        warm_up: Runs that are not measured, at the beginning of each batch size.
        limit_s: A subject that gives no sign for so long is given up.
    """

    batches: tuple[int, ...] = (1,)
    rounds: int = 5
    seconds: float = 0.3
    least: int = 3
    warm_up: int = 3
    limit_s: float = 300.0

    def __post_init__(self) -> None:
        if not self.batches or min(self.batches) < 1 or list(self.batches) != sorted(set(self.batches)):
            raise ConfigError(f"batch sizes {list(self.batches)}: must be numbers of at least 1, ascending")
        if self.rounds < 1 or self.seconds <= 0 or self.least < 1:
            raise ConfigError(f"{self.rounds} rounds of {self.seconds} s and {self.least} runs measure nothing")


def measure(
    subjects: Sequence[Subject], plan: Plan, say: Callable[[str], None] = lambda _: None
) -> tuple[Profile, ...]:
    """Measure all subjects; one that fails is a profile with a problem and stops no other.

    Args:
        subjects: What to measure, each name once.
        plan: How.
        say: Told what is going on, in lines.
    """
    with ExitStack() as stack:
        running = [stack.enter_context(_Running(subject, plan)) for subject in subjects]
        for each in running:
            each.load()
            say(each.told())
        for batch in plan.batches:
            say(f"batch {batch}: {plan.rounds} rounds")
            for number in range(plan.rounds):
                for each in running if number % 2 == 0 else reversed(running):
                    each.take_turn(batch)
        return tuple(each.profile() for each in running)


@dataclass(slots=True)
class _Running:
    """A subject, its process, and what came of it so far."""

    subject: Subject
    plan: Plan
    loaded: Loaded | None = None
    problem: str = ""
    turns: dict[int, list[Turn]] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    pipe: Connection = field(init=False)
    process: SpawnProcess = field(init=False)

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")  # a fork would share the parent's memory, and TensorFlow's locks
        self.pipe, theirs = context.Pipe()
        name = f"mqinfer-profile-{self.subject.name}"
        self.process = context.Process(target=run_child, args=(self.subject, theirs), name=name, daemon=True)
        self.process.start()
        theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pipe.close()  # which ends the process
        self.process.join(0 if kind else _END_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()

    def load(self) -> None:
        """Wait until the model is loaded, or can't be."""
        try:
            self.loaded = self._answer(Loaded)
        except ModelFailed as failure:
            self.problem = str(failure)

    def told(self) -> str:
        """Say in a line what became of loading."""
        if self.loaded is None:
            return f"{self.subject.name}: can't run it: {self.problem[:_TOLD]}"
        return f"{self.subject.name}: {self.loaded.engine} on {self.loaded.device}, {self.loaded.precision}"

    def take_turn(self, batch: int) -> None:
        """Run for a while, unless there is a reason not to."""
        if self.problem or batch in self.refusals:
            return
        order = Order(batch, self.plan.seconds, self.plan.least, self.plan.warm_up)
        try:
            self.turns.setdefault(batch, []).append(self._answer(Turn, order))
        except ModelFailed as failure:
            self.refusals[batch] = str(failure)

    def profile(self) -> Profile:
        """Sum it up."""
        points = () if self.loaded is None else tuple(map(self._point, self.plan.batches))
        return Profile(self.subject.name, self.loaded, points, self.problem)

    def _point(self, batch: int) -> Point:
        return Point(batch, tuple(self.turns.get(batch, ())), self.refusals.get(batch, self.problem))

    def _answer(self, kind: type[_Answer], order: Order | None = None) -> _Answer:
        try:
            if order is not None:
                self.pipe.send(order)
            if not self.pipe.poll(self.plan.limit_s):
                self.process.kill()
                self.problem = f"no sign of life for {self.plan.limit_s:g} s"
                raise ModelFailed(self.problem)
            answer = self.pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join(_END_TIMEOUT_S)
            self.problem = f"its process died with exit code {self.process.exitcode} (-9: out of memory, or killed)"
            raise ModelFailed(self.problem) from error
        if not isinstance(answer, kind):
            raise ModelFailed(str(answer))
        return answer
