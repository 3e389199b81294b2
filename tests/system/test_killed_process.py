from __future__ import annotations

import os
import queue
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import wait
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.protocol.errors import Poison
from mqinfer.protocol.states import WorkerState, WorkerStatus
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.patience import PATIENT
from tests.system.load import Load, X

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_a_killed_process_restarts_and_affects_no_other_model(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str
) -> None:
    """A process killed under load is restarted; all requests to another model succeed at the first attempt."""
    write_echo("killed", delay_ms=1)
    server = managed(write_echo("other", delay_ms=1))
    server.control.load("killed")
    server.control.load("other")
    (pid,) = (view.pid for view in server.supervisor.processes if view.spec.model == "killed")
    names = ("killed", "other")
    with ExitStack() as stack:
        clients = {
            name: stack.enter_context(Client(broker_url, root=server.topics.root, options=PATIENT)) for name in names
        }
        loads = {name: Load(clients[name], name, window=8) for name in names}
        try:
            wait([clients["killed"].submit("killed", {"x": X}, timeout=30)])
            os.kill(pid, signal.SIGKILL)
            kinds: list[str] = []
            while kinds[-1:] != ["ready"] or "crashed" not in kinds:
                kinds.append(server.events.get(timeout=60).kind)
            served = clients["killed"].infer("killed", {"x": X}, timeout=30)
        finally:
            for load in loads.values():
                load.stop()
        futures = {name: load.futures for name, load in loads.items()}
        counters = {name: client.counters() for name, client in clients.items()}

    assert served.outcome is Outcome.OK
    assert all(future.result().attempts == 1 for future in futures["other"])
    assert counters["other"].outcomes[Outcome.OK] == counters["other"].submitted == len(futures["other"])
    assert all(future.done() for future in futures["killed"])
    assert sum(counters["killed"].outcomes.values()) == counters["killed"].submitted == len(futures["killed"]) + 2
    assert (counters["killed"].pending, counters["killed"].outcomes[Outcome.CANCELLED]) == (0, 0)


@contextmanager
def states_of(url: str, topics: Topics, name: str) -> Iterator[queue.SimpleQueue[tuple[WorkerState, bool]]]:
    """Collect the states that all workers publish, each with whether the broker had kept it."""
    states: queue.SimpleQueue[tuple[WorkerState, bool]] = queue.SimpleQueue()

    def receive(message: Message) -> None:
        states.put((WorkerState.from_json(message.payload), message.retain))

    with closing(make_link(url, client_id=name)) as link:
        link.open()
        link.subscribe(topics.worker_state.filter(), receive)
        yield states


def next_of(states: queue.SimpleQueue[tuple[WorkerState, bool]], status: WorkerStatus, after: int = 0) -> WorkerState:
    """Return the next state of a status whose incarnation is larger than a number."""
    while True:
        state, _ = states.get(timeout=60)
        if state.status is status and state.incarnation > after:
            return state


def test_only_a_crash_is_reported(
    write_echo: Callable[..., Path], managed: Callable[..., Any], unique: Callable[[str], str]
) -> None:
    """Of a lost connection, a stop by a signal and SIGKILL only the last is reported, once, and is not kept."""
    with MosquittoServer() as broker:
        server = managed(write_echo("echo"), url=broker.url, load=False)
        with states_of(broker.url, server.topics, unique("watcher")) as states:
            server.control.load("echo")
            ((worker, pid),) = server.supervisor.pids.items()
            first = next_of(states, WorkerStatus.READY)
            assert server.events.get(timeout=60).kind == "ready"

            broker.kill()
            broker.start()
            next_of(states, WorkerStatus.READY)  # it is back, in the same process

            os.kill(pid, signal.SIGTERM)
            asked = server.events.get(timeout=60)
            assert (asked.kind, asked.crashed) == ("crashed", 0)
            assert server.events.get(timeout=60).kind == "ready"
            second = next_of(states, WorkerStatus.READY, first.incarnation)

            os.kill(server.supervisor.pids[worker], signal.SIGKILL)
            killed = server.events.get(timeout=60)
            assert (killed.kind, killed.crashed) == ("crashed", second.incarnation)
            crashed = next_of(states, WorkerStatus.CRASHED)
            assert (crashed.worker, crashed.incarnation) == (worker, second.incarnation)
            assert server.events.get(timeout=60).kind == "ready"
            next_of(states, WorkerStatus.READY, second.incarnation)
        with states_of(broker.url, server.topics, unique("watcher")) as states:
            kept, was_kept = states.get(timeout=60)
            assert (kept.status, was_kept) == (WorkerStatus.READY, True)
        with Client(broker.url, root=server.topics.root) as client:
            assert client.infer("echo", {"x": X}, timeout=30).worker == worker


