from __future__ import annotations

import json
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from msgspec import structs

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Link, Message, MessageHandler
from mqinfer.client import Client
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.cloud_worker.supervision.child import Phase, ProcessView
from mqinfer.cloud_worker.supervision.control_server import ControlServer
from mqinfer.cloud_worker.supervision.management import Management
from mqinfer.cloud_worker.supervision.metrics import _add_labels
from mqinfer.cloud_worker.supervision.planning import plan_versions
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.records import config_record, index
from mqinfer.cloud_worker.supervision.statistics import ServerStatistics
from mqinfer.cloud_worker.supervision.supervisor import Event, Supervisor
from mqinfer.metrics.samples import Samples
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Problem, Repository, Scan
from mqinfer.models.repository.traffic import Traffic, read_traffic, write_traffic
from mqinfer.protocol.control import Call, CallBody, ModelState, ModelStatistics, Operation, read_path
from mqinfer.protocol.errors import BadTopic, Cancelled, InvalidRequest, ModelNotFound, ModelNotLoadable, NameTaken
from mqinfer.protocol.states import ServedModel, ServerState, WorkerState, WorkerStatus
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.patience import PATIENCE_S

WriteEcho = Callable[..., Path]


class Fleet:
    """A fake fleet: its processes are ready at once, and none of them exists.

    Attributes:
        rollouts: Model and versions of each rollout.
        hold: While it is a list, rollouts do not finish; their futures are added to it.
    """

    def __init__(self, specs: Sequence[ProcessSpec] = ()) -> None:
        self.specs = specs
        self.processes: list[ProcessView] = []
        self.pids: dict[str, int] = {}
        self.rollouts: list[tuple[str, list[int]]] = []
        self.hold: list[Future[None]] | None = None
        self._serve(specs)

    def _serve(self, specs: Sequence[ProcessSpec]) -> None:
        for spec in specs:
            assert spec.found
            self.processes.append(ProcessView(spec, Phase.READY, load_model(spec.found, device="cpu").card))

    def roll_out(self, model: str, specs: Sequence[ProcessSpec], name: str) -> Future[None]:
        """Replace the processes at once."""
        assert name == "w"
        self.rollouts.append((model, [spec.version for spec in specs]))
        self.processes = [view for view in self.processes if view.spec.model != model]
        self._serve(specs)
        future: Future[None] = Future()
        if self.hold is None:
            future.set_result(None)
        else:
            self.hold.append(future)
        return future

    def drain(self, worker: str, *, on: bool = True) -> Future[list[str]]:
        """Drain at once."""
        self.processes = [replace(view, draining=on) for view in self.processes]
        future: Future[list[str]] = Future()
        future.set_result([f"{worker}.0"])
        return future

    def statistics(self) -> Future[ServerStatistics]:
        """Return the statistics of one process; a second one hangs."""
        future: Future[ServerStatistics] = Future()
        future.set_result(ServerStatistics({("a", 1): ModelStatistics(inference_count=3)}, ("w.9",)))
        return future


def template(repository: Path, topics: Topics | None = None) -> ProcessSpec:
    """Make the spec that `mqinfer worker` makes from its options."""
    options = WorkerOptions("w", topics or Topics())
    return ProcessSpec(repository, "", 0, BrokerAddress("localhost"), options, device="cpu")


def manage(repository: Path) -> tuple[Management, Fleet]:
    """Serve all of a repository."""
    fleet = Fleet(plan_versions(Repository(repository).models(), template(repository)))
    return Management(template(repository), cast(Supervisor, fleet)), fleet


def control(
    url: str,
    repository: Path,
    fleet: Fleet,
    name: str = "w",
    wrap: Callable[[Link], Link] = lambda link: link,
    **how: Any,
) -> ControlServer:
    """Make a server on an in-memory broker; `wrap` is put around its link."""
    return ControlServer(
        WorkerOptions(name),
        lambda client, will, handler: wrap(make_link(url, client_id=client, will=will, on_connection=handler)),
        Management(template(repository), cast(Supervisor, fleet)),
        **how,
    )


