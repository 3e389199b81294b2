"""One start of a worker process: the process, its status pipe, and what its supervisor reads of it without asking."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any

from mqinfer.broker.presence import new_incarnation
from mqinfer.cloud_worker.serving.pipeline import RunningRequests
from mqinfer.cloud_worker.supervision.process import Command, ProcessSpec, make_place, run_process
from mqinfer.cloud_worker.supervision.shared_process import SharedProcess
from mqinfer.interrupts import start_without_interrupts
from mqinfer.models.repository.traffic import Traffic
from mqinfer.protocol.control import ModelStatistics

NOBODY = ("nobody",)
"""What stands for the ids of running requests where none of them is to blame: a list that names none of them."""
_LOAD_TIMEOUT_S = 600.0
"""Time to load a model, or the stated run timeout if that is longer: an engine may read a damaged file without end."""


def load_timeout(run_timeout: float | None) -> float:
    """Return the seconds that loading a model may take, by the stated time for a request; 0 for any."""
    return 0.0 if run_timeout == 0 else max(_LOAD_TIMEOUT_S, run_timeout or 0.0)


class HangTimer:
    """Time for which a process has made no progress.

    Only the time between calls counts, and of each interval no more than the owner states: neither a supervisor nor a
    machine that was halted makes a process look stuck.
    """

    def __init__(self, progress: ctypes.c_double, timeout: float) -> None:
        """Begin.

        Args:
            progress: Shared with the process, which changes it every half second unless it hangs.
            timeout: Seconds that a task may take; 0 for any.
        """
        self._progress = progress
        self.restart(timeout)

    def restart(self, timeout: float) -> None:
        """Count anew, with another time for a task."""
        self.timeout = timeout
        self._seen = self._stuck_s = 0.0

    def is_over(self, seconds: float) -> bool:
        """Return whether the process has made no progress for the timeout.

        Args:
            seconds: Time that counts since the last call.
        """
        seen = self._progress.value
        self._stuck_s = self._stuck_s + seconds if seen == self._seen else 0.0
        self._seen = seen
        return 0 < self.timeout <= self._stuck_s


class StartedProcess:
    """A process from its start until it is joined. Only the supervisor's thread uses it.

    Of a process that several models share it is one model's part. Where that process crashes, those of them are suspect
    that loaded or worked on requests; where they are several, no request is to blame.

    Attributes:
        spec: What it was started with, its incarnation included.
        started: When it was started, on the supervisor's clock.
        pipe: Status pipe to it; None once it has closed its end.
        hang: When it is to be killed because a request, or loading the model, does not end.
        is_waiting: Whether its model is loaded and waits for the broker.
        killed: Why it was killed; empty where it was not, or was to end anyway.
        has_left: Whether, of several models of a process, it has left in order.
    """

    def __init__(self, spec: ProcessSpec, now: float, shared: SharedProcess | None = None) -> None:
        """Start the process.

        Args:
            spec: Model, version and options; it gets an incarnation of its own.
            now: On the supervisor's clock.
            shared: The process of several models that it is to be in; None for one of its own.
        """
        self.spec = replace(spec, incarnation=new_incarnation())
        self.started = now
        self.is_waiting = False
        self.killed = ""
        self.has_left = False
        self._is_queried = False
        self._shared = shared
        if shared:
            place, self._process = shared.take(self.spec), shared.process
        else:
            context = multiprocessing.get_context("spawn")  # a fork would share TensorFlow's threads and locks
            place, theirs = make_place(context)
            name = f"mqinfer-{spec.options.name}"
            self._process = context.Process(target=run_process, args=(self.spec, theirs), name=name)
            start_without_interrupts(self._process)
            theirs.pipe.close()
        self.pipe: Connection | None = place.pipe
        self.hang = HangTimer(place.progress, load_timeout(spec.run_timeout))
        self._running = RunningRequests(place.memory)

    @property
    def is_shared(self) -> bool:
        """Whether other models are in the process."""
        return self._shared is not None

    def is_suspect(self, *, has_served: bool) -> bool:
        """Return whether this model, of those in its process that has crashed, may have ended it.

        Args:
            has_served: Whether it ever served; where none was at work, one that has is not suspect.
        """
        return self._shared is None or self._running.is_busy or not (has_served or self._shared.at_work)

    @property
    def pid(self) -> int | None:
        """Process id."""
        return self._process.pid

    @property
    def sentinel(self) -> int:
        """Handle that `multiprocessing.connection.wait` reports once the process has exited."""
        return self._process.sentinel

    @property
    def has_sent(self) -> bool:
        """Whether a message of the process can be received at once."""
        return self.pipe is not None and self.pipe.poll()

    def receive(self) -> Any:
        """Receive one message of the process; None where it has closed its pipe."""
        try:
            received = self.pipe.recv() if self.pipe else None
        except (EOFError, OSError):
            self._close_pipe()
            return None
        if received is None:
            self.has_left = True
            self._close_pipe()
        if isinstance(received, ModelStatistics):
            self._is_queried = False
        return received

    def send(self, command: Command | Traffic) -> bool:
        """Send a command to the process; return False where its pipe is closed.

        A second query of statistics is not sent while one is open: a process that hangs must not fill its pipe.
        """
        is_query = command is Command.STATISTICS
        if self.pipe is None or (is_query and self._is_queried):
            return self.pipe is not None
        with contextlib.suppress(OSError):
            self.pipe.send(command)
            self._is_queried = self._is_queried or is_query
            return True
        return False

    def terminate(self) -> None:
        """Ask the process to finish the model's accepted requests and exit (SIGTERM), or one of several to leave it."""
        if self._shared:
            self.send(Command.STOP)
        else:
            self._process.terminate()

    def abandon(self) -> None:
        """End the process, which serves nobody yet; one of several leaves it when it has loaded."""
        if self._shared:
            self.terminate()
        else:
            self.kill()

    def kill(self, why: str = "") -> None:
        """Kill the process, and all models in it.

        Args:
            why: Kept as the reason of a crash; empty where it was to end anyway.
        """
        self.killed = why
        self._process.kill()

    def join(self) -> int | None:
        """Wait for the exited process and return its exit code; its last messages can still be received.

        A model that has left the process of several does not wait for it.
        """
        if self.has_left:
            return 0
        self._process.join()
        return self._process.exitcode

    def close(self) -> tuple[str, ...]:
        """Free what belongs to the joined process; return the ids of the requests it worked on, if it named them.

        Where another model of the process may have ended it, no request is to blame.
        """
        shared, is_known = self._shared, True
        if shared is None:
            self._process.close()
        else:
            is_known = self.has_left or shared.at_work == self._running.is_busy
            shared.leave()
        self._close_pipe()
        return self._running.read() if is_known else NOBODY

    def _close_pipe(self) -> None:
        if self.pipe:
            self.pipe.close()
        self.pipe = None