def test_a_report_about_its_predecessor_displaces_no_process(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str, unique: Callable[[str], str]
) -> None:
    """A process that receives `crashed` under its name publishes its own state again, and serves on."""
    server = managed(write_echo("echo"))
    assert server.events.get(timeout=60).kind == "ready"
    (worker,) = server.supervisor.pids
    with states_of(broker_url, server.topics, unique("watcher")) as states:
        own = next_of(states, WorkerStatus.READY)
        with closing(make_link(broker_url, client_id=unique("reporter"))) as link:
            link.open()
            for incarnation in (own.incarnation - 1, own.incarnation + 1):
                report = WorkerState(worker, WorkerStatus.CRASHED, incarnation)
                link.publish(Message(server.topics.worker_state(worker), report.to_json()))
                assert next_of(states, WorkerStatus.CRASHED).incarnation == incarnation
                assert next_of(states, WorkerStatus.READY).incarnation == own.incarnation
    with Client(broker_url, root=server.topics.root) as client:
        assert client.infer("echo", {"x": X}, timeout=30).worker == worker


def test_two_crashes_make_a_request_poison(tmp_path: Path, managed: Callable[..., Any], broker_url: str) -> None:
    """A request that kills its worker is sent to a second one, and to no third; all others are served."""
    folder = tmp_path / "models" / "echo" / "1"
    folder.mkdir(parents=True)
    text = 'die_on = 13\n[[input]]\nname = "x"\ndatatype = "TYPE_INT64"\nshape = [1, 1]\n'
    (folder / "model.echo").write_text(text, encoding="utf-8")
    server = managed(tmp_path / "models", instances=3)
    for _ in range(3):
        assert server.events.get(timeout=60).kind == "ready"
    with Client(broker_url, root=server.topics.root) as client:
        futures = [client.submit("echo", {"x": np.array([[100 + n]])}, timeout=60) for n in range(50)]
        deadly = client.submit("echo", {"x": np.array([[13]])}, timeout=60)
        futures += [client.submit("echo", {"x": np.array([[200 + n]])}, timeout=60) for n in range(50)]
        assert isinstance(deadly.exception(60), Poison)
        outcomes = Counter(future.result(60).outcome for future in futures)
    events = [server.events.get(timeout=60) for _ in range(4)]
    assert Counter(event.kind for event in events) == {"crashed": 2, "ready": 2}
    assert all(event.crashed for event in events if event.kind == "crashed")
    assert outcomes == {Outcome.OK: 100}


def test_a_worker_process_is_killed_before_its_supervisor_when_memory_runs_out(
    write_echo: Callable[..., Path], managed: Callable[..., Any]
) -> None:
    """The system prefers the processes that hold the models, one of which may leak, to the one that restarts them."""
    server = managed(write_echo("echo"))
    assert server.events.get(timeout=60).kind == "ready"
    (pid,) = server.supervisor.pids.values()
    own, worker = (int(Path(f"/proc/{each}/oom_score_adj").read_text(encoding="ascii")) for each in ("self", pid))
    assert worker > own