@contextmanager
def started(server: ControlServer) -> Iterator[ControlServer]:
    """Run a server for the time of this context."""
    server.start()
    try:
        yield server
    finally:
        server.stop()


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
        ([replace(view(Phase.READY), draining=True)], ModelState.UNLOADING, ""),
        ([replace(view(Phase.READY), draining=True), view(Phase.READY)], ModelState.READY, ""),
        ([view(Phase.FAILED, "no file")], ModelState.UNAVAILABLE, "no file"),
        ([view(Phase.WAITING, "exit code -9")], ModelState.UNAVAILABLE, "exit code -9"),
        ([view(Phase.STARTING, "x"), view(Phase.WAITING, "exit code -9")], ModelState.LOADING, "exit code -9; x"),
    ],
)
def test_states_of_a_version(
    write_echo: WriteEcho, processes: list[ProcessView], state: ModelState, reason: str
) -> None:
    """A version with a ready process is READY; otherwise its other processes decide; reasons of failures stay."""
    (entry,) = index(Repository(write_echo("m")).scan(), processes)
    assert (entry.name, entry.version, entry.state, entry.reason) == ("m", "1", state, reason)


def test_the_index_lists_the_repository_and_the_processes() -> None:
    """It holds a running version that left the repository, and a folder that can't be served, in order."""
    found = index(Scan((), (Problem("a", "empty"),)), [view(Phase.READY, version=10), view(Phase.READY, version=9)])
    assert [(entry.name, entry.version) for entry in found] == [("a", ""), ("m", "9"), ("m", "10")]
    assert found[0].to_record() == {"name": "a", "version": "", "state": "UNAVAILABLE", "reason": "empty"}


def test_a_load_reads_the_repository_anew(write_echo: WriteEcho) -> None:
    """The version policy selects the versions, and the reply lists them."""
    management, fleet = manage(write_echo("a"))
    write_echo("a", version=2)
    assert management.execute(Call(Operation.LOAD, "a"), CallBody()).result(0) == {"name": "a", "versions": ["2"]}
    assert fleet.rollouts == [("a", [2])]
    assert management.execute(Call(Operation.MODEL_READY, "a", "1"), CallBody()).result(0)["ready"] is False
    assert management.execute(Call(Operation.METADATA, "a"), CallBody()).result(0)["versions"] == ["2"]


def test_a_model_with_capitals(
    write_echo: WriteEcho, serve: Callable[..., Worker], unique: Callable[[str], str]
) -> None:
    """A model of a Triton repository keeps its name: it is found, loaded by name, served, and listed in the state."""
    name, url = "Inception_V3", f"memory://{unique('broker')}"
    repository = write_echo(name)
    management, fleet = manage(repository)
    assert management.execute(read_path(f"repository/models/{name}/load"), CallBody()).result(10)
    assert fleet.rollouts == [(name, [1])]
    worker = serve(url, repository, model=name)
    with Client(url) as client:
        assert client.card(name).name == name
        result = client.infer(name, {"x": np.ones((1, 4), np.float32)})
        assert (result.outcome, result.model_name, result.worker) == (Outcome.OK, name, worker.name)
        with pytest.raises(ModelNotFound):
            client.card(name.lower(), timeout=0.1)


def test_loads_that_are_refused(write_echo: WriteEcho) -> None:
    """An unknown model, a broken folder and a model within the message are refused; no process changes."""
    repository = write_echo("a")
    management, fleet = manage(repository)
    with pytest.raises(ModelNotFound, match="no model 'b'; it has: a"):
        management.execute(Call(Operation.LOAD, "b"), CallBody())
    (repository / "a" / "1" / "model.echo").unlink()
    with pytest.raises(ModelNotLoadable, match="no model in it"):
        management.execute(Call(Operation.LOAD, "a"), CallBody())
    with pytest.raises(InvalidRequest, match=r"file:1/model\.onnx: .* never taken from a message"):
        management.execute(Call(Operation.LOAD, "a"), CallBody(parameters={"file:1/model.onnx": "AAAA"}))
    with pytest.raises(ModelNotFound, match="not loaded on server w"):
        management.execute(Call(Operation.UNLOAD, "b"), CallBody())
    assert fleet.rollouts == []


