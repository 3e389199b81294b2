"""Workers that operators drain, with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mqinfer import Client
from mqinfer.client.control import ControlClient
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import NoWorker
from mqinfer.protocol.types import Outcome
from tests.patience import PATIENT, wait_until
from tests.system.load import Load, X

pytestmark = [pytest.mark.broker, pytest.mark.slow]


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


@pytest.mark.full
def test_a_rolling_upgrade_fails_and_repeats_nothing(
    write_echo: Callable[..., Path], start: Callable[..., Any], broker_url: str, unique: Callable[[str], str]
) -> None:
    """Three servers are drained, stopped and started again, one after the other, under the load of three clients."""
    repository, root = write_echo("echo", delay_ms=10), unique("test")
    names = [unique("server") for _ in range(3)]
    with ControlClient(broker_url, root=root) as control, ExitStack() as stack:
        running = {name: start(name, repository, root) for name in names}
        for name in names:
            control.wait_for(name, 60)
        wait_until(lambda: all(reply.content["ready"] for reply in control.ask(Call(Operation.READY))))
        clients = [stack.enter_context(Client(broker_url, root=root, options=PATIENT)) for _ in range(3)]
        loads = [Load(client, window=2) for client in clients]

        def replies(server: str) -> int:
            return sum(load.workers[f"{server}.0"] for load in loads)

        def await_replies(server: str) -> None:
            least = replies(server) + 20
            wait_until(lambda: replies(server) >= least)

        try:
            for name in names:
                await_replies(name)
            for name in names:
                assert control.drain(name) == [f"{name}.0"]
                others = [other for other in names if other != name]
                for other in others:  # what was replied to before may come until then
                    await_replies(other)
                before = replies(name)
                for other in others:
                    await_replies(other)
                assert replies(name) == before
                running[name].terminate()
                assert running[name].wait(60) == 0
                running[name] = start(name, repository, root)
                await_replies(name)
        finally:
            for load in loads:
                load.finish()
        for client in clients:
            counters = client.counters()
            assert counters.outcomes[Outcome.OK] == counters.submitted >= 60
            assert (counters.retries, counters.late, counters.pending) == (0, 0, 0)


def test_one_process_of_a_server(write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str) -> None:
    """It is named by its number; it stays connected and serves again; one that crashed comes back as ready."""
    server = managed(write_echo("echo"), instances=2)
    name, control = server.name, server.control
    assert {server.events.get(timeout=60).kind for _ in range(2)} == {"ready"}
    with Client(broker_url, root=server.topics.root, options=PATIENT) as client:

        def who(count: int = 12) -> set[str]:
            return {client.infer("echo", {"x": X}, timeout=60).worker for _ in range(count)}

        assert control.drain(f"{name}.1") == [f"{name}.1"]
        wait_until(lambda: who() == {f"{name}.0"})
        (healthy,) = control.ask(Call(Operation.READY))
        (ready,) = control.ask(Call(Operation.MODEL_READY, "echo"))
        assert (healthy.content["ready"], ready.content["ready"]) == (False, True)
        assert control.drain(name) == [f"{name}.0", f"{name}.1"]
        (index,) = control.ask(Call(Operation.INDEX))
        assert [entry["state"] for entry in index.content] == ["UNLOADING"]
        assert control.drain(name, on=False) == [f"{name}.0", f"{name}.1"]
        wait_until(lambda: who(40) == {f"{name}.0", f"{name}.1"})
        control.drain(name)
        os.kill(server.supervisor.pids[f"{name}.1"], signal.SIGKILL)
        assert [server.events.get(timeout=60).kind for _ in range(2)] == ["crashed", "ready"]
        assert who() == {f"{name}.1"}
    for wrong in (f"{name}.7", "nobody", "nobody.0"):
        with pytest.raises(NoWorker):
            control.drain(wrong)
