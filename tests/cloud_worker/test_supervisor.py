from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mqinfer import Client, Outcome
from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec, find_version
from mqinfer.cloud_worker.supervision.supervisor import Event, Supervisor
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import BadTopic, ModelNotFound
from mqinfer.protocol.topics import Topics

WriteEcho = Callable[..., Path]
X = np.zeros((1, 4), np.float32)


def template(repository: Path, url: str = "mqtt://127.0.0.1:1", name: str = "w") -> ProcessSpec:
    """Make what `mqinfer worker` makes of its options."""
    return ProcessSpec(repository, "", 0, BrokerAddress.parse(url), WorkerOptions(name), device="cpu")


def test_one_process_an_instance(write_echo: WriteEcho) -> None:
    """Every selected version gets as many as its `instance_group` says, numbered through."""
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


def test_a_plan_for_nothing(write_echo: WriteEcho, tmp_path: Path) -> None:
    """An empty repository and an unknown model are said with what there is; a bad name before any process starts."""
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelNotFound, match="no model that can be served; it has: none"):
        plan(Repository(tmp_path / "empty"), template(tmp_path / "empty"))
    repository = write_echo("a")
    with pytest.raises(ModelNotFound, match="no model b; it has: a"):
        plan(Repository(repository), template(repository), ["a", "b"])
    with pytest.raises(BadTopic, match=r"worker 'My Host\.0'"):
        plan(Repository(repository), template(repository, name="My Host"))


def test_a_version_that_is_gone(write_echo: WriteEcho) -> None:
    """A process that finds its version gone says so."""
    with pytest.raises(ModelNotFound, match="no version 2 of model 'a'"):
        find_version(Repository(write_echo("a")), "a", 2)


class Watch:
    """A supervisor on a thread, and what it tells."""

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
def test_processes_serve_die_come_back_and_stop(
    broker_url: str, write_echo: WriteEcho, watch: Callable[[Supervisor], Watch], unique: Callable[[str], str]
) -> None:
    """A process is ready, is killed, is ready again; one whose model can't be loaded fails and the other serves on."""
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
        died = supervising.next()
        assert (died.kind, died.worker) == ("died", worker)
        assert "-9" in died.detail
        assert supervising.next().kind == "ready"
        assert supervising.supervisor.pids[worker] != pid
        assert client.infer(good, {"x": X}, timeout=30).outcome is Outcome.OK
        supervising.supervisor.stop()
        assert supervising.next().kind == "stopped"
    supervising.thread.join(30)
    assert supervising.served == [True]
    assert supervising.supervisor.pids == {}


@pytest.mark.slow
def test_without_a_broker_the_supervisor_gives_up(write_echo: WriteEcho, watch: Callable[[Supervisor], Watch]) -> None:
    """No process ever served: that is said once each, and `run` returns."""
    repository = write_echo("a")
    supervising = watch(Supervisor(plan(Repository(repository), template(repository))))
    failed = supervising.next()
    assert failed.kind == "failed"
    assert "broker_unreachable" in failed.detail
    supervising.thread.join(30)
    assert supervising.served == [False]


@pytest.mark.slow
def test_a_process_that_served_before_is_tried_again(
    write_echo: WriteEcho, watch: Callable[[Supervisor], Watch]
) -> None:
    """A broker that is gone for a moment does not end a worker for good."""
    repository = write_echo("a")
    (spec,) = plan(Repository(repository), template(repository))
    version = Repository(repository).models()[0]
    supervisor = Supervisor([spec])
    supervisor._children[0].card = load_model(version, device="cpu").card  # as if it had served
    supervising = watch(supervisor)
    died = supervising.next()
    assert died.kind == "died"
    assert "broker_unreachable" in died.detail
    assert "starting it again in 0.1 s" in died.detail


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
    """No orphan goes on answering: the processes drain and say `stopped`."""
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