def test_polling_the_repository(write_echo: WriteEcho) -> None:
    """Only changes are rolled out; an unloaded model stays so until it changes; a broken one stays as it is."""
    repository = write_echo("a")
    write_echo("b")
    management, fleet = manage(repository)
    assert management.poll() == {}
    write_echo("a", version=2)
    assert list(management.poll(["b"])) == []
    assert list(management.poll()) == ["a"]
    management.execute(Call(Operation.UNLOAD, "b"), CallBody())
    assert management.poll() == {}
    assert not management.serves("b")
    write_echo("b", version=2)
    (repository / "a" / "model.toml").write_text("nonsense = 1\n", encoding="utf-8")
    assert list(management.poll()) == ["b"]
    assert management.serves("a")
    (repository / "a" / "model.toml").unlink()
    (repository / "b").rename(repository / ".b")
    assert list(management.poll()) == ["b"]
    assert fleet.rollouts[-1] == ("b", [])


def test_statistics_of_one_and_of_all(write_echo: WriteEcho) -> None:
    """The reply follows the protocol; a process that hangs is named, and may serve the unknown version."""
    management, _ = manage(write_echo("a"))
    everything = management.execute(Call(Operation.ALL_STATS), CallBody()).result(0)
    (entry,) = everything["model_stats"]
    assert (entry["name"], entry["version"], entry["inference_count"]) == ("a", "1", 3)
    assert everything["unanswered"] == ("w.9",)
    assert management.execute(Call(Operation.STATS, "a", "2"), CallBody()).result(0)["model_stats"] == []


def test_a_configuration_with_tritons_keys(write_echo: WriteEcho) -> None:
    """It holds the keys of the file, and what the model itself states for the others; it is JSON."""
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
    """Start a server with a fake fleet on an in-memory broker; return the URL and the fleet."""
    url = f"memory://{unique('broker')}"
    repository = write_echo("a")
    fleet = Fleet(plan_versions(Repository(repository).models(), template(repository)))
    with started(control(url, repository, fleet)):
        yield url, fleet


class Operator:
    """A bare client that collects its control replies."""

    def __init__(self, url: str) -> None:
        self.messages: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self.link = make_link(url, client_id="operator")
        self.link.open()
        self.link.subscribe(Topics().control_result.filter(client="operator"), self.messages.put)

    def send(
        self,
        path: str,
        payload: bytes = b"",
        topic: str | None = None,
        *,
        retain: bool = False,
        request: bytes | None = None,
    ) -> None:
        """Publish a control request."""
        reply_to = Topics().control_result("operator", "1") if topic is None else topic
        to = Topics().control("w", "operator", path)
        self.link.publish(Message(to, payload, response_topic=reply_to, retain=retain, correlation_data=request))

    def next(self) -> Any:
        """Wait for the next reply."""
        return json.loads(bytes(self.messages.get(timeout=PATIENCE_S).payload))


def test_a_slow_load_delays_no_other_request(served: tuple[str, Fleet]) -> None:
    """Other requests get their replies while a model loads; its own reply follows when it has loaded or failed."""
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


def test_a_defect_costs_one_reply(served: tuple[str, Fleet], monkeypatch: pytest.MonkeyPatch) -> None:
    """An unexpected error is logged, its request is told, and the next one gets its reply."""
    url, _ = served
    operator = Operator(url)
    with closing(operator.link):
        monkeypatch.setattr("mqinfer.cloud_worker.supervision.management.index", lambda *_: 1 / 0)
        operator.send("repository/index")
        operator.send("health/live")
        assert operator.next()["code"] == "internal"
        assert operator.next()["live"] is True


def test_a_reply_that_was_lost_is_sent_again(served: tuple[str, Fleet]) -> None:
    """Whoever asks for it by the call's Correlation Data gets it where it went, and nothing is executed twice."""
    url, fleet = served
    operator, rollouts = Operator(url), len(fleet.rollouts)
    with closing(operator.link):
        fleet.hold = []
        operator.send("repository/models/a/load", request=b"1")
        operator.send("reply", topic="", request=b"1")  # it is still to come
        operator.send("health/live")
        assert operator.next()["live"] is True
        fleet.hold[0].set_result(None)
        first = operator.next()
        operator.send("reply", topic="", request=b"1")
        assert operator.next() == first == {"name": "a", "versions": ["1"], "server": "w"}
        for unknown in (b"", b"2"):
            operator.send("reply", topic="", request=unknown)
        message = operator.messages.get(timeout=PATIENCE_S)
        assert (message.topic, message.correlation_data) == (Topics().control_result("operator", "32"), b"2")
        assert b"has not received the call" in bytes(message.payload)
        assert len(fleet.rollouts) == rollouts + 1


