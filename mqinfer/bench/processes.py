"""Processes of the benches: functions in their own, workers under a supervisor, and what they take (by Linux)."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.planning import plan_versions
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.supervisor import Event, Supervisor
from mqinfer.lab.profiling.memory import peak_bytes, reset_peak
from mqinfer.metrics.process_usage import read_usage
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable

_START_TIMEOUT_S = 300.0
_END_S = 5.0


class Program:
    """A function of a module, or a command, that runs in a process of its own until its standard input is closed.

    Args:
        main: The function, or the words of the command. Its first line on standard output means that it is ready.
        arguments: Passed to it, as text.

    Raises:
        ModelNotLoadable: It ended before it was ready.
    """

    def __init__(self, main: Callable[..., None] | Sequence[str], *arguments: object) -> None:
        if callable(main):
            self._name = f"{main.__module__}.{main.__name__}"
            code = f"import sys; from {main.__module__} import {main.__name__} as main; main(*sys.argv[1:])"
            main = [sys.executable, "-c", code]
        else:
            self._name = main[0]
        # In a group of its own: Ctrl-C is for whoever started it, who then closes its standard input.
        self._process = subprocess.Popen(  # noqa: S603 - our own function, or what a developer named
            [*main, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, process_group=0
        )
        self.pid = self._process.pid
        self.first_line = self._read_line()

    def ask(self, line: str) -> str:
        """Write a line to its standard input and return the line that it answers.

        Raises:
            ModelNotLoadable: It ended.
        """
        if self._process.stdin is not None:
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()
        return self._read_line()

    def close(self) -> None:
        """Close its standard input, and wait until it has ended; one that is still at work after 5 s is killed."""
        process = self._process
        if process.stdin is not None:
            with suppress(OSError):  # it has ended
                process.stdin.close()
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()  # behind a thread that still reads: it has come to the end

    def _read_line(self) -> str:
        line = self._process.stdout.readline().strip() if self._process.stdout else ""
        if not line:
            self.close()
            raise ModelNotLoadable(f"the bench's process {self._name} ended; its error is printed above")
        return line


def say(line: str) -> None:
    """Write a line to standard output, for whoever started this process as a `Program`."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def worker_specs(
    version: ModelVersion,
    broker: BrokerAddress,
    count: int = 1,
    options: WorkerOptions | None = None,
    device: str = "auto",
) -> list[ProcessSpec]:
    """Return what so many worker processes of a model's version do.

    Args:
        version: From its repository.
        broker: Its address.
        count: How many.
        options: Name and limits; by default a name that ends with the model's.
        device: As of `ProcessSpec`.
    """
    own = options or WorkerOptions(f"bench-{os.getpid()}-{version.name}")
    template = ProcessSpec(version.folder.parents[1], version.name, 0, broker, own, device=device)
    return plan_versions([version], template, count)


@contextmanager
def worker_processes(specs: Sequence[ProcessSpec]) -> Iterator[Supervisor]:
    """Run worker processes while the body runs, which starts once all of them serve.

    Raises:
        ModelNotLoadable: A process does not start, or takes longer than 5 minutes.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    supervisor = Supervisor(specs, events.put)
    thread = threading.Thread(target=supervisor.run, name="mqinfer-bench-supervisor")
    thread.start()
    try:
        for _ in specs:
            _await_ready(events)
        yield supervisor
    finally:
        supervisor.stop()
        thread.join()


def _await_ready(events: SimpleQueue[Event]) -> None:
    try:
        event = events.get(timeout=_START_TIMEOUT_S)
    except Empty as error:
        raise ModelNotLoadable(f"a worker of the bench was not ready within {_START_TIMEOUT_S:g} s") from error
    if event.kind != "ready":
        raise ModelNotLoadable(f"worker {event.worker} of the bench did not start: {event.kind}: {event.detail}")


def seconds_of(pid: int) -> float:
    """Return the user and system time of all threads of a process, in seconds, to a hundredth of a second.

    Raises:
        ConfigError: There is no such process, or this system has no /proc.
    """
    found = read_usage(pid)
    if found is None:
        raise ConfigError(
            f"the processor time of process {pid} can't be read; the bench needs Linux, and processes that outlive it"
        )
    return found.cpu_s


class CpuMeter:
    """Measures how much processor time a stretch of work took, and its peak memory, by role.

    Args:
        pids: The processes of each role.
    """

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._pids = pids
        for pid in (pid for found in pids.values() for pid in found):
            reset_peak(pid)
        self._before = self._read()

    def spent(self) -> dict[str, float]:
        """Return the seconds since the meter was made, by role."""
        return {role: seconds - self._before[role] for role, seconds in self._read().items()}

    def peaks(self) -> dict[str, int]:
        """Return the peak memory in bytes since then, by role."""
        return {role: sum(map(peak_bytes, pids)) for role, pids in self._pids.items()}

    def _read(self) -> dict[str, float]:
        return {role: sum(map(seconds_of, pids)) for role, pids in self._pids.items()}
