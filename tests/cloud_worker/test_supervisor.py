from __future__ import annotations

import contextlib
import errno
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client, Outcome
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.child import Child, Phase
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.started_process import StartedProcess, load_timeout
from mqinfer.cloud_worker.supervision.supervisor import Event, Inbox, Supervisor
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import BadTopic, ModelNotFound
from mqinfer.protocol.topics import Topics

WriteEcho = Callable[..., Path]
X = np.zeros((1, 4), np.float32)


def template(repository: Path, url: str = "mqtt://127.0.0.1:1", name: str = "w") -> ProcessSpec:
    """Make the spec that `mqinfer worker` makes from its options."""
    return ProcessSpec(repository, "", 0, BrokerAddress.parse(url), WorkerOptions(name), device="cpu")


def test_one_process_an_instance(write_echo: WriteEcho) -> None:
    """Each selected version gets the number in its `instance_group`; the names are numbered consecutively."""
    write_echo("a", config="instance_group = [{ count = 2 }]\n")
    write_echo("b", version=1, config="version_policy = { all = {} }\n")
    repository = write_echo("b", version=3, config="version_policy = { all = {} }\n")
    specs = plan(Repository(repository), template(repository))
    assert [(spec.model, spec.version, spec.options.name) for spec in specs] == [
        ("a", 1, "w.0"),
        ("a", 1, "w.1"),
        ("b", 1, "w.2"),
        ("b", 3, "w.3"),
    ]
    assert len(plan(Repository(repository), template(repository), ["a"], instances=5)) == 5


def test_plans_that_are_refused(write_echo: WriteEcho, tmp_path: Path) -> None:
    """An empty repository, an unknown model and a bad name are errors before any process starts."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match="no model that can be served; it has: none"):
        plan(Repository(tmp_path / "empty"), template(tmp_path / "empty"))
    repository = write_echo("a")
    with pytest.raises(ModelNotFound, match="no model b; it has: a"):
        plan(Repository(repository), template(repository), ["a", "b"])
    with pytest.raises(BadTopic, match=r"worker 'My Host\.0'"):
        plan(Repository(repository), template(repository, name="My Host"))


class EndedProcess:
    """A process that has ended without a report."""

    killed, has_sent = "", False

    def __init__(self, spec: ProcessSpec, now: float, _: object) -> None:
        self.spec, self.started = replace(spec, incarnation=1), now

    def is_suspect(self, *, has_served: bool) -> bool:
        """Whether it may have crashed by itself."""
        return not has_served

    def join(self) -> int:
        """Return its exit code."""
        return 0

    def close(self) -> tuple[str, ...]:
        """Name no request."""
        return ()


def test_a_process_that_crashes_at_each_start_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its pauses double; after six starts it has failed, with the last exit code and the number of starts."""
    monkeypatch.setattr("mqinfer.cloud_worker.supervision.child.StartedProcess", EndedProcess)
    child, now, pauses = Child(template(tmp_path)), 0.0, []
    while not child.is_over:
        child.start(now)
        child.reap(now)
        pauses.append(round((child.due or now) - now, 3))
        now = child.due or now
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 0]
    assert (child.phase, child.reason) == (
        Phase.FAILED,
        "exit code 0; given up after 6 starts, of which none has served",
    )


def test_one_that_is_stopped_before_a_process_serves_has_not_failed(tmp_path: Path) -> None:
    """A service that is stopped while it starts ends as one that has served."""
    supervisor = Supervisor([template(tmp_path)])
    supervisor.stop()
    assert supervisor.run()


def test_a_model_that_does_not_load_in_time_has_failed(monkeypatch: pytest.MonkeyPatch, write_echo: WriteEcho) -> None:
    """The process is killed, and not started again; `--run-timeout 0` sets no bound."""
    monkeypatch.setattr("mqinfer.cloud_worker.supervision.started_process._LOAD_TIMEOUT_S", 0.5)
    repository, events = write_echo(), list[Event]()
    supervisor = Supervisor(plan(Repository(repository), template(repository)), events.append)
    assert not supervisor.run()
    (event,), (view,) = events, supervisor.processes
    assert (event.kind, event.detail) == (
        "failed",
        "killed: the model did not load within 0.5 s (--run-timeout)",
    )
    assert (view.phase, view.reason, view.pid) == (Phase.FAILED, event.detail, None)
    assert [load_timeout(stated) for stated in (None, 0.2, 9.0, 0.0)] == [0.5, 0.5, 9.0, 0.0]