def test_the_oldest_replies_are_forgotten(served: tuple[str, Fleet]) -> None:
    """A server keeps those of the last 256 calls."""
    url, _ = served
    operator = Operator(url)
    with closing(operator.link):
        for number in range(300):
            operator.send("repository/models/b/load", request=b"%d" % number)
            assert operator.next()["code"] == "model_not_found"
        for number, code in ((43, "rejected"), (44, "model_not_found")):
            operator.send("reply", topic="", request=b"%d" % number)
            assert operator.next()["code"] == code


def test_a_full_queue_of_orders(served: tuple[str, Fleet], monkeypatch: pytest.MonkeyPatch) -> None:
    """While one question is answered 256 more are kept, and the rest are rejected at once; the kept ones follow."""
    url, _ = served
    operator, entered, go_on = Operator(url), threading.Event(), threading.Event()

    def answer(*_: object) -> list[dict[str, str]]:
        entered.set()
        assert go_on.wait(PATIENCE_S)
        return []

    monkeypatch.setattr("mqinfer.cloud_worker.supervision.management.index", answer)
    with closing(operator.link):
        operator.send("repository/index")
        assert entered.wait(PATIENCE_S)
        for _ in range(300):
            operator.send("repository/index")
        assert {operator.next()["code"] for _ in range(44)} == {"rejected"}
        go_on.set()
        assert [operator.next() for _ in range(257)] == [[]] * 257


def test_no_large_order_is_queued(served: tuple[str, Fleet]) -> None:
    """Of one above 64 KiB no more waits for the control thread than what is refused: 256 of 64 MiB would be 16 GiB."""
    operator = Operator(served[0])
    with closing(operator.link):
        operator.send("repository/index", b" " * 1_000_000)
        assert operator.next()["error"].startswith("control request: 65537 bytes")


def test_a_card_is_removed_unless_another_server_serves_the_model(served: tuple[str, Fleet]) -> None:
    """The retained card is removed with the last server that serves the model, by the workers' states."""
    url, _ = served
    topics = Topics()
    removed = threading.Event()
    operator = Operator(url)
    with closing(operator.link):
        other = WorkerState("x.0", WorkerStatus.READY, 1, (ServedModel("a", "1"),))
        operator.link.publish(Message(topics.worker_state("x.0"), other.to_json(), retain=True))
        operator.link.publish(Message(topics.card("a"), b"{}", retain=True))
        operator.link.subscribe(topics.card.filter(), lambda m: None if m.payload else removed.set())
        operator.send("repository/models/a/unload")
        assert operator.next() == {"name": "a", "server": "w"}
        operator.send("repository/models/a/load")
        assert operator.next()["versions"] == ["1"]
        assert not removed.is_set()
        stopped = structs.replace(other, status=WorkerStatus.STOPPED)
        operator.link.publish(Message(topics.worker_state("x.0"), stopped.to_json(), retain=True))
        operator.send("repository/models/a/unload")
        assert operator.next() == {"name": "a", "server": "w"}
        assert removed.wait(PATIENCE_S)


def careless(link: Link) -> Link:
    """Make the broker of a link ignore Retain Handling, as a broker of MQTT 3.1.1 does."""
    subscribe = link.subscribe

    def without_handling(
        topic_filter: str,
        handler: MessageHandler,
        *,
        share: str | None = None,
        retained: bool = True,  # noqa: ARG001 - ignored
    ) -> None:
        subscribe(topic_filter, handler, share=share)

    link.subscribe = without_handling  # type: ignore[method-assign]
    return link


