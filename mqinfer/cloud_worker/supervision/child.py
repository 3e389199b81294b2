"""One worker process as its supervisor sees it: start, status pipe, drain, reap."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import multiprocessing
from dataclasses import dataclass, field, replace
from enum import StrEnum
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess

from mqinfer.broker.presence import new_incarnation
from mqinfer.cloud_worker.serving.running import RunningRequests
from mqinfer.cloud_worker.supervision.process import Command, DrainReport, ProcessReport, ProcessSpec, run_process
from mqinfer.logs import Notice, log_once
from mqinfer.models.repository.traffic import Traffic
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import ModelStatistics

__all__ = ["Child", "Phase", "ProcessView"]

_FIRST_DELAY_S, _LAST_DELAY_S = 0.1, 30.0
"""Delay before restart n of a process that keeps crashing: `min(_LAST_DELAY_S, 2**n * _FIRST_DELAY_S)`."""
_MOST_STARTS = 6
"""Starts in a row of a process that crashes while it loads its model; then it is given up. Their delays sum to 6 s."""
_STABLE_S = 60.0
"""A process that ran longer than this restarts with the first delay again."""
_LOAD_TIMEOUT_S = 600.0
"""Time to load a model, or the stated run timeout if that is longer: an engine may read a damaged file without end."""
_LEAST_TIMEOUT_S, _TIMEOUT_FACTOR = 60.0, 20.0
"""Time for a request by default: `max(_LEAST_TIMEOUT_S, _TIMEOUT_FACTOR * usual time of a run)`."""


class Phase(StrEnum):
    """Stage of a process's life."""

    WAITING = "waiting"
    """Starts at its `due` time: at once, or after the restart delay."""
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"
    """Finishes its accepted requests; killed at its `due` time."""
    FAILED = "failed"
    """Ended, and a restart would not help: it can't load its model, or another process has its name."""
    GONE = "gone"
    """Ended as requested."""


@dataclass(frozen=True, slots=True)
class ProcessView:
    """Snapshot of a process for other threads.

    Attributes:
        spec: Model, version and options of the process.
        phase: Stage of its life.
        card: Card of the model; None until the process has served.
        reason: Why it failed or crashed last; of one that serves, why its warm-up has proven nothing.
        pid: Process id; None while it does not run.
        draining: Whether an operator drains it or has drained it.
    """

    spec: ProcessSpec
    phase: Phase
    card: ModelCard | None = None
    reason: str = ""
    pid: int | None = None
    draining: bool = False

    @property
    def state(self) -> Phase:
        """The stage of its life; `DRAINING` also for one that an operator drains."""
        return Phase.DRAINING if self.draining else self.phase


