"""`mqinfer worker`: starts a process for each model instance, starts it again when it dies, stops them all.

The broker is the only channel for requests; the supervisor only sees to processes, so a crash in one model touches no
other, and the end of a process gives all its memory back.
"""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess

from mqinfer.cloud_worker.process import ProcessSpec, Report, run_process

__all__ = ["Event", "Supervisor"]

log = logging.getLogger("mqinfer.cloud_worker")
_FIRST_DELAY_S, _LAST_DELAY_S = 0.5, 30.0
_STEADY_S = 60.0
"""A process that served this long starts again with the first delay."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a worker process.

    Attributes:
        kind: `ready`, `failed` (it never served and won't be tried again), `died` (it is started again), `stopped`.
        worker: Its name.
        model: What it serves.
        detail: More about it.
    """

    kind: str
    worker: str
    model: str
    detail: str = ""


def _ignore(event: Event) -> None:
    """Take no notice of an event."""


@dataclass(slots=True, eq=False)
class _Child:
    spec: ProcessSpec
    process: SpawnProcess | None = None
    pipe: Connection | None = None
    started: float = 0.0
    delay: float = _FIRST_DELAY_S
    restart_at: float | None = 0.0
    ready: bool = False
    failure: str = ""


@dataclass(slots=True)
class Supervisor:
    """Runs worker processes until `stop`.

    Attributes:
        specs: One process each.
        on_event: Told of everything that happens, on the supervisor's thread.
        stop_timeout: Seconds that a process may take to drain before it is killed.
    """

    specs: Sequence[ProcessSpec]
    on_event: Callable[[Event], None] = field(default=_ignore)
    stop_timeout: float = 35.0
    _children: list[_Child] = field(default_factory=list)
    _wake_in: Connection = field(init=False)
    _wake_out: Connection = field(init=False)
    _stopping: bool = False

    def __post_init__(self) -> None:
        self._wake_in, self._wake_out = multiprocessing.Pipe(duplex=False)
        self._children = [_Child(spec) for spec in self.specs]

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by worker name, of those that run."""
        return {
            child.spec.options.name: child.process.pid
            for child in self._children
            if child.process and child.process.pid and child.process.is_alive()
        }

    def run(self) -> bool:
        """Run until `stop` is called, or until no process is left that is worth starting.

        Returns:
            Whether any process ever served.
        """
        while not self._stopping and any(child.process or child.restart_at is not None for child in self._children):
            self._start_due(time.monotonic())
            self._wait()
        self._stop_children()
        return any(child.ready for child in self._children)

    def stop(self) -> None:
        """Ask `run` to drain every process and return; safe in a signal handler and from any thread."""
        self._stopping = True
        self._wake_out.send(None)

    def _start_due(self, now: float) -> None:
        for child in self._children:
            if child.process is None and child.restart_at is not None and child.restart_at <= now:
                self._start(child)

    def _start(self, child: _Child) -> None:
        context = multiprocessing.get_context("spawn")  # a fork would share TensorFlow's threads and locks
        child.pipe, theirs = context.Pipe()
        name = f"mqinfer-{child.spec.options.name}"
        child.process = context.Process(target=run_process, args=(child.spec, theirs), name=name)
        child.process.start()
        theirs.close()
        child.started, child.restart_at = time.monotonic(), None

    def _wait(self) -> None:
        watched: list[Connection | int] = [self._wake_in]
        for child in self._children:
            if child.process:
                watched.append(child.process.sentinel)
                if child.pipe:
                    watched.append(child.pipe)
        due = [child.restart_at for child in self._children if child.restart_at is not None]
        timeout = max(0.0, min(due) - time.monotonic()) if due else None
        happened = wait(watched, timeout)
        for child in self._children:
            if child.pipe in happened:
                self._read(child)
            if child.process and child.process.sentinel in happened:
                self._bury(child)

    def _read(self, child: _Child) -> None:
        if child.pipe is None:
            return
        try:
            report = child.pipe.recv()
        except (EOFError, OSError):
            child.pipe = None
            return
        if not isinstance(report, Report):
            return
        if report.error:
            child.failure = report.error
        else:
            child.ready = True
            self._tell(child, "ready", f"{report.engine} on {report.device}")

    def _bury(self, child: _Child) -> None:
        if child.process is None:
            return
        child.process.join()
        if child.pipe and child.pipe.poll():  # what it said last
            self._read(child)
        said, code = child.failure, child.process.exitcode
        child.process, child.pipe, child.failure = None, None, ""
        if said and not child.ready:  # a model that can't be loaded, or no broker: trying again won't help
            self._tell(child, "failed", said)
            return
        if time.monotonic() - child.started > _STEADY_S:
            child.delay = _FIRST_DELAY_S
        child.restart_at = time.monotonic() + child.delay
        detail = f"{said or f'exit code {code}'}; starting it again in {child.delay:g} s"
        child.delay = min(_LAST_DELAY_S, 2 * child.delay)
        self._tell(child, "died", detail)

    def _stop_children(self) -> None:
        running = [(child, child.process) for child in self._children if child.process]
        for _, process in running:
            process.terminate()  # SIGTERM: the process drains
        deadline = time.monotonic() + self.stop_timeout
        for child, process in running:
            process.join(max(0.0, deadline - time.monotonic()))
            if process.is_alive():
                log.error("%s did not stop within %g s and is killed", child.spec.options.name, self.stop_timeout)
                process.kill()
                process.join()
            self._tell(child, "stopped")

    def _tell(self, child: _Child, kind: str, detail: str = "") -> None:
        spec = child.spec
        self.on_event(Event(kind, spec.options.name, f"{spec.model} version {spec.version}", detail))
