"""Worker processes with an echo model, under a supervisor in this process, and faults of them: kill, halt, drain."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Self

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.presence import make_client_id
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.control_server import crash_message
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.supervisor import Event, Supervisor
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import LinkError
from mqinfer.protocol.topics import Topics

MODEL = "echo"
_READY_S = 60.0


def write_echo(repository: Path, delay_ms: float, width: int = 2, die_on: int = 0) -> Path:
    """Write the echo model into a new repository: one row of 64-bit integers, so that nothing is batched.

    Args:
        repository: Its folder.
        delay_ms: Time of one run.
        width: Integers a row.
        die_on: A run with this value in its first place ends the process; 0 for never.
    """
    folder = repository / MODEL / "1"
    folder.mkdir(parents=True)
    text = (
        f'delay_ms = {delay_ms}\ndie_on = {die_on}\n[[input]]\nname = "x"\ndatatype = "INT64"\nshape = [1, {width}]\n'
    )
    (folder / "model.echo").write_text(text, encoding="utf-8")
    return repository


class Workers:
    """One process for each delay, each with the whole path of `mqinfer worker`; a context manager.

    Args:
        folder: For the repositories; empty.
        url: Of the broker.
        delays_ms: Time of one run, one a worker.
        topics: The topic root.
        name: Prefix of the workers' names.
        width: Integers a row.
        die_on: A value that ends the process that runs it; 0 for none.
        capacity: Greatest depth of a worker.
        urls: Of the broker, one a worker, where they differ.
        repository: What they serve; None for the echo model.
    """

    def __init__(  # noqa: PLR0913 - each is one knob of a scenario
        self,
        folder: Path,
        url: str,
        delays_ms: Sequence[float],
        topics: Topics,
        *,
        name: str = "worker",
        width: int = 2,
        die_on: int = 0,
        capacity: int = 64,
        urls: Sequence[str] = (),
        repository: Path | None = None,
    ) -> None:
        self.names = [f"{name}-{number}" for number in range(len(delays_ms))]
        specs = []
        for number, delay in enumerate(delays_ms):
            options = WorkerOptions(self.names[number], topics, capacity=capacity)
            own = repository or write_echo(folder / self.names[number], delay, width, die_on)
            address = BrokerAddress.parse(urls[number] if urls else url)
            specs += plan(Repository(own), ProcessSpec(own, "", 0, address, options, device="cpu"))
        self.names = [spec.options.name for spec in specs]
        self.events: SimpleQueue[Event] = SimpleQueue()
        self._topics = topics
        self._link = make_link(url, client_id=make_client_id(f"{name}-server"))
        self._supervisor = Supervisor(specs, self._count)
        self._thread = threading.Thread(target=self._supervisor.run, name="mqinfer-fault-workers", daemon=True)
        self._changed = threading.Condition()
        self.ready = 0
        """How often a process became ready."""
        self.crashes = 0
        """How often a process crashed."""
        self.failed = 0
        """How many of those were not started again."""

    def _count(self, event: Event) -> None:
        if message := crash_message(self._topics, event):
            with suppress(LinkError):  # as a server that is not connected: the clients are not, either
                self._link.publish(message)
        with self._changed:
            self.ready += event.kind == "ready"
            self.crashes += event.kind in {"crashed", "failed"}
            self.failed += event.kind == "failed"
            self._changed.notify_all()

    def __enter__(self) -> Self:
        self._link.open()
        self._thread.start()
        try:
            self.wait_until_ready(len(self.names))
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in self.names:
            self._send(name, signal.SIGCONT)
        self._supervisor.stop()
        self._thread.join()
        self._link.close()

    def wait_until_ready(self, times: int) -> None:
        """Wait until processes became ready so many times in total.

        Raises:
            TimeoutError: They did not within a minute.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: self.ready >= times, _READY_S):
                raise TimeoutError(f"{self.ready} of {times} starts of workers within {_READY_S:g} s")

    def pid(self, number: int) -> int | None:
        """Return the process id of a worker; None while it is down."""
        return self._supervisor.pids.get(self.names[number])

    def kill(self, number: int) -> bool:
        """Send SIGKILL; return False where the worker is down already."""
        return self._send(self.names[number], signal.SIGKILL)

    def halt(self, number: int) -> bool:
        """Send SIGSTOP: the worker is silent, and its connection stays open."""
        return self._send(self.names[number], signal.SIGSTOP)

    def resume(self, number: int) -> bool:
        """Send SIGCONT."""
        return self._send(self.names[number], signal.SIGCONT)

    def drain(self, number: int) -> bool:
        """Send SIGTERM: the worker finishes its requests and exits, and its supervisor starts it again."""
        return self._send(self.names[number], signal.SIGTERM)

    def _send(self, name: str, number: signal.Signals) -> bool:
        pid = self._supervisor.pids.get(name)
        if pid is None:
            return False
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            return False
        return True