def test_retained_orders_are_dropped(write_echo: WriteEcho, unique: Callable[[str], str]) -> None:
    """An order that the broker kept is not executed by a server that starts later; it is counted."""
    url, repository = f"memory://{unique('broker')}", write_echo("a")
    operator, fleet = Operator(url), Fleet()
    with closing(operator.link):
        operator.send("repository/models/a/load", b"{}", retain=True)
        with started(control(url, repository, fleet, wrap=careless)) as server:
            operator.send("health/live")
            assert operator.next() == {"live": True, "server": "w"}
            assert (fleet.rollouts, dict(server.dropped)) == ([], {"retained": 1})
            operator.send("repository/models/a/load")
            assert operator.next()["versions"] == ["1"]


def test_a_state_counts_for_the_worker_of_its_topic_alone(write_echo: WriteEcho, unique: Callable[[str], str]) -> None:
    """A state that names another worker than its topic is dropped; so is one that can't be read."""
    url, repository, removed = f"memory://{unique('broker')}", write_echo("a"), threading.Event()
    topics, operator = Topics(), Operator(url)
    fleet = Fleet(plan_versions(Repository(repository).models(), template(repository)))
    with closing(operator.link), started(control(url, repository, fleet)) as server:
        forged = WorkerState("x.1", WorkerStatus.READY, 1, (ServedModel("a", "1"),)).to_json()
        for payload in (forged, b"{}"):
            operator.link.publish(Message(topics.worker_state("x.0"), payload, retain=True))
        operator.link.publish(Message(topics.card("a"), b"{}", retain=True))
        operator.link.subscribe(topics.card.filter(), lambda m: None if m.payload else removed.set())
        operator.send("repository/models/a/unload")
        assert operator.next() == {"name": "a", "server": "w"}
        assert removed.wait(PATIENCE_S), "nobody else serves it, whatever the forged state says"
        assert dict(server.dropped) == {"state": 2}


def test_a_server_publishes_its_state(write_echo: WriteEcho, unique: Callable[[str], str]) -> None:
    """It asks for its name, then `ready` and `stopped`, all under one boot number; `all` is no name for a server."""
    url = f"memory://{unique('broker')}"
    states: queue.SimpleQueue[ServerState] = queue.SimpleQueue()
    repository = write_echo("a")

    with closing(make_link(url, client_id="watcher")) as link:
        link.open()
        link.subscribe(Topics().control_state.filter(), lambda m: states.put(ServerState.from_json(m.payload)))
        with started(control(url, repository, Fleet())):
            pass
        asked, first, last = (states.get(timeout=PATIENCE_S) for _ in range(3))
    assert (asked.status, first.status, last.status) == ("claiming", "ready", "stopped")
    assert first.incarnation == last.incarnation
    with pytest.raises(BadTopic, match="reserved for requests to every server"):
        control(url, repository, Fleet(), "all")


def test_a_second_server_of_the_name(write_echo: WriteEcho, unique: Callable[[str], str]) -> None:
    """It is refused, and the first one goes on; where it was to take over, the first one fails with NameTaken."""
    url = f"memory://{unique('broker')}"
    repository = write_echo("a")
    elder_failed = threading.Event()

    elder = control(url, repository, Fleet(), on_failure=elder_failed.set)
    elder.start()
    with pytest.raises(NameTaken, match="another process has the name 'w'; give each server a name of its own"):
        control(url, repository, Fleet(), on_failure=lambda: pytest.fail("it never ran")).start()
    assert not elder_failed.is_set()
    younger = control(url, repository, Fleet(), on_failure=lambda: pytest.fail("the younger one failed"))
    younger.start(take_over=True)
    try:
        assert elder_failed.wait(PATIENCE_S)
        assert isinstance(elder.failure, NameTaken)
        elder.stop()
        states: queue.SimpleQueue[ServerState] = queue.SimpleQueue()
        with closing(make_link(url, client_id="watcher")) as link:
            link.open()
            link.subscribe(Topics().control_state.filter(), lambda m: states.put(ServerState.from_json(m.payload)))
            assert states.get(timeout=PATIENCE_S).status == "ready"
    finally:
        younger.stop()


