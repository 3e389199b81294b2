"""Processes that several small models share: which models do, and what a crash costs the others."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mqinfer import Client, Outcome
from mqinfer.broker.address import BrokerAddress
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.pipeline import RunningRequests
from mqinfer.cloud_worker.supervision import planning, shared_process
from mqinfer.cloud_worker.supervision.child import Child, Phase
from mqinfer.cloud_worker.supervision.control_server import crash_message
from mqinfer.cloud_worker.supervision.planning import is_same, plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.rollout import Rollout, RolloutStep
from mqinfer.cloud_worker.supervision.started_process import NOBODY
from mqinfer.cloud_worker.supervision.supervisor import Event, Supervisor
from mqinfer.models.repository import Repository
from mqinfer.protocol.states import WorkerState
from mqinfer.protocol.topics import Topics
from tests.cloud_worker.test_supervisor import Watch
from tests.models.conftest import _write_onnx
from tests.patience import wait_until

WriteEcho = Callable[..., Path]
X = np.zeros((1, 4), np.float32)
ID = "ab" * 16


def template(repository: Path, url: str = "mqtt://127.0.0.1:1", name: str = "w") -> ProcessSpec:
    """Make the spec that `mqinfer worker` makes from its options."""
    return ProcessSpec(repository, "", 0, BrokerAddress.parse(url), WorkerOptions(name), share_with=16)


@pytest.fixture
def small(tmp_path: Path) -> Callable[..., Path]:
    """Write a small ONNX model into a repository."""

    def write(model: str, config: str = "", bytes_beside: int = 0) -> Path:
        folder = tmp_path / "repository" / model / "1"
        folder.mkdir(parents=True)
        _write_onnx(folder / "model.onnx")
        if config:
            (folder.parent / "model.toml").write_text(config, encoding="utf-8")
        if bytes_beside:
            with (folder / "weights.bin").open("wb") as file:
                file.truncate(bytes_beside)
        return tmp_path / "repository"

    return write


def test_who_shares(small: Callable[..., Path], write_echo: WriteEcho, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small ONNX model on a CPU does; several instances, a GPU, large files, others and who asks do not."""
    small("a")
    small("b", "instance_group = [{ count = 2 }]\n")
    small("c", 'instance_group = [{ kind = "KIND_GPU" }]\n')
    small("d", "parameters = { own_process = true }\n")
    small("e", bytes_beside=17 << 20)
    small("f", 'instance_group = [{ kind = "KIND_CPU" }]\n')
    repository = write_echo("g")
    for devices, sharing in ((["cpu"], {"f"}), (["auto"], {"a"})):
        monkeypatch.setattr(planning, "_CPU", (devices,))
        specs = plan(Repository(repository), template(repository))
        assert {spec.model for spec in specs if spec.share_with > 1} == sharing
    assert not [spec for spec in plan(Repository(repository), template(repository), instances=2) if spec.share_with > 1]
    alone = [replace(spec, share_with=1) for spec in specs]
    assert is_same(specs, alone), "a model that got a process of its own is started again without need"


def test_a_few_processes_are_not_shared() -> None:
    """Up to 32 processes each model has its own, and with 1 model a process always."""
    processes = shared_process.SharedProcesses()
    assert processes.choose(template(Path()), 32) is None
    assert processes.choose(replace(template(Path()), share_with=1), 1000) is None


class Neighbours:
    """A shared process that has been killed, with the records of its models."""

    def __init__(self, *busy: Sequence[bytes | None]) -> None:
        self.process = SimpleNamespace(join=lambda: None, exitcode=-9)
        self.places: list[Any] = []
        for ids in busy:
            memory = bytearray(RunningRequests.SIZE)
            RunningRequests(memory).write(3, ids)
            self.places.append(SimpleNamespace(pipe=None, progress=None, memory=memory))
        self._next = iter(self.places)

    @property
    def at_work(self) -> int:
        """How many of its models were at work."""
        return sum(RunningRequests(place.memory).is_busy for place in self.places)

    def take(self, _: ProcessSpec) -> Any:
        """Return the next place."""
        return next(self._next)

    def leave(self) -> None:
        """Take note of nothing."""

    def reap(self, *, served: bool = False) -> list[Child]:
        """Return its models after they were reaped."""
        children = [Child(template(Path())) for _ in self.places]
        for child in children:
            child.start(0.0, lambda _: self)  # type: ignore[arg-type,return-value]  # stands for one
            child.card = object() if served else None  # type: ignore[assignment]  # any card
        for child in children:
            child.reap(1.0)
        return children


ALONE = [bytes.fromhex(ID)]
UNNAMED = [None]


@pytest.mark.parametrize(
    ("busy", "running", "suspects"),
    [
        ([ALONE, [], []], [(ID,), NOBODY, NOBODY], [True, False, False]),
        ([ALONE, ALONE, []], [NOBODY, NOBODY, NOBODY], [True, True, False]),
        ([UNNAMED, [], []], [(), NOBODY, NOBODY], [True, False, False]),
        ([[], []], [(), ()], [False, False]),
    ],
)
def test_who_is_blamed(busy: Any, running: Any, suspects: list[bool]) -> None:
    """Requests are, where one model was at work; who was gets a process of its own; the others share again."""
    children = Neighbours(*busy).reap(served=True)
    assert [child.running for child in children] == running
    assert [child.spec.share_with == 1 for child in children] == suspects
    assert {(child.phase, child.crashed != 0) for child in children} == {(Phase.WAITING, True)}


