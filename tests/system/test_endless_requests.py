"""A request that never ends, and processes that hang: they are found from outside, and stopping is bounded."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, save

from mqinfer import Client
from mqinfer.client.options import ClientOptions
from mqinfer.client.result import InferResult
from mqinfer.protocol.errors import Poison
from mqinfer.protocol.types import Outcome
from tests.patience import PATIENT, wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]
ENDLESS = 2**62
HANG = """
import re, signal
signal.signal(signal.SIGUSR2, lambda *_: re.match(r"(a+)+$", "a" * 64 + "b"))
"""
"""Imported at the start of each process: from SIGUSR2 on its main thread matches for years, and holds Python's lock."""
SCRIPT = "from mqinfer.cli import main; main()"


@pytest.fixture
def loop_model(tmp_path: Path) -> Path:
    """Write an ONNX model that counts to its input, one by one."""
    scalar, one = helper.make_tensor_value_info, [1]
    body = helper.make_graph(
        [helper.make_node("Add", ["total", "one"], ["sum"]), helper.make_node("Identity", ["go"], ["on"])],
        "body",
        [
            scalar("i", TensorProto.INT64, []),
            scalar("go", TensorProto.BOOL, []),
            scalar("total", TensorProto.INT64, one),
        ],
        [scalar("on", TensorProto.BOOL, []), scalar("sum", TensorProto.INT64, one)],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Squeeze", ["x"], ["trips"]),
            helper.make_node("Loop", ["trips", "", "zero"], ["y"], body=body),
        ],
        "count",
        [scalar("x", TensorProto.INT64, one)],
        [scalar("y", TensorProto.INT64, one)],
        [
            helper.make_tensor("zero", TensorProto.INT64, one, [0]),
            helper.make_tensor("one", TensorProto.INT64, one, [1]),
        ],
    )
    path = tmp_path / "models" / "count" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=8), path)
    return tmp_path / "models"


