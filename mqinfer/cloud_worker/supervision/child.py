"""One worker process as its supervisor sees it: start, status pipe, drain, reap."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from mqinfer.cloud_worker.supervision.process import Command, DrainReport, ProcessReport, ProcessSpec
from mqinfer.cloud_worker.supervision.shared_process import SharedProcess
from mqinfer.cloud_worker.supervision.started_process import StartedProcess
from mqinfer.logs import Notice, log_once
from mqinfer.models.repository.traffic import Traffic
from mqinfer.protocol.card import ModelCard, with_parameters
from mqinfer.protocol.control import ModelStatistics

_FIRST_DELAY_S, _LAST_DELAY_S = 0.1, 30.0
"""Delay before restart n of a process that keeps crashing: `min(_LAST_DELAY_S, 2**n * _FIRST_DELAY_S)`."""
_MOST_STARTS = 6
"""Starts in a row of a process that crashes while it loads its model; then it is given up. Their delays sum to 6 s."""
_STABLE_S = 60.0
"""A process that ran longer than this restarts with the first delay again."""
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


@dataclass(slots=True)
class Restarts:
    """When a process that crashes starts again, and when it is given up."""

    _delay: float = _FIRST_DELAY_S
    _lost: int = 0

    def next_delay(self, ran_s: float, *, is_lost: bool) -> float | None:
        """Return the seconds until the next start; None where no further one would help.

        Args:
            ran_s: Seconds that the process ran.
            is_lost: Whether it crashed while it loaded its model, which it has never served.
        """
        self._lost = self._lost + 1 if is_lost else 0
        if self._lost == _MOST_STARTS:
            return None
        delay = _FIRST_DELAY_S if ran_s > _STABLE_S else self._delay
        self._delay = min(_LAST_DELAY_S, 2 * delay)
        return delay


@dataclass(slots=True, eq=False)
class Child:
    """A worker process through all its starts. Only the supervisor's thread uses it.

    Attributes:
        spec: Model, version and options of the process.
        phase: Stage of its life.
        due: When to start or to kill it, on the supervisor's clock; None for never.
        run: The process as it was started last; None while none runs.
        card: Card of the model; None until the process has served.
        reason: Why it failed or crashed last.
        untried: Why its warm-up has proven nothing; empty if a run succeeded.
        is_final: Whether it reported that a restart would not help.
        crashed: Incarnation of the process that ended last, if it ended by itself and without a last report, else 0.
        running: Ids of the requests that this process worked on when it ended, as far as it named them all.
        draining: Whether an operator drains it or has drained it; a new process of it serves.
        drain_report: The last reply to that; None until it comes.
        is_assigning: Whether it has labels to publish and has not reported that it has.
        statistics: The latest of the running process, or of the one that ended last, until `Totals` has them.
    """

    spec: ProcessSpec
    phase: Phase = Phase.WAITING
    due: float | None = 0.0
    run: StartedProcess | None = None
    card: ModelCard | None = None
    reason: str = ""
    untried: str = ""
    is_final: bool = False
    crashed: int = 0
    running: tuple[str, ...] = ()
    draining: bool = False
    drain_report: DrainReport | None = None
    is_assigning: bool = False
    statistics: ModelStatistics = field(default_factory=ModelStatistics)
    _restarts: Restarts = field(default_factory=Restarts)

    @property
    def name(self) -> str:
        """The worker's name."""
        return self.spec.options.name

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.phase in {Phase.FAILED, Phase.GONE}

    @property
    def is_busy(self) -> bool:
        """Whether it has to make progress: it loads or serves, and neither waits for the broker nor ends."""
        return self.phase in {Phase.STARTING, Phase.READY} and not self.reason

    def view(self) -> ProcessView:
        """Return a snapshot for other threads."""
        reason = self.reason or (self.untried if self.phase is Phase.READY else "")
        pid = self.run.pid if self.run else None
        return ProcessView(self.spec, self.phase, self.card, reason, pid, self.draining)

    def start(self, now: float, choose: Callable[[ProcessSpec], SharedProcess | None] = lambda _: None) -> None:
        """Start the process, or the model in one that others share; again later, where nothing is left for it now."""
        try:
            self.run = StartedProcess(self.spec, now, choose(self.spec))
        except (OSError, MemoryError) as error:
            self._wait_for_restart(now, 0.0, f"can't be started now: {error}", is_suspect=False)
            logging.getLogger("mqinfer.cloud_worker").warning("%s %s", self.spec.title, self.reason)
            return
        self.phase, self.due, self.reason = Phase.STARTING, None, ""
        self.is_final, self.drain_report = False, None

    def read(self) -> Any:
        """Receive one message of the process and return it; None where it has closed its pipe."""
        received = self.run.receive() if self.run else None
        match received:
            case ModelStatistics():
                self.statistics = received
            case Notice():
                log_once(logging.getLogger(received.logger), received.level, "%s: %s", self.spec.title, received.text)
            case DrainReport():
                self.drain_report = received
            case Traffic():
                self.is_assigning = received != self.spec.traffic
            case ProcessReport():
                self._take_report(received)
        return received

    def _take_report(self, report: ProcessReport) -> None:
        # A model that can't be loaded for now, with its repository away, say, is tried again if it has served before.
        self.is_final |= report.is_final and not (self.card and self.phase is Phase.STARTING)
        self.reason = report.error
        if self.run:
            self.run.is_waiting = report.is_waiting
        if report.card and self.run and self.phase is Phase.STARTING:
            self.phase, self.card, self.untried = Phase.READY, report.card, report.untried
            if self.spec.traffic != self.run.spec.traffic:
                self._send_traffic()  # it was assigned while the model was loaded
            default = max(_LEAST_TIMEOUT_S, _TIMEOUT_FACTOR * report.service_s)
            self.run.hang.restart(default if self.spec.run_timeout is None else self.spec.run_timeout)

    def send(self, command: Command | Traffic) -> bool:
        """Send a command to the process; return False where none runs or its pipe is closed."""
        return self.run is not None and self.run.send(command)

    def assign(self, traffic: Traffic) -> None:
        """Have the process publish other labels of the model's versions, now and after each restart."""
        found = self.spec.found
        if found is None or found.traffic == traffic:
            return
        self.spec = replace(self.spec, found=replace(found, traffic=traffic))
        if self.card:
            self.card = with_parameters(self.card, labels=traffic.labels, traffic=traffic.shares)
        if self.phase is Phase.READY:  # one that starts receives them once it serves
            self._send_traffic()

    def drain(self, kill_at: float) -> None:
        """Ask the process to finish its accepted requests and exit; kill one that has not served yet."""
        serving = self.phase is Phase.READY
        self.phase, self.due = Phase.DRAINING, kill_at
        if self.run is None:
            self.phase, self.due = Phase.GONE, None
        elif serving:
            self.run.terminate()
        else:
            self.run.abandon()

    def abandon(self, kill_at: float) -> None:
        """Drain the process, or mark it as failed if it crashed and waits for a restart: its reason stays visible."""
        if self.phase is Phase.WAITING and self.reason:
            self.phase, self.due = Phase.FAILED, None
        elif not self.is_over:
            self.drain(kill_at)

    def kill(self, why: str = "") -> None:
        """Kill the process, if it runs; `why` as for `StartedProcess.kill`."""
        self.due = None
        if self.run:
            self.run.kill(why)

    def reap(self, now: float) -> None:
        """Wait for the exited process, read its last messages and choose the next phase."""
        ended, self.crashed = self.run, 0
        if ended is None:
            return
        self.draining = self.is_assigning = False
        code = ended.join()
        while ended.has_sent:  # its last report may explain the exit
            self.read()
        is_suspect = ended.is_suspect(has_served=self.card is not None)
        self.run, self.running = None, ended.close()
        reason = ended.killed or self.reason
        if self.phase is Phase.DRAINING:
            self.phase, self.due = Phase.GONE, None
        elif self.is_final:  # a model that can't be loaded, a refused login, or a second process of the name
            self.phase, self.due, self.reason = Phase.FAILED, None, reason
        else:
            is_crash = bool(ended.killed) or not self.reason
            self.crashed = (ended.spec.incarnation or 0) if is_crash else 0
            self._wait_for_restart(now, now - ended.started, reason or f"exit code {code}", is_suspect=is_suspect)

    def _wait_for_restart(self, now: float, ran_s: float, why: str, *, is_suspect: bool) -> None:
        is_own_crash = self.crashed != 0 and is_suspect
        if is_own_crash:
            self.spec = replace(self.spec, share_with=1)  # so that its next one ends no other model
        delay = self._restarts.next_delay(ran_s, is_lost=self.card is None and is_own_crash)
        if delay is None:
            self.phase, self.due = Phase.FAILED, None
            self.reason = f"{why}; given up after {_MOST_STARTS} starts, of which none has served"
        else:
            self.phase, self.due = Phase.WAITING, now + delay
            self.reason = f"{why}; restart in {delay:g} s"

    def _send_traffic(self) -> None:
        traffic = self.spec.traffic
        self.is_assigning = traffic is not None and self.send(traffic)