def test_actions_run_in_order_and_an_error_goes_to_its_own_future() -> None:
    """An action that raises does not stop the others."""
    inbox, done = Inbox(), list[int]()
    failed: Future[None] = Future()
    assert inbox.put(lambda: done.append(1), Future())
    assert inbox.put(lambda: done.append(1 // 0), failed)
    assert inbox.put(lambda: done.append(3), Future())
    inbox.run_all()
    assert done == [1, 3]
    assert isinstance(failed.exception(0), ZeroDivisionError)


def test_actions_left_at_closing_are_returned_once() -> None:
    """None of them runs, and no further action is accepted."""
    inbox, done = Inbox(), list[int]()
    waiting: Future[None] = Future()
    assert inbox.put(lambda: done.append(1), waiting)
    assert inbox.close() == [waiting]
    assert not inbox.put(lambda: done.append(2), Future())
    inbox.run_all()
    assert (inbox.close(), done) == ([], [])


class Watch:
    """A supervisor on a thread, and its events."""

    def __init__(self, supervisor: Supervisor) -> None:
        self.supervisor = supervisor
        self.events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        supervisor.on_event = self.events.put
        self.served: list[bool] = []
        self.thread = threading.Thread(target=lambda: self.served.append(supervisor.run()))
        self.thread.start()

    def next(self) -> Event:
        """Wait for the next event."""
        return self.events.get(timeout=60)


@pytest.fixture
def watch() -> Iterator[Callable[[Supervisor], Watch]]:
    """Run supervisors that are stopped with the test."""
    watches: list[Watch] = []

    def start(supervisor: Supervisor) -> Watch:
        watches.append(Watch(supervisor))
        return watches[-1]

    yield start
    for each in watches:
        each.supervisor.stop()
        each.thread.join(60)


@pytest.mark.slow
@pytest.mark.broker
def test_processes_serve_crash_restart_and_stop(
    broker_url: str, write_echo: WriteEcho, watch: Callable[[Supervisor], Watch], unique: Callable[[str], str]
) -> None:
    """A killed process serves again; one whose model can't be loaded fails, and the other keeps serving."""
    good, bad = unique("good"), unique("bad")
    write_echo(bad, ("x", "FP32", [-1, 4]))
    repository = write_echo(good)
    (repository / bad / "1" / "model.echo").write_text("no toml at all", encoding="utf-8")
    specs = plan(Repository(repository), template(repository, broker_url, unique("w")))
    supervising = watch(Supervisor(specs))
    first = {event.kind: event for event in (supervising.next(), supervising.next())}
    assert set(first) == {"ready", "failed"}
    assert first["failed"].model == f"{bad} version 1"
    assert "model_not_loadable" in first["failed"].detail
    worker = first["ready"].worker
    with Client(broker_url, name=unique("client")) as client:
        assert client.infer(good, {"x": X}).worker == worker
        pid = supervising.supervisor.pids[worker]
        os.kill(pid, signal.SIGKILL)
        crashed = supervising.next()
        assert (crashed.kind, crashed.worker) == ("crashed", worker)
        assert "-9" in crashed.detail
        assert supervising.next().kind == "ready"
        assert supervising.supervisor.pids[worker] != pid
        assert client.infer(good, {"x": X}, timeout=30).outcome is Outcome.OK
        supervising.supervisor.stop()
        assert supervising.next().kind == "stopped"
    supervising.thread.join(30)
    assert supervising.served == [True]
    assert supervising.supervisor.pids == {}


@pytest.mark.slow
@pytest.mark.broker
def test_a_process_that_can_not_be_started_now_holds_up_no_other(
    broker_url: str,
    write_echo: WriteEcho,
    watch: Callable[[Supervisor], Watch],
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without descriptors left for one, the reports of the others are read, and that one is started later."""
    first, other = unique("a"), unique("b")
    write_echo(first)
    repository = write_echo(other)
    has_room = threading.Event()

    def start(spec: ProcessSpec, *arguments: Any) -> StartedProcess:
        if spec.model == first and not has_room.is_set():
            raise OSError(errno.EMFILE, "Too many open files")
        return StartedProcess(spec, *arguments)

    monkeypatch.setattr("mqinfer.cloud_worker.supervision.child.StartedProcess", start)
    supervising = watch(Supervisor(plan(Repository(repository), template(repository, broker_url, unique("w")))))
    event = supervising.next()
    assert (event.kind, event.model) == ("ready", f"{other} version 1")
    (late,) = [view for view in supervising.supervisor.processes if view.spec.model == first]
    assert "can't be started now: [Errno 24] Too many open files" in late.reason
    has_room.set()
    event = supervising.next()
    assert (event.kind, event.model) == ("ready", f"{first} version 1")


@pytest.mark.slow
def test_without_a_broker_the_supervisor_ends(write_echo: WriteEcho, watch: Callable[[Supervisor], Watch]) -> None:
    """No process ever served: each reports its failure once, and `run` returns."""
    repository = write_echo("a")
    supervising = watch(Supervisor(plan(Repository(repository), template(repository))))
    failed = supervising.next()
    assert failed.kind == "failed"
    assert "broker_unreachable" in failed.detail
    supervising.thread.join(30)
    assert supervising.served == [False]


@pytest.mark.slow
@pytest.mark.broker
def test_a_process_that_served_before_is_restarted_without_a_broker(
    write_echo: WriteEcho, watch: Callable[[Supervisor], Watch]
) -> None:
    """A process that is restarted during an outage waits with its model loaded until the broker is back."""
    repository = write_echo("a")
    with MosquittoServer() as server:
        (spec,) = plan(Repository(repository), template(repository, server.url))
        supervising = watch(Supervisor([spec]))
        assert supervising.next().kind == "ready"
    os.kill(supervising.supervisor.pids["w.0"], signal.SIGKILL)
    killed, waiting = supervising.next(), supervising.next()
    assert (killed.kind, waiting.kind) == ("crashed", "waiting")
    assert "exit code -9; restart in 0.1 s" in killed.detail
    assert "broker_unreachable" in waiting.detail
    pid = supervising.supervisor.pids["w.0"]
    with MosquittoServer(port=server.port):
        assert supervising.next().kind == "ready"
        assert supervising.supervisor.pids["w.0"] == pid
        supervising.supervisor.stop()
        assert supervising.next().kind == "stopped"


@pytest.mark.slow
@pytest.mark.broker
def test_a_broker_outage_while_a_model_loads(
    write_echo: WriteEcho, watch: Callable[[Supervisor], Watch], unique: Callable[[str], str]
) -> None:
    """A server whose broker goes away before its first model is warm waits with it, and serves once it is back."""
    repository = write_echo("a", delay_ms=20, config="model_warmup = { count = 100 }\n")
    with MosquittoServer() as server:
        supervising = watch(Supervisor(plan(Repository(repository), template(repository, server.url)), may_idle=True))
        server.kill()
        waiting = supervising.next()
        assert (waiting.kind, waiting.crashed) == ("waiting", 0)
        assert "broker_unreachable" in waiting.detail
        (view,) = supervising.supervisor.processes
        assert view.phase is Phase.STARTING
        server.start()
        assert supervising.next().kind == "ready"
        with Client(server.url, name=unique("client")) as client:
            assert client.infer("a", {"x": X}, timeout=30).outcome is Outcome.OK
        supervising.supervisor.stop()
        assert supervising.next().kind == "stopped"


SCRIPT = """
import sys
from mqinfer.cli import main
if __name__ == "__main__":
    sys.argv = ["mqinfer", *sys.argv[1:]]
    main()
"""


@pytest.mark.slow
@pytest.mark.broker
def test_workers_end_when_their_supervisor_is_killed(
    broker_url: str, write_echo: WriteEcho, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """No orphan keeps serving: the processes drain and publish `stopped`."""
    from mqinfer.broker import make_link
    from mqinfer.protocol.states import WorkerState, WorkerStatus

    model, name = unique("echo"), unique("w")
    repository = write_echo(model)
    script = tmp_path / "run.py"
    script.write_text(SCRIPT, encoding="utf-8")
    states: queue.SimpleQueue[WorkerStatus] = queue.SimpleQueue()
    link = make_link(broker_url, client_id=unique("watcher"))
    link.open()
    link.subscribe(Topics().worker_state(f"{name}.0"), lambda m: states.put(WorkerState.from_json(m.payload).status))
    process = subprocess.Popen(
        [sys.executable, script, "worker", "--repository", repository, "--broker", broker_url, "--name", name]
    )
    try:
        assert states.get(timeout=60) is WorkerStatus.READY
        process.kill()
        process.wait(10)
        assert states.get(timeout=60) is WorkerStatus.DRAINING
        assert states.get(timeout=60) is WorkerStatus.STOPPED
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait(10)
        link.close()


@pytest.mark.slow
@pytest.mark.broker
def test_a_defect_of_the_supervisor_ends_no_process(
    broker_url: str,
    write_echo: WriteEcho,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Neither does a handler of events that raises; configuration warnings of several processes are logged once."""
    caplog.set_level(logging.INFO, "mqinfer")
    model, name = unique("echo"), unique("w")
    late = 'dynamic_batching = { default_queue_policy = { timeout_action = "DELAY" } }\n'
    repository = write_echo(model, config=f"max_batch_size = 4\n{late}")
    supervisor = Supervisor(plan(Repository(repository), template(repository, broker_url, name), instances=2))
    handled: queue.SimpleQueue[Event] = queue.SimpleQueue()

    def handle(event: Event) -> None:
        handled.put(event)
        raise ValueError("closing tag '[/x]' doesn't match any open tag")

    supervisor.on_event = handle
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    try:
        assert {handled.get(timeout=60).kind for _ in range(2)} == {"ready"}
        pids = dict(supervisor.pids)
        check, failures = Supervisor._check_progress, queue.SimpleQueue[int]()

        def fail_twice(self: Supervisor, now: float) -> None:
            if failures.qsize() < 2:
                failures.put(1)
                raise RuntimeError("a defect")
            check(self, now)

        monkeypatch.setattr(Supervisor, "_check_progress", fail_twice)
        os.kill(pids[f"{name}.0"], signal.SIGKILL)
        events = [handled.get(timeout=60) for _ in range(2)]
        assert [(event.kind, event.worker) for event in events] == [("crashed", f"{name}.0"), ("ready", f"{name}.0")]
        assert supervisor.pids[f"{name}.1"] == pids[f"{name}.1"]
        with Client(broker_url) as client:
            assert client.infer(model, {"x": X}).outcome is Outcome.OK
    finally:
        supervisor.stop()
        thread.join(60)
    assert not thread.is_alive()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())
    assert sum("timeout_action DELAY does nothing" in message for message in caplog.messages) == 1
    fields = [vars(record) for record in caplog.records if getattr(record, "event", "") == "crashed"]
    assert [(each["worker"], each["model"], each["version"]) for each in fields] == [(f"{name}.0", model, "1")]


@pytest.mark.slow
@pytest.mark.broker
def test_a_defect_while_stopping_leaves_no_process(
    broker_url: str, write_echo: WriteEcho, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes are killed then, so that the command ends."""
    repository = write_echo(unique("echo"))
    supervisor = Supervisor(plan(Repository(repository), template(repository, broker_url, unique("w"))))
    ready = threading.Event()
    supervisor.on_event = lambda event: ready.set() if event.kind == "ready" else None
    raised: list[Exception] = []

    def run() -> None:
        try:
            supervisor.run()
        except ZeroDivisionError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert ready.wait(60)
    runs = [child.run for child in supervisor._children]
    monkeypatch.setattr(Supervisor, "_stop_children", lambda *_: 1 // 0)
    supervisor.stop()
    thread.join(60)
    assert len(raised) == 1
    for run_ in runs:
        assert run_ is not None
        assert run_.join() == -signal.SIGKILL