@pytest.fixture
def may_hang(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have SIGUSR2 hang the main thread of every process that is started from now on."""
    (tmp_path / "sitecustomize.py").write_text(HANG, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]))


def number(value: int) -> dict[str, Any]:
    """Make the model's input."""
    return {"x": np.array([value], np.int64)}


def await_events(server: Any, **wanted: int) -> list[Any]:
    """Wait until so many events of each kind have come; return all events."""
    events, seen = [], Counter[str]()
    while any(seen[kind] < times for kind, times in wanted.items()):
        events.append(server.events.get(timeout=120))
        seen[events[-1].kind] += 1
    return events


def has_ended(pid: int) -> bool:
    """Whether a process is gone, or only waits to be reaped by a parent that is not ours."""
    with contextlib.suppress(OSError, AttributeError):
        state = re.search(r"^State:\s+(\w)", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
        return state is not None and state[1] == "Z"
    return True


def await_end(pids: list[int], seconds: float = 90.0) -> list[int]:
    """Wait until processes of another parent have ended; return those that live on."""
    tick = threading.Event()
    for _ in range(int(seconds * 10)):
        if all(map(has_ended, pids)):
            break
        tick.wait(0.1)
    return [pid for pid in pids if not has_ended(pid)]


@pytest.mark.full
@pytest.mark.parametrize("options", [PATIENT, None], ids=["patient", "default"])
def test_a_request_that_never_ends_ends_two_workers_and_is_poison(
    loop_model: Path, managed: Callable[..., Any], broker_url: str, options: ClientOptions | None
) -> None:
    """Of three workers two are killed by the watchdog; 200 other requests all succeed.

    A patient client sends it to the second one after the first has ended, one with default options after a second of
    silence, and to no third one either.
    """
    server = managed(loop_model, instances=3, run_timeout=4.0 if options else 5.0)
    await_events(server, ready=3)
    with Client(broker_url, root=server.topics.root, options=options) as client:
        assert client.infer("count", number(3)).outputs["y"] == [3]
        endless = client.submit("count", number(ENDLESS), timeout=120)
        others: list[Future[InferResult]] = []
        for value in range(200):
            others.append(client.submit("count", number(value), timeout=120))
            if value % 8 == 7:
                wait(others[-1:], timeout=0.2)
        error = endless.exception(120)
        outcomes = Counter(future.result(120).outcome for future in others)
        values = [int(future.result().outputs["y"][0]) for future in others]
    events = await_events(server, crashed=2, ready=2)
    assert isinstance(error, Poison)
    assert outcomes == {Outcome.OK: 200}
    assert values == list(range(200))
    crashed = [event for event in events if event.kind == "crashed"]
    assert len({event.worker for event in crashed}) == len(crashed) == 2
    assert all("killed: a request did not end" in event.detail for event in crashed)


def test_stopping_is_bounded_while_requests_never_end(
    loop_model: Path, managed: Callable[..., Any], broker_url: str
) -> None:
    """Two workers run endless requests without a watchdog; the supervisor stops, and none of its processes lives on."""
    server = managed(loop_model, instances=2, run_timeout=0.0)
    server.supervisor.stop_timeout = 3.0
    await_events(server, ready=2)
    pids = list(server.supervisor.pids.values())
    with Client(broker_url, root=server.topics.root, options=PATIENT) as client:
        futures = [client.submit("count", number(ENDLESS), timeout=60) for _ in range(2)]
        wait_until(lambda: client.counters().in_flight == 2)
        wait(futures, timeout=1.0)
        server.supervisor.stop()
        events = await_events(server, stopped=2)
    assert await_end(pids, 20.0) == []
    assert [event.kind for event in events] == ["stopped", "stopped"]


@pytest.mark.parametrize(
    "number_of",
    [
        pytest.param(signal.SIGSTOP, id="halted"),
        pytest.param(signal.SIGUSR2, id="holds-pythons-lock", marks=pytest.mark.full),
    ],
)
def test_a_process_that_hangs_is_replaced(
    loop_model: Path,
    may_hang: None,  # noqa: ARG001 - a fixture's effect
    managed: Callable[..., Any],
    broker_url: str,
    number_of: signal.Signals,
) -> None:
    """A process that can't run any Python code is killed from outside, and its successor serves."""
    server = managed(loop_model, run_timeout=12.0)  # a machine may stand still for seconds
    await_events(server, ready=1)
    ((worker, pid),) = server.supervisor.pids.items()
    os.kill(pid, number_of)
    crashed, _ = await_events(server, crashed=1, ready=1)
    assert crashed.worker == worker
    assert "the process hung" in crashed.detail
    with Client(broker_url, root=server.topics.root) as client:
        assert client.infer("count", number(7), timeout=60).outputs["y"] == [7]


def catches(pid: int, number_of: signal.Signals) -> bool:
    """Whether a process has a handler for a signal by now."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    caught = re.search(r"^SigCgt:\s+(\w+)", status, re.MULTILINE)
    return caught is not None and bool(int(caught[1], 16) >> number_of - 1 & 1)


def test_a_process_that_hangs_while_it_loads_does_not_delay_the_stop(
    write_echo: Callable[..., Path],
    may_hang: None,  # noqa: ARG001 - a fixture's effect
    managed: Callable[..., Any],
) -> None:
    """What does not serve yet has nothing to drain: it is killed at once."""
    server = managed(write_echo("echo", delay_ms=1000, config="model_warmup = { count = 1000 }\n"))
    server.supervisor.stop_timeout = 300.0
    tick = threading.Event()
    while not (pids := list(server.supervisor.pids.values())) or not catches(pids[0], signal.SIGUSR2):
        tick.wait(0.01)
    os.kill(pids[0], signal.SIGUSR2)
    server.supervisor.stop()
    assert server.events.get(timeout=60).kind == "stopped"
    assert await_end(pids, 20.0) == []


@pytest.fixture
def program(
    loop_model: Path, broker_url: str, unique: Callable[[str], str]
) -> Iterator[Callable[..., tuple[subprocess.Popen[str], str, list[int]]]]:
    """Start `mqinfer worker` with two processes; return it, its topic root, and the ids of the processes."""
    started: list[subprocess.Popen[str]] = []

    def start(*options: str) -> tuple[subprocess.Popen[str], str, list[int]]:
        root, name = unique("test"), unique("server")
        command = ["worker", "--repository", str(loop_model), "--broker", broker_url, "--root", root, "--name", name]
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, *command, "--instances", "2", *options], stderr=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stderr is not None
        ready = 0
        while ready < 2:
            line = process.stderr.readline()
            assert line, "it ended before it served"
            ready += " ready: " in line
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text(encoding="ascii").split()
        workers = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        assert len(workers) == 2
        return process, root, workers

    yield start
    for process in started:
        process.kill()
        process.communicate(timeout=30)


@pytest.mark.full
def test_no_orphan_lives_on(
    may_hang: None,  # noqa: ARG001 - a fixture's effect
    program: Callable[..., tuple[subprocess.Popen[str], str, list[int]]],
    broker_url: str,
) -> None:
    """The supervisor is killed while one of its processes runs an endless request, and the other one hangs."""
    process, root, pids = program()
    with Client(broker_url, root=root, options=PATIENT) as client:
        endless = client.submit("count", number(ENDLESS), timeout=5)
        wait([endless], timeout=1.0)
        os.kill(pids[0], signal.SIGUSR2)
        os.kill(pids[1], signal.SIGUSR2)
        process.kill()
        assert await_end(pids) == []


def test_ctrl_c_twice_ends_at_once(
    program: Callable[..., tuple[subprocess.Popen[str], str, list[int]]], broker_url: str
) -> None:
    """With endless requests the first Ctrl-C drains for half a minute; the second one kills."""
    process, root, pids = program("--run-timeout", "0")
    with Client(broker_url, root=root, options=PATIENT) as client:
        futures = [client.submit("count", number(ENDLESS), timeout=60) for _ in range(2)]
        wait_until(lambda: client.counters().in_flight == 2)
        wait(futures, timeout=1.0)
        process.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(3)
        process.send_signal(signal.SIGINT)
        assert process.wait(25) == 130
    assert await_end(pids, 20.0) == []
