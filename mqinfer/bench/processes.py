"""Processes of the benches: functions in a process of their own, and workers under a supervisor."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import Empty, SimpleQueue

from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.planning import plan_versions
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.supervisor import Event, Supervisor
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.errors import ModelNotLoadable

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
def worker_processes(
    specs: Sequence[ProcessSpec], on_ready: Callable[[Event], None] = lambda _: None
) -> Iterator[Supervisor]:
    """Run worker processes while the body runs, which starts once all of them serve.

    Args:
        specs: One for each process.
        on_ready: Called for each process that serves.

    Raises:
        ModelNotLoadable: A process does not start, or takes longer than 5 minutes.
    """
    events: SimpleQueue[Event] = SimpleQueue()
    supervisor = Supervisor(specs, events.put)
    thread = threading.Thread(target=supervisor.run, name="mqinfer-bench-supervisor")
    thread.start()
    try:
        for _ in specs:
            on_ready(_next_ready(events))
        yield supervisor
    finally:
        supervisor.stop()
        thread.join()


def _next_ready(events: SimpleQueue[Event]) -> Event:
    try:
        event = events.get(timeout=_START_TIMEOUT_S)
    except Empty as error:
        raise ModelNotLoadable(f"a worker of the bench was not ready within {_START_TIMEOUT_S:g} s") from error
    if event.kind != "ready":
        raise ModelNotLoadable(f"worker {event.worker} of the bench did not start: {event.kind}: {event.detail}")
    return event
