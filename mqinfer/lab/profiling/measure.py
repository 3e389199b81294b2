"""Measures models side by side: each in a separate process with its own memory, one running at a time.

Each batch size has several rounds. In each round every subject runs for one turn, in alternating order. Other load on
the machine then affects all subjects alike, so ratios within a round are reliable where absolute times are not.
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

from mqinfer.interrupts import start_without_interrupts
from mqinfer.lab.profiling.child import Plan, Subject, run_child
from mqinfer.lab.profiling.results import BatchPoint, Loaded, Profile, Turn
from mqinfer.protocol.errors import ModelFailed

_Received = TypeVar("_Received", Loaded, Turn)
_END_TIMEOUT_S = 5.0
_MAX_REASON = 80
"""Characters of a reason in a progress line; the profile has all of it."""


def measure(
    subjects: Sequence[Subject], plan: Plan, progress: Callable[[str], None] = lambda _: None
) -> tuple[Profile, ...]:
    """Measure all subjects; one that fails yields a profile with a problem and does not affect the others.

    Args:
        subjects: Subjects with unique names.
        plan: Settings of the measurement.
        progress: Called with a line at each step.
    """
    with ExitStack() as stack:
        running = [stack.enter_context(_Running(subject, plan)) for subject in subjects]
        for each in running:
            each.load()
            progress(each.describe())
        for batch in plan.batches:
            progress(f"batch {batch}: {plan.rounds} rounds")
            for number in range(plan.rounds):
                for each in running if number % 2 == 0 else reversed(running):
                    each.take_turn(batch)
        return tuple(each.profile() for each in running)


@dataclass(slots=True)
class _Running:
    """A subject, its process, and its results so far."""

    subject: Subject
    plan: Plan
    loaded: Loaded | None = None
    problem: str = ""
    turns: dict[int, list[Turn]] = field(default_factory=dict)
    refusals: dict[int, str] = field(default_factory=dict)
    pipe: Connection = field(init=False)
    process: SpawnProcess = field(init=False)

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")  # a fork would share the parent's memory and TensorFlow's locks
        self.pipe, theirs = context.Pipe()
        name = f"mqinfer-profile-{self.subject.name}"
        self.process = context.Process(target=run_child, args=(self.subject, self.plan, theirs), name=name, daemon=True)
        start_without_interrupts(self.process)
        theirs.close()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.pipe.close()  # the process ends with it
        self.process.join(0 if kind else _END_TIMEOUT_S)
        if self.process.is_alive():
            self.process.kill()
            self.process.join()
        self.process.close()

    def load(self) -> None:
        """Wait until the model is loaded or has failed to load."""
        try:
            self.loaded = self._receive(Loaded)
        except ModelFailed as failure:
            self.problem = str(failure)

    def describe(self) -> str:
        """Return the outcome of loading in one line."""
        if self.loaded is None:
            return f"{self.subject.name}: can't run it: {self.problem[:_MAX_REASON]}"
        return f"{self.subject.name}: {self.loaded.engine} on {self.loaded.device}, {self.loaded.precision}"

    def take_turn(self, batch: int) -> None:
        """Run one turn, unless the subject or this batch size has failed."""
        if self.problem or batch in self.refusals:
            return
        try:
            self.turns.setdefault(batch, []).append(self._receive(Turn, batch))
        except ModelFailed as failure:
            self.refusals[batch] = str(failure)

    def profile(self) -> Profile:
        """Return the results."""
        points = () if self.loaded is None else tuple(map(self._point, self.plan.batches))
        return Profile(self.subject.name, self.loaded, points, self.problem)

    def _point(self, batch: int) -> BatchPoint:
        return BatchPoint(batch, tuple(self.turns.get(batch, ())), self.refusals.get(batch, self.problem))

    def _receive(self, kind: type[_Received], batch: int | None = None) -> _Received:
        try:
            if batch is not None:
                self.pipe.send(batch)
            if not self.pipe.poll(self.plan.limit_s):
                self.process.kill()
                self.problem = f"no response for {self.plan.limit_s:g} s"
                raise ModelFailed(self.problem)
            received = self.pipe.recv()
        except (EOFError, OSError) as error:
            self.process.join(_END_TIMEOUT_S)
            self.problem = f"the process crashed with exit code {self.process.exitcode} (-9: out of memory, or killed)"
            raise ModelFailed(self.problem) from error
        if not isinstance(received, kind):
            raise ModelFailed(str(received))
        return received