def test_a_load_that_ends_the_process_is_one_models_failure() -> None:
    """The others start again, as often as it takes, and whoever waits for them goes on waiting."""
    culprit, other = Neighbours(UNNAMED, []).reap()
    assert Rollout("m", (), [culprit]).next_step is RolloutStep.UNDO
    assert Rollout("m", (), [other]).next_step is RolloutStep.WAIT
    assert (culprit.spec.share_with, other.spec.share_with) == (1, 16)
    for _ in range(10):
        other.start(0.0, lambda _: Neighbours([], UNNAMED))  # type: ignore[arg-type,return-value]  # as above
        other.reap(1.0)
    assert other.phase is Phase.WAITING
    lost = Neighbours([]).reap()[0]  # nobody was at work: it was the process's start
    assert lost.spec.share_with == 1


def test_nobody_is_a_name_on_the_wire() -> None:
    """The state of a crash for which no request is to blame can be read, and names none."""
    message = crash_message(Topics(), Event("crashed", "w.0", "m", "", 5, NOBODY))
    assert message
    _, state = WorkerState.read(Topics(), message.topic, message.payload)
    assert state
    assert state.running == ("nobody",)


@pytest.fixture
def sharing(
    broker_url: str, write_echo: WriteEcho, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., tuple[Watch, list[str]]]]:
    """Serve echo models, by their delays in milliseconds, in one process."""
    monkeypatch.setattr(shared_process, "_LEAST_PROCESSES", 0)
    watches: list[Watch] = []

    def start(*delays: float, broken: bool = False) -> tuple[Watch, list[str]]:
        models = [unique(f"m{number}") for number in range(len(delays))]
        for model, delay_ms in zip(models, delays, strict=True):
            repository = write_echo(model, delay_ms=delay_ms)
        if broken:
            (repository / models[-1] / "1" / "model.echo").write_text("no toml at all", encoding="utf-8")
        specs = plan(Repository(repository), template(repository, broker_url, unique("w")), models)
        watches.append(Watch(Supervisor([replace(spec, share_with=16) for spec in specs])))
        return watches[-1], models

    yield start
    for each in watches:
        each.supervisor.stop()
        each.thread.join(60)


def take(watch: Watch, count: int) -> dict[str, Event]:
    """Return the next events, by model."""
    return {event.model.split()[0]: event for event in (watch.next() for _ in range(count))}


def pids(watch: Watch) -> dict[str, int]:
    """Return the process of each model."""
    return {view.spec.model: view.pid for view in watch.supervisor.processes if view.pid}


@pytest.mark.slow
@pytest.mark.broker
def test_models_share_a_process_and_survive_its_kill(
    sharing: Callable[..., tuple[Watch, list[str]]], broker_url: str, unique: Callable[[str], str]
) -> None:
    """A broken one fails alone; a kill names the running request, which is served; one unloads alone; all stop."""
    watch, models = sharing(0, 1500, 0, 0, broken=True)
    quick, slow, other, bad = models
    first = take(watch, 4)
    assert {model: event.kind for model, event in first.items()} == dict.fromkeys(models[:3], "ready") | {bad: "failed"}
    before = pids(watch)
    assert len(set(before.values())) == 1
    with Client(broker_url, name=unique("client")) as client:
        assert client.infer(quick, {"x": X}).outcome is Outcome.OK
        running = client.submit(slow, {"x": X}, timeout=60)
        process: Any = next(each.run for each in watch.supervisor._children if each.spec.model == slow)
        wait_until(lambda: process._running.is_busy)  # a request that only waits is not to blame
        os.kill(before[slow], signal.SIGKILL)
        events = [watch.next() for _ in range(6)]
        crashed = {event.model.split()[0]: event for event in events if event.kind == "crashed"}
        assert sorted(event.kind for event in events) == ["crashed"] * 3 + ["ready"] * 3
        assert {model: len(event.running) == 1 and event.running != NOBODY for model, event in crashed.items()} == {
            quick: False,
            slow: True,
            other: False,
        }
        after = pids(watch)
        assert after[quick] == after[other] != after[slow]
        assert running.result(60).outcome is Outcome.OK
        watch.supervisor.roll_out(quick, (), "w").result(60)
        assert watch.next().kind == "stopped"
        assert client.infer(other, {"x": X}, timeout=30).outcome is Outcome.OK
        assert pids(watch) == {slow: after[slow], other: after[other]}
    watch.supervisor.stop()
    watch.thread.join(60)
    assert watch.supervisor.pids == {}
    with pytest.raises(ProcessLookupError):
        os.kill(after[other], 0)


@pytest.mark.slow
@pytest.mark.broker
def test_many_small_models_need_few_processes(
    small: Callable[..., Path], broker_url: str, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """33 models are ready in three processes."""
    monkeypatch.setattr(planning, "_CPU", (["auto"],))
    models = [unique(f"m{number}") for number in range(33)]
    for model in models:
        repository = small(model)
    watch = Watch(Supervisor(plan(Repository(repository), template(repository, broker_url, unique("w")), models)))
    try:
        assert {event.kind for event in take(watch, 33).values()} == {"ready"}
        assert len(set(pids(watch).values())) == 3
    finally:
        watch.supervisor.stop()
        watch.thread.join(60)
    assert watch.served == [True]
