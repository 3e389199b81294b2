from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.child import Phase, ProcessView
from mqinfer.cloud_worker.supervision.config_json import config_record
from mqinfer.cloud_worker.supervision.control_server import ControlServer
from mqinfer.cloud_worker.supervision.inquiry import ServerStatistics
from mqinfer.cloud_worker.supervision.management import Management, index
from mqinfer.cloud_worker.supervision.planning import plan_versions
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Problem, Repository, Scan
from mqinfer.protocol.control import Call, CallBody, ModelState, ModelStatistics, Operation
from mqinfer.protocol.errors import BadTopic, Cancelled, InvalidRequest, ModelNotFound, ModelNotLoadable, NameTaken
from mqinfer.protocol.states import ServedModel, ServerState, WorkerState, WorkerStatus
from mqinfer.protocol.topics import Topics

WriteEcho = Callable[..., Path]


class Fleet:
    """Processes that are ready as soon as they are wanted, and none of which exists.

    Attributes:
        orders: Model and versions of each roll-out.
        hold: While set, roll-outs do not come to their end.
    """

    def __init__(self, specs: Sequence[ProcessSpec] = ()) -> None:
        self.specs = specs
        self.processes: list[ProcessView] = []
        self.orders: list[tuple[str, list[int]]] = []
        self.hold: list[Future[None]] | None = None
        self._serve(specs)

    def _serve(self, specs: Sequence[ProcessSpec]) -> None:
        for spec in specs:
            assert spec.found
            self.processes.append(ProcessView(spec, Phase.READY, load_model(spec.found, device="cpu").card))

    def roll_out(self, model: str, specs: Sequence[ProcessSpec], name: str) -> Future[None]:
        """Do at once what a supervisor takes its time for."""
        assert name == "w"
        self.orders.append((model, [spec.version for spec in specs]))
        self.processes = [view for view in self.processes if view.spec.model != model]
        self._serve(specs)
        future: Future[None] = Future()
        if self.hold is None:
            future.set_result(None)
        else:
            self.hold.append(future)
        return future

    def statistics(self) -> Future[ServerStatistics]:
        """One process that did something, and one that hangs."""
        future: Future[ServerStatistics] = Future()
        future.set_result(ServerStatistics({("a", 1): ModelStatistics(inference_count=3)}, ("w.9",)))
        return future


def template(repository: Path, topics: Topics | None = None) -> ProcessSpec:
    """Make what `mqinfer worker` makes of its options."""
    options = WorkerOptions("w", topics or Topics())
    return ProcessSpec(repository, "", 0, BrokerAddress("localhost"), options, device="cpu")


def manage(repository: Path) -> tuple[Management, Fleet]:
    """Serve all of a repository."""
    fleet = Fleet(plan_versions(Repository(repository).models(), template(repository)))
    return Management(template(repository), fleet), fleet


def view(phase: Phase, reason: str = "", version: int = 1) -> ProcessView:
    """Make a process of model `m`."""
    spec = replace(template(Path()), model="m", version=version)
    return ProcessView(spec, phase, None, reason)


@pytest.mark.parametrize(
    ("processes", "state", "reason"),
    [
        ([], ModelState.UNAVAILABLE, "not loaded"),
        ([view(Phase.WAITING)], ModelState.LOADING, ""),
        ([view(Phase.STARTING)], ModelState.LOADING, ""),
        ([view(Phase.READY)], ModelState.READY, ""),
        ([view(Phase.READY), view(Phase.STARTING)], ModelState.READY, ""),
        ([view(Phase.READY), view(Phase.FAILED, "no file")], ModelState.READY, "no file"),
        ([view(Phase.DRAINING)], ModelState.UNLOADING, ""),
        ([view(Phase.DRAINING), view(Phase.STARTING)], ModelState.LOADING, ""),
        ([view(Phase.FAILED, "no file")], ModelState.UNAVAILABLE, "no file"),
        ([view(Phase.WAITING, "exit code -9")], ModelState.UNAVAILABLE, "exit code -9"),
        ([view(Phase.STARTING, "x"), view(Phase.WAITING, "exit code -9")], ModelState.LOADING, "exit code -9; x"),
    ],
)
def test_states_of_a_version(
    write_echo: WriteEcho, processes: list[ProcessView], state: ModelState, reason: str
) -> None:
    """What serves is READY whatever else goes on; otherwise what is on its way; the reason of a failure is kept."""
    (entry,) = index(Repository(write_echo("m")).scan(), processes)
    assert (entry.name, entry.version, entry.state, entry.reason) == ("m", "1", state, reason)


def test_the_index_lists_what_is_there_and_what_runs() -> None:
    """A version that runs but left the repository, and a folder that can't be served, are in it, in order."""
    found = index(Scan((), (Problem("a", "empty"),)), [view(Phase.READY, version=10), view(Phase.READY, version=9)])
    assert [(entry.name, entry.version) for entry in found] == [("a", ""), ("m", "9"), ("m", "10")]
    assert found[0].to_record() == {"name": "a", "version": "", "state": "UNAVAILABLE", "reason": "empty"}