@dataclass(slots=True, eq=False)
class Child:
    """A worker process. Only the supervisor's thread uses it.

    Attributes:
        spec: Model, version and options of the process.
        phase: Stage of its life.
        due: When to start or to kill it, on the supervisor's clock; None for never.
        process: The process; None while it does not run.
        pipe: Status pipe to it; None once it has closed its end.
        card: Card of the model; None until the process has served.
        reason: Why it failed or crashed last.
        untried: Why its warm-up has proven nothing; empty if a run succeeded.
        delay: Seconds until the next start if it crashes.
        started: When it was started last, on the supervisor's clock.
        is_final: Whether it reported that a restart would not help.
        is_waiting: Whether its model is loaded and waits for the broker.
        incarnation: Number of its last start.
        progress: Shared with the process, which changes it every half second unless it hangs; None while there is none.
        run_timeout: Seconds that a request, or loading the model, may take before the process is killed; 0 for any.
        crashed: Incarnation of the process that ended last, if it ended by itself and without a last report, else 0.
        running: Ids of the requests that this process worked on when it ended, as far as it named them all.
        is_queried: Whether a statistics query is open. A second one is not sent: a process that hangs must not fill
            its pipe.
        draining: Whether an operator drains it or has drained it; a new process of it serves.
        drain_report: The last reply to that; None until it comes.
        is_assigning: Whether it has labels to publish and has not reported that it has.
        statistics: The latest of the running process, or of the one that ended last, until `Totals` has them.
    """

    spec: ProcessSpec
    phase: Phase = Phase.WAITING
    due: float | None = 0.0
    process: SpawnProcess | None = None
    pipe: Connection | None = None
    card: ModelCard | None = None
    reason: str = ""
    untried: str = ""
    delay: float = _FIRST_DELAY_S
    started: float = 0.0
    is_final: bool = False
    is_waiting: bool = False
    is_queried: bool = False
    incarnation: int = 0
    run_timeout: float = 0.0
    crashed: int = 0
    running: tuple[str, ...] = ()
    draining: bool = False
    drain_report: DrainReport | None = None
    is_assigning: bool = False
    progress: ctypes.c_double | None = None
    _memory: ctypes.Array[ctypes.c_ubyte] | None = None
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    _seen: float = 0.0
    _stuck_s: float = 0.0
    _killed: str = ""
    _reassigned: Traffic | None = None
    _lost_starts: int = 0

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.spec.options.name

    @property
    def title(self) -> str:
        """Model and version, for messages."""
        return f"{self.spec.model} version {self.spec.version}"

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.phase in {Phase.FAILED, Phase.GONE}

    def view(self) -> ProcessView:
        """Return a snapshot for other threads."""
        reason = self.reason or (self.untried if self.phase is Phase.READY else "")
        pid = self.process.pid if self.process else None
        return ProcessView(self.spec, self.phase, self.card, reason, pid, self.draining)

    def watched(self) -> list[Connection | int]:
        """Return the ends for `multiprocessing.connection.wait`: the process's sentinel and its status pipe."""
        ends: list[Connection | int] = [self.process.sentinel] if self.process else []
        return [*ends, self.pipe] if self.pipe else ends

    def start(self, now: float) -> None:
        """Start the process."""
        context = multiprocessing.get_context("spawn")  # a fork would share TensorFlow's threads and locks
        self.pipe, theirs = context.Pipe()
        self.progress = context.RawValue(ctypes.c_double)
        self._memory = context.RawArray(ctypes.c_ubyte, RunningRequests.SIZE)
        self.incarnation = new_incarnation()
        spec = replace(self.spec, incarnation=self.incarnation)
        self.process = context.Process(
            target=run_process, args=(spec, theirs, self.progress, self._memory), name=f"mqinfer-{self.name}"
        )
        self.process.start()
        theirs.close()
        self.phase, self.due, self.reason, self._killed = Phase.STARTING, None, "", ""
        self.started, self._stuck_s = now, 0.0
        stated = self.spec.run_timeout
        self.run_timeout = 0.0 if stated == 0 else max(_LOAD_TIMEOUT_S, stated or 0.0)
        self.is_final = self.is_waiting = self.is_queried = False
        self.drain_report = self._reassigned = None

    def read(self) -> ProcessReport | ModelStatistics | None:
        """Receive one message from the process; None where it has closed its pipe."""
        try:
            received = self.pipe.recv() if self.pipe else None
        except (EOFError, OSError):
            self._close_pipe()
            return None
        if isinstance(received, ModelStatistics):
            self.is_queried, self.statistics = False, received
            return received
        if isinstance(received, Notice):
            log_once(logging.getLogger(received.logger), received.level, "%s: %s", self.title, received.text)
            return None
        if isinstance(received, DrainReport):
            self.drain_report = received
        elif isinstance(received, Traffic) and self.spec.found:
            self.is_assigning = received != self.spec.found.traffic
        if not isinstance(received, ProcessReport):
            return None
        # A model that can't be loaded for now, with its repository away, say, is tried again if it has served before.
        self.is_final |= received.is_final and not (self.card and self.phase is Phase.STARTING)
        self.reason, self.is_waiting = received.error, received.is_waiting
        if received.card and self.phase is Phase.STARTING:
            self.phase, self.card, self.untried = Phase.READY, received.card, received.untried
            self._stuck_s = 0.0
            if self._reassigned is not None:
                self.is_assigning = self.send(self._reassigned)
            default = max(_LEAST_TIMEOUT_S, _TIMEOUT_FACTOR * received.service_s)
            self.run_timeout = default if self.spec.run_timeout is None else self.spec.run_timeout
        return received

    def send(self, command: Command | Traffic) -> bool:
        """Send a command to the process; return False where its pipe is closed."""
        if self.pipe is None or (command is Command.STATISTICS and self.is_queried):
            return self.pipe is not None
        with contextlib.suppress(OSError):
            self.pipe.send(command)
            self.is_queried = self.is_queried or command is Command.STATISTICS
            return True
        return False

    def assign(self, traffic: Traffic) -> None:
        """Have the process publish other labels of the model's versions, now and after each restart."""
        found = self.spec.found
        if found is None or found.traffic == traffic:
            return
        self.spec = replace(self.spec, found=replace(found, traffic=traffic))
        if self.card:
            self.card = replace(self.card, labels=traffic.labels, traffic=traffic.shares)
        if self.phase is Phase.READY:
            self.is_assigning = self.send(traffic)
        elif self.phase is Phase.STARTING:
            self._reassigned = traffic  # sent once it serves

    def drain(self, kill_at: float) -> None:
        """Ask the process to finish its accepted requests and exit; kill one that has not served yet."""
        serving = self.phase is Phase.READY
        self.phase, self.due = Phase.DRAINING, kill_at
        if self.process is None:
            self.phase, self.due = Phase.GONE, None
        elif serving:
            self.process.terminate()  # SIGTERM: the process drains
        else:
            self.process.kill()

    def abandon(self, kill_at: float) -> None:
        """Drain the process, or mark it as failed if it crashed and waits for a restart: its reason stays visible."""
        if self.phase is Phase.WAITING and self.reason:
            self.phase, self.due = Phase.FAILED, None
        elif not self.is_over:
            self.drain(kill_at)

    def is_stuck(self, seconds: float) -> bool:
        """Return whether a request, or loading, has not ended for the `run_timeout`, or the process makes no progress.

        Only the time between calls counts, and of each interval no more than the owner states: neither a supervisor
        nor a machine that was halted makes a process look stuck.

        Args:
            seconds: Time that counts since the last call.
        """
        is_busy = self.phase in {Phase.STARTING, Phase.READY} and not self.reason  # a reason: it waits, or ends
        if self.progress is None or not is_busy or not self.run_timeout:
            return False
        seen = self.progress.value
        self._stuck_s = self._stuck_s + seconds if seen == self._seen else 0.0
        self._seen = seen
        return self._stuck_s >= self.run_timeout

    def kill(self, why: str = "") -> None:
        """Kill the process.

        Args:
            why: Kept as the reason of a crash; empty where it was to end anyway.
        """
        self.due, self._killed = None, why
        if self.process:
            self.process.kill()

    def reap(self, now: float) -> None:
        """Wait for the exited process, read its last messages and choose the next phase."""
        self.crashed = 0
        if self.process is None:
            return
        self.draining = self.is_assigning = False
        self.process.join()
        while self.pipe and self.pipe.poll():  # its last report may explain the exit
            self.read()
        code = self.process.exitcode
        self.process.close()
        self.running = RunningRequests(self._memory).read()
        self.process = self.progress = self._memory = None
        self._close_pipe()
        if self.phase is Phase.DRAINING:
            self.phase, self.due = Phase.GONE, None
        elif self.is_final:  # a model that can't be loaded, a refused login, or a second process of the name
            self.phase, self.due, self.reason = Phase.FAILED, None, self._killed or self.reason
        else:
            self.crashed = 0 if self.reason and not self._killed else self.incarnation
            self._lost_starts = 0 if self.card else self._lost_starts + bool(self.crashed)
            self._wait_for_restart(now, self._killed or self.reason or f"exit code {code}")

    def _wait_for_restart(self, now: float, why: str) -> None:
        if self._lost_starts == _MOST_STARTS:
            self.phase, self.due = Phase.FAILED, None
            self.reason = f"{why}; given up after {_MOST_STARTS} starts, of which none has served"
            return
        if now - self.started > _STABLE_S:
            self.delay = _FIRST_DELAY_S
        self.phase, self.due = Phase.WAITING, now + self.delay
        self.reason = f"{why}; restart in {self.delay:g} s"
        self.delay = min(_LAST_DELAY_S, 2 * self.delay)

    def _close_pipe(self) -> None:
        if self.pipe:
            self.pipe.close()
        self.pipe = None
