"""One worker process as its supervisor sees it: started, spoken to through its status pipe, drained, buried."""

from __future__ import annotations

import contextlib
import multiprocessing
from dataclasses import dataclass
from enum import StrEnum
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from mqinfer.cloud_worker.supervision.process import Order, ProcessSpec, Report, run_process
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import ModelStatistics

__all__ = ["Child", "Phase", "ProcessView"]

_FIRST_DELAY_S, _LAST_DELAY_S = 0.1, 30.0
_STEADY_S = 60.0
"""A process that served this long starts again with the first delay."""


class Phase(StrEnum):
    """Where a process is in its life."""

    WAITING = "waiting"
    """To be started at its `due`: at once, or after it died."""
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """Told to go; killed at its `due`."""
    FAILED = "failed"
    """Gone, and trying again won't help: it never served, or its name is another's."""
    GONE = "gone"


@dataclass(frozen=True, slots=True)
class ProcessView:
    """A process as others may see it.

    Attributes:
        spec: What it does.
        phase: Where it is.
        card: What it serves; None before it served for the first time.
        reason: Why it failed or died last.
        pid: Of the process, or None.
    """

    spec: ProcessSpec
    phase: Phase
    card: ModelCard | None = None
    reason: str = ""
    pid: int | None = None


@dataclass(slots=True, eq=False)
class Child:
    """A worker process; used by the supervisor's thread alone.

    Attributes:
        spec: What it does.
        phase: Where it is.
        due: When to start or to kill it, by the supervisor's clock; None for never.
        process: None where none runs.
        pipe: To it; None where it has closed its end.
        card: What it serves; None before it served for the first time.
        reason: Why it failed or died last.
        delay: Seconds before the next start, should it die.
        is_final: Whether it said that it is not to be started again.
        is_asked: Whether a question for its statistics is unanswered: a process that hangs must not fill its pipe.
    """

    spec: ProcessSpec
    phase: Phase = Phase.WAITING
    due: float | None = 0.0
    process: SpawnProcess | None = None
    pipe: Connection | None = None
    card: ModelCard | None = None
    reason: str = ""
    delay: float = _FIRST_DELAY_S
    started: float = 0.0
    is_asked: bool = False
    is_final: bool = False

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.spec.options.name

    @property
    def title(self) -> str:
        """Model and version, for people."""
        return f"{self.spec.model} version {self.spec.version}"

    @property
    def is_over(self) -> bool:
        """Whether nothing more will come of it."""
        return self.phase in {Phase.FAILED, Phase.GONE}

    def view(self) -> ProcessView:
        """Say how it is now."""
        return ProcessView(self.spec, self.phase, self.card, self.reason, self.process.pid if self.process else None)

    def watched(self) -> list[Connection | int]:
        """List what `multiprocessing.connection.wait` is to wait for."""
        ends: list[Connection | int] = [self.process.sentinel] if self.process else []
        return [*ends, self.pipe] if self.pipe else ends

    def start(self, now: float) -> None:
        """Start the process."""
        context = multiprocessing.get_context("spawn")  # a fork would share TensorFlow's threads and locks
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=run_process, args=(self.spec, theirs), name=f"mqinfer-{self.name}")
        self.process.start()
        theirs.close()
        self.phase, self.due, self.reason = Phase.STARTING, None, ""
        self.started, self.is_asked = now, False

    def read(self) -> Report | ModelStatistics | None:
        """Take what the process has said; None where it said nothing more."""
        try:
            said = self.pipe.recv() if self.pipe else None
        except (EOFError, OSError):
            self._close_pipe()
            return None
        if isinstance(said, ModelStatistics):
            self.is_asked = False
            return said
        if not isinstance(said, Report):
            return None
        self.reason, self.card, self.is_final = said.error, said.card or self.card, said.is_final
        if not said.error and self.phase is Phase.STARTING:
            self.phase = Phase.READY
        return said

    def order(self, order: Order) -> bool:
        """Ask something of the process; False where it can't be asked."""
        if self.pipe is None or (order is Order.STATISTICS and self.is_asked):
            return self.pipe is not None
        with contextlib.suppress(OSError):
            self.pipe.send(order)
            self.is_asked = self.is_asked or order is Order.STATISTICS
            return True
        return False

    def drain(self, kill_at: float) -> None:
        """Tell it to finish what it has in hand and to go; one that never served is ended at once."""
        serving = self.phase is Phase.READY
        self.phase, self.due = Phase.DRAINING, kill_at
        if self.process is None:
            self.phase, self.due = Phase.GONE, None
        elif serving:
            self.process.terminate()  # SIGTERM: the process drains
        else:
            self.process.kill()

    def give_up(self, kill_at: float) -> None:
        """Drain it, but keep the reason of one that crashed."""
        if self.phase is Phase.WAITING and self.reason:
            self.phase, self.due = Phase.FAILED, None
        elif not self.is_over:
            self.drain(kill_at)

    def kill(self) -> None:
        """End the process at once."""
        self.due = None
        if self.process:
            self.process.kill()

    def bury(self, now: float) -> None:
        """Take note of the process's end, and decide what becomes of the child."""
        if self.process is None:
            return
        self.process.join()
        while self.pipe and self.pipe.poll():  # what it said last
            self.read()
        code = self.process.exitcode
        self.process.close()
        self.process = None
        self._close_pipe()
        if self.phase is Phase.DRAINING:
            self.phase, self.due = Phase.GONE, None
        elif self.is_final or (self.reason and self.card is None):  # a model that can't be loaded, or no broker
            self.phase = Phase.FAILED
        else:
            self._wait_for_restart(now, self.reason or f"exit code {code}")

    def _wait_for_restart(self, now: float, why: str) -> None:
        if now - self.started > _STEADY_S:
            self.delay = _FIRST_DELAY_S
        self.phase, self.due = Phase.WAITING, now + self.delay
        self.reason = f"{why}; starting it again in {self.delay:g} s"
        self.delay = min(_LAST_DELAY_S, 2 * self.delay)

    def _close_pipe(self) -> None:
        if self.pipe:
            self.pipe.close()
        self.pipe = None