def test_a_load_reads_the_repository_anew(write_echo: WriteEcho) -> None:
    """The version policy decides, and the reply names the versions."""
    management, fleet = manage(write_echo("a"))
    write_echo("a", version=2)
    assert management.answer(Call(Operation.LOAD, "a"), CallBody()).result(0) == {"name": "a", "versions": ["2"]}
    assert fleet.orders == [("a", [2])]
    assert management.answer(Call(Operation.MODEL_READY, "a", "1"), CallBody()).result(0)["ready"] is False
    assert management.answer(Call(Operation.METADATA, "a"), CallBody()).result(0)["versions"] == ["2"]


def test_what_can_not_be_loaded(write_echo: WriteEcho) -> None:
    """An unknown model, a folder with a fault, and a model that comes with the message; nothing is touched."""
    repository = write_echo("a")
    management, fleet = manage(repository)
    with pytest.raises(ModelNotFound, match="no model 'b'; it has: a"):
        management.answer(Call(Operation.LOAD, "b"), CallBody())
    (repository / "a" / "1" / "model.echo").unlink()
    with pytest.raises(ModelNotLoadable, match="no model in it"):
        management.answer(Call(Operation.LOAD, "a"), CallBody())
    with pytest.raises(InvalidRequest, match=r"file:1/model\.onnx: .* never taken from a message"):
        management.answer(Call(Operation.LOAD, "a"), CallBody(parameters={"file:1/model.onnx": "AAAA"}))
    with pytest.raises(ModelNotFound, match="not loaded on server w"):
        management.answer(Call(Operation.UNLOAD, "b"), CallBody())
    assert fleet.orders == []


def test_a_repository_that_is_watched(write_echo: WriteEcho) -> None:
    """Only changes are rolled out; what was unloaded stays so until it changes; what has a fault stays as it is."""
    repository = write_echo("a")
    write_echo("b")
    management, fleet = manage(repository)
    assert management.poll() == {}
    write_echo("a", version=2)
    assert list(management.poll(["b"])) == []
    assert list(management.poll()) == ["a"]
    management.answer(Call(Operation.UNLOAD, "b"), CallBody())
    assert management.poll() == {}
    assert not management.serves("b")
    write_echo("b", version=2)
    (repository / "a" / "model.toml").write_text("nonsense = 1\n", encoding="utf-8")
    assert list(management.poll()) == ["b"]
    assert management.serves("a")
    (repository / "a" / "model.toml").unlink()
    (repository / "b").rename(repository / ".b")
    assert list(management.poll()) == ["b"]
    assert fleet.orders[-1] == ("b", [])


def test_statistics_of_one_and_of_all(write_echo: WriteEcho) -> None:
    """They are those of the protocol; a process that hangs is named; an unknown model may be the one that hangs."""
    management, _ = manage(write_echo("a"))
    everything = management.answer(Call(Operation.ALL_STATS), CallBody()).result(0)
    (entry,) = everything["model_stats"]
    assert (entry["name"], entry["version"], entry["inference_count"]) == ("a", "1", 3)
    assert everything["unanswered"] == ("w.9",)
    assert management.answer(Call(Operation.STATS, "a", "2"), CallBody()).result(0)["model_stats"] == []


def test_a_configuration_in_tritons_words(write_echo: WriteEcho) -> None:
    """What the file says, and what was found in the model where it says nothing; it is JSON."""
    repository = write_echo(
        "a", ("text", "BYTES", [-1, 2]), config='parameters = { precision = "fp32" }\n[dynamic_batching]\n'
    )
    (version,) = Repository(repository).models()
    record = json.loads(json.dumps(config_record(version.config, load_model(version, device="cpu").card)))
    assert (record["name"], record["platform"], record["max_batch_size"]) == ("a", "mqinfer_echo", 8)
    assert record["input"] == [{"name": "text", "data_type": "TYPE_STRING", "dims": [2]}]
    assert record["version_policy"] == {"latest": {"num_versions": 1}}
    assert record["parameters"] == {"precision": "fp32"}
    assert record["dynamic_batching"]["preserve_ordering"] is False


@pytest.fixture
def served(write_echo: WriteEcho, unique: Callable[[str], str]) -> Iterator[tuple[str, Fleet]]:
    """Put a server with such processes on an in-memory broker: its URL, and the processes."""
    url = f"memory://{unique('broker')}"
    repository = write_echo("a")
    fleet = Fleet(plan_versions(Repository(repository).models(), template(repository)))
    server = ControlServer(
        template(repository).options,
        lambda name, will, handler: make_link(url, client_id=name, will=will, on_connection=handler),
        Management(template(repository), fleet),
    )
    server.start()
    yield url, fleet
    server.stop()


class Operator:
    """A bare client that keeps every message of the site."""

    def __init__(self, url: str) -> None:
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.link = make_link(url, client_id="operator")
        self.link.open()
        self.link.subscribe(Topics().control_results("operator"), self.messages.put)

    def send(self, path: str, payload: bytes = b"", topic: str | None = None) -> None:
        """Give an order."""
        answer_to = Topics().control_result("operator", "1") if topic is None else topic
        self.link.publish(Message(Topics().control("w", "operator", path), payload, response_topic=answer_to))

    def next(self) -> Any:
        """Wait for the next reply."""
        return json.loads(bytes(self.messages.get(timeout=10).payload))