def test_states_of_processes_that_are_gone_are_removed(write_echo: WriteEcho, unique: Callable[[str], str]) -> None:
    """A `lost` of a process that the server has no more is removed, not that of another server or of one it has."""
    url, topics = f"memory://{unique('broker')}", Topics()
    repository = write_echo("a")
    _, fleet = manage(repository)

    def lost(worker: str) -> Message:
        state = WorkerState(worker, WorkerStatus.LOST, 1, (ServedModel("a", "1"),))
        return Message(topics.worker_state(worker), state.to_json(), retain=True)

    with closing(make_link(url, client_id="watcher")) as link:
        link.open()
        for worker in ("w.0", "w.7", "x.0"):
            link.publish(lost(worker))
        removed: queue.SimpleQueue[str] = queue.SimpleQueue()
        link.subscribe(topics.worker_state.filter(), lambda m: None if m.payload else removed.put(m.topic))
        with started(control(url, repository, fleet)) as server:
            assert removed.get(timeout=PATIENCE_S) == topics.worker_state(
                "w.7"
            )  # of an earlier run with more instances
            fleet.processes.clear()
            server.report(Event("stopped", "w.0", "a version 1"))  # was killed, since it did not drain
            assert removed.get(timeout=PATIENCE_S) == topics.worker_state("w.0")
            link.publish(lost("w.9"))
            assert removed.get(timeout=PATIENCE_S) == topics.worker_state("w.9")


def test_labels_are_metrics(write_echo: WriteEcho) -> None:
    """Each labelled version's part of the requests without a version; without a split the stable one gets all."""
    for version in (1, 2):
        repository = write_echo("m", version=version)

    def ratios() -> dict[tuple[str, str], float]:
        samples, (_, fleet) = Samples(), manage(repository)
        _add_labels(samples, fleet.processes)
        found = [sample for family in samples.families() for sample in family.samples]
        assert {sample.name for sample in found} <= {"mqinfer_model_traffic_ratio"}
        return {(sample.labels["label"], sample.labels["version"]): sample.value for sample in found}

    assert ratios() == {}
    write_traffic(repository / "m", Traffic(1, 2, 10))
    assert ratios() == {("stable", "1"): 0.9, ("canary", "2"): 0.1}
    write_traffic(repository / "m", Traffic(1, 2))
    assert ratios() == {("stable", "1"): 1, ("canary", "2"): 0}


@pytest.mark.parametrize(
    ("parameters", "why"),
    [
        ({}, "expected parameters of stable, canary, share, shadow, shadow_share, watch, tolerance"),
        ({"stables": 1}, "'stables' given"),
        ({"shadow": "x"}, "'shadow' must be an integer"),
        ({"share": True}, "'share' must be an integer"),
        ({"tolerance": "1"}, "'tolerance' must be a"),
        ({"watch": 1}, "'watch' must be a boolean"),
    ],
)
def test_parameters_of_traffic(write_echo: WriteEcho, parameters: dict[str, Any], why: str) -> None:
    """What is unknown or no value of its kind is refused by its name."""
    management, _ = manage(write_echo("m"))
    with pytest.raises(InvalidRequest, match=why):
        management.execute(Call(Operation.TRAFFIC, "m"), CallBody(parameters=parameters))


def test_versions_of_traffic_may_be_strings(write_echo: WriteEcho) -> None:
    """Numbers may be written as in model versions."""
    for version in (1, 2):
        repository = write_echo("m", version=version)
    management, _ = manage(repository)
    management.execute(Call(Operation.TRAFFIC, "m"), CallBody(parameters={"stable": "1", "canary": "2", "share": "10"}))
    assert read_traffic(repository / "m") == Traffic(1, 2, 10, previous=2)


def test_polling_finds_new_labels(write_echo: WriteEcho) -> None:
    """A share that was edited in the file is published, once, and no process is planned anew for it."""
    for version in (1, 2):
        repository = write_echo("m", version=version)
    write_traffic(repository / "m", Traffic(1, 2, 10))
    management, fleet = manage(repository)
    assert management.poll() == {}
    write_traffic(repository / "m", Traffic(1, 2, 20))
    assert list(management.poll()) == ["m"]
    assert fleet.rollouts == [("m", [1, 2])]
    assert management.poll() == {}
