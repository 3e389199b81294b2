"""Workers that operators drain, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.client.control import ControlClient
from mqinfer.client.result import Counters
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import NoWorker
from mqinfer.protocol.states import WorkerStatus
from mqinfer.protocol.types import Outcome
from tests.patience import PATIENT

pytestmark = [pytest.mark.broker, pytest.mark.slow]
X = np.zeros((1, 4), np.float32)


class Load:
    """Clients that each keep requests in flight until `finish`.

    Attributes:
        counters: Of each client, once it has finished.
        workers: How many replies came from each worker process so far.
    """

    def __init__(self, url: str, root: str, clients: int, window: int) -> None:
        self._url, self._root, self._window = url, root, window
        self.counters: list[Counters] = []
        self.workers: Counter[str] = Counter()
        self._enough, self._replied = threading.Event(), threading.Condition()
        self._threads = [threading.Thread(target=self._run, name=f"load-{number}") for number in range(clients)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        with Client(self._url, root=self._root, options=PATIENT) as client:
            callers = [threading.Thread(target=self._call, args=(client,)) for _ in range(self._window)]
            for caller in callers:
                caller.start()
            for caller in callers:
                caller.join()
            self.counters.append(client.counters())

    def _call(self, client: Client) -> None:
        while not self._enough.is_set():
            worker = client.infer("echo", {"x": X}, timeout=120).worker
            with self._replied:
                self.workers[worker] += 1
                self._replied.notify_all()

    def wait_for(self, worker: str, count: int = 20) -> None:
        """Wait until a process has sent so many replies more."""
        with self._replied:
            least = self.workers[worker] + count
            assert self._replied.wait_for(lambda: self.workers[worker] >= least, 60), f"nothing from {worker}"

    def finish(self) -> None:
        """Stop sending, and wait for what is in flight."""
        self._enough.set()
        for thread in self._threads:
            thread.join(120)


@pytest.fixture
def start(broker_url: str) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `mqinfer worker` under a name: `start(name, repository, root)`."""
    with ExitStack() as stack:

        def run(name: str, repository: Path, root: str) -> subprocess.Popen[bytes]:
            command = [sys.executable, "-m", "mqinfer", "worker", "--broker", broker_url, "--root", root]
            options = ["--name", name, "--repository", str(repository), "--device", "cpu"]
            process = subprocess.Popen([*command, *options], stderr=subprocess.DEVNULL)
            stack.callback(process.wait, 60)
            stack.callback(process.terminate)
            return process

        yield run


def until(is_so: Callable[[], bool]) -> None:
    """Wait for what other processes do."""
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end, "it did not come to pass"
        threading.Event().wait(0.05)


def test_a_rolling_upgrade_fails_and_repeats_nothing(
    write_echo: Callable[..., Path], start: Callable[..., Any], broker_url: str, unique: Callable[[str], str]
) -> None:
    """Three servers are drained, stopped and started again, one after the other, under the load of three clients."""
    repository, root = write_echo("echo", delay_ms=10), unique("test")
    names = [unique("server") for _ in range(3)]
    with ControlClient(broker_url, root=root) as control:
        running = {name: start(name, repository, root) for name in names}
        control.watch_workers()
        until(lambda: [state.status for state in control.workers.values()] == 3 * [WorkerStatus.READY])
        load = Load(broker_url, root, clients=3, window=2)
        try:
            for name in names:
                load.wait_for(f"{name}.0")
            for name in names:
                assert control.drain(name) == [f"{name}.0"]
                before = load.workers[f"{name}.0"]
                others = [f"{other}.0" for other in names if other != name]
                for other in others:
                    load.wait_for(other)
                assert load.workers[f"{name}.0"] == before
                running[name].terminate()
                assert running[name].wait(60) == 0
                running[name] = start(name, repository, root)
                load.wait_for(f"{name}.0")
        finally:
            load.finish()
    assert len(load.counters) == 3
    for counters in load.counters:
        assert counters.outcomes[Outcome.OK] == counters.submitted >= 60
        assert (counters.retries, counters.late, counters.pending) == (0, 0, 0)


def test_one_process_of_a_server(write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str) -> None:
    """It is named by its number; it stays connected and serves again; one that crashed comes back as ready."""
    server = managed(write_echo("echo"), instances=2)
    name, control = server.name, server.control
    assert {server.events.get(timeout=60).kind for _ in range(2)} == {"ready"}
    control.watch_workers()
    with Client(broker_url, root=server.topics.root, options=PATIENT) as client:

        def who(count: int = 12) -> set[str]:
            return {client.infer("echo", {"x": X}, timeout=60).worker for _ in range(count)}

        assert control.drain(f"{name}.1") == [f"{name}.1"]
        assert control.workers[f"{name}.1"].status is WorkerStatus.DRAINING
        assert who() == {f"{name}.0"}
        (healthy,) = control.ask(Call(Operation.READY))
        (ready,) = control.ask(Call(Operation.MODEL_READY, "echo"))
        assert (healthy.content["ready"], ready.content["ready"]) == (False, True)
        assert control.drain(name) == [f"{name}.0", f"{name}.1"]
        (index,) = control.ask(Call(Operation.INDEX))
        assert [entry["state"] for entry in index.content] == ["UNLOADING"]
        assert control.drain(name, on=False) == [f"{name}.0", f"{name}.1"]
        assert who(40) == {f"{name}.0", f"{name}.1"}
        control.drain(name)
        os.kill(server.supervisor.pids[f"{name}.1"], signal.SIGKILL)
        assert [server.events.get(timeout=60).kind for _ in range(2)] == ["crashed", "ready"]
        assert who() == {f"{name}.1"}
    for wrong in (f"{name}.7", "nobody", "nobody.0"):
        with pytest.raises(NoWorker):
            control.drain(wrong)