def test_a_load_that_takes_long_holds_nobody_up(served: tuple[str, Fleet]) -> None:
    """While a model loads other questions are answered; its own reply comes when it is through, or has failed."""
    url, fleet = served
    operator = Operator(url)
    with closing(operator.link):
        fleet.hold = []
        operator.send("repository/models/a/load")
        operator.send("health/live")
        assert operator.next() == {"live": True, "server": "w"}
        (loading,) = fleet.hold
        loading.set_result(None)
        assert operator.next() == {"name": "a", "versions": ["1"], "server": "w"}
        operator.send("repository/models/a/load")
        operator.send("server")
        assert operator.next()["name"] == "mqinfer"
        fleet.hold[-1].set_exception(Cancelled("this server is stopping"))
        assert operator.next() == {"error": "this server is stopping", "code": "cancelled", "server": "w"}


def test_a_defect_costs_one_answer(served: tuple[str, Fleet], monkeypatch: pytest.MonkeyPatch) -> None:
    """What raises unexpectedly is logged, and the next question is answered."""
    url, _ = served
    operator = Operator(url)
    with closing(operator.link):
        monkeypatch.setattr("mqinfer.cloud_worker.supervision.management.index", lambda *_: 1 / 0)
        operator.send("repository/index")
        operator.send("health/live")
        assert operator.next()["live"] is True


def test_a_card_is_taken_back_unless_another_server_serves_the_model(served: tuple[str, Fleet]) -> None:
    """The retained card goes with the last server that serves the model, as the workers' states tell."""
    url, _ = served
    topics = Topics()
    taken_back = threading.Event()
    operator = Operator(url)
    with closing(operator.link):
        other = WorkerState("x.0", WorkerStatus.READY, 1, (ServedModel("a", "1"),))
        operator.link.publish(Message(topics.worker_state("x.0"), other.to_json(), retain=True))
        operator.link.publish(Message(topics.card("a"), b"{}", retain=True))
        operator.link.subscribe(topics.cards(), lambda m: None if m.payload else taken_back.set())
        operator.send("repository/models/a/unload")
        assert operator.next() == {"name": "a", "server": "w"}
        operator.send("repository/models/a/load")
        assert operator.next()["versions"] == ["1"]
        assert not taken_back.is_set()
        stopped = structs.replace(other, status=WorkerStatus.STOPPED)
        operator.link.publish(Message(topics.worker_state("x.0"), stopped.to_json(), retain=True))
        operator.send("repository/models/a/unload")
        assert operator.next() == {"name": "a", "server": "w"}
        assert taken_back.wait(10)


def test_a_server_says_how_it_is(write_echo: WriteEcho, unique: Callable[[str], str]) -> None:
    """`ready`, then `stopped`, both retained under one boot number; `all` is no name for a server."""
    url = f"memory://{unique('broker')}"
    states: queue.SimpleQueue[ServerState] = queue.SimpleQueue()
    repository = write_echo("a")

    def serve(options: WorkerOptions) -> ControlServer:
        management = Management(template(repository), Fleet())
        return ControlServer(options, lambda n, w, h: make_link(url, client_id=n, will=w, on_connection=h), management)

    with closing(make_link(url, client_id="watcher")) as link:
        link.open()
        link.subscribe(Topics().control_states(), lambda m: states.put(ServerState.from_json(m.payload)))
        server = serve(WorkerOptions("w"))
        server.start()
        server.stop()
        first, last = states.get(timeout=10), states.get(timeout=10)
    assert (first.status, last.status) == ("ready", "stopped")
    assert first.incarnation == last.incarnation
    with pytest.raises(BadTopic, match="stands for every server"):
        serve(WorkerOptions("all"))


def test_a_second_server_of_the_name(write_echo: WriteEcho, unique: Callable[[str], str]) -> None:
    """The one that started first is told to end, and says why; the second one's state stands."""
    url = f"memory://{unique('broker')}"
    repository = write_echo("a")
    gave_way = threading.Event()

    def serve(on_failure: Callable[[], None]) -> ControlServer:
        return ControlServer(
            WorkerOptions("w"),
            lambda name, will, handler: make_link(url, client_id=name, will=will, on_connection=handler),
            Management(template(repository), Fleet()),
            on_failure=on_failure,
        )

    elder = serve(gave_way.set)
    elder.start()
    younger = serve(lambda: pytest.fail("the younger one gave way"))
    younger.start()
    try:
        assert gave_way.wait(10)
        assert isinstance(elder.failure, NameTaken)
        elder.stop()
        states: queue.SimpleQueue[ServerState] = queue.SimpleQueue()
        with closing(make_link(url, client_id="watcher")) as link:
            link.open()
            link.subscribe(Topics().control_states(), lambda m: states.put(ServerState.from_json(m.payload)))
            assert states.get(timeout=10).status == "ready"
    finally:
        younger.stop()
