from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from typer.testing import CliRunner

from mqinfer import Client
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.cli.app import app
from mqinfer.client.aio import AsyncClient
from mqinfer.client.announcer import ClientAnnouncer
from mqinfer.client.connection import LiveRegistry, connect
from mqinfer.client.options import ClientOptions
from mqinfer.client.registry import Registry
from mqinfer.client.request import make_request
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.metrics.lag import Lag, add_lag, lag, to_record
from mqinfer.metrics.samples import Samples
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.envelope import decode_response
from mqinfer.protocol.errors import NameTaken
from mqinfer.protocol.states import (
    ClientState,
    PendingRequests,
    ProcessStatus,
    ServedModel,
    WorkerState,
    WorkerStatus,
)
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.asynchronous import in_loop
from tests.clock import Clock
from tests.patience import LONG_SILENCE, PATIENCE_S, wait_until

PATIENT = ClientOptions(silence=LONG_SILENCE, patience=300)
ROWS = {"x": np.zeros((1, 4), np.float32)}


def client(name: str, *pending: PendingRequests, status: ProcessStatus = ProcessStatus.READY, boot: int = 1) -> Any:
    """Return the arguments of `put_client`."""
    return name, ClientState(name, status, boot, pending=pending if status is ProcessStatus.READY else None)


def worker(name: str, depth: int, status: WorkerStatus = WorkerStatus.READY, model: str = "seg") -> Any:
    """Return the arguments of `put_worker`."""
    return name, WorkerState(name, status, 1, (ServedModel(model, "1"),), capacity=8, depth=depth)


def test_sums_of_clients_and_workers() -> None:
    """Queued requests add up; of those in flight and those at workers the larger sum counts, not both."""
    known = Registry(Clock(100.0))
    known.put_client(*client("car", PendingRequests("seg", 5, 3, 200), PendingRequests("det", 0, 1, 20)))
    known.put_client(*client("gateway", PendingRequests("seg", 1, 4, 900)))
    known.put_client(*client("idle"))
    known.put_worker(*worker("w.0", 4))
    known.put_worker(*worker("w.1", 2, WorkerStatus.DRAINING))
    known.put_worker(*worker("w.2", 99, WorkerStatus.LOST))
    known.put_worker(*worker("w.3", 6, model="quiet"))
    assert lag(known, 100.0) == {
        "det": Lag(1, 20, 0, 0),
        "quiet": Lag(6, 0, 1, 8),
        "seg": Lag(6 + 7, 900, 1, 8),
    }
    known.put_worker(*worker("w.0", 9))  # clients without a state have sent it something
    assert lag(known, 100.0)["seg"].pending == 6 + 9 + 2


def test_ages_grow_between_publications() -> None:
    """By the reader's own clock; a new state sets them anew."""
    known = Registry(clock := Clock(100.0))
    known.put_client(*client("car", PendingRequests("seg", 1, 0, 500)))
    clock.now += 1.5
    assert lag(known, clock.now)["seg"].oldest_ms == 2000
    known.put_client(*client("car", PendingRequests("seg", 1, 0, 30)))
    assert lag(known, clock.now)["seg"].oldest_ms == 30


def test_what_one_client_states_is_bounded() -> None:
    """It names at most eight models that nobody has, and claims 64 requests at most while it sends nothing."""
    known = Registry(Clock(100.0))
    known.put_card("seg", ModelCard(name="seg", versions=("1",), platform="onnx_onnxv1"))
    made_up = [PendingRequests(f"m{number}", 1) for number in range(5000)]
    most = (1 << 63) - 1
    known.put_client(*client("car", *made_up, PendingRequests("seg", most, most, most)))
    found = lag(known, 100.0)
    assert len(found) == 9
    assert sum(each.pending for each in found.values()) == 8 + 64
    assert found["seg"].oldest_ms == 30 * 86_400_000


def test_a_claim_counts_as_far_as_its_client_has_sent() -> None:
    """Eight times what workers have accepted of it, in whatever pieces it states it; what others send is no proof."""
    known = Registry(Clock(100.0))
    most = (1 << 63) - 1
    for name in ("liar", "honest"):
        known.put_client(*client(name, *[PendingRequests("seg", most, 3)] * 3))
    name, state = worker("w.0", 0)
    known.put_worker(name, replace(state, clients={"honest": 25}))
    known.put_worker("w.1", replace(state, worker="w.1", clients={"honest": 25, "other": 1000}))
    assert lag(known, 100.0)["seg"].pending == 64 + 8 * 50
    known.put_worker("w.2", replace(state, worker="w.2"))  # of an earlier version: it does not state whom it served
    assert lag(known, 100.0)["seg"].pending == 2 << 20


def test_what_all_clients_name_is_bounded() -> None:
    """Sixty-four models that nobody has, whoever names them; one client with many names leaves others theirs."""
    known = Registry(Clock(100.0))
    for number in range(100):
        names = [f"m{number}-{which}" for which in range(8)] if number < 20 else ["wanted"]
        known.put_client(*client(f"car-{number}", *(PendingRequests(name, 1) for name in names)))
    found = lag(known, 100.0)
    assert len(found) == 64
    assert found["wanted"].pending == 80
    assert all(f"m{number}-0" in found for number in range(20))


def test_who_is_gone_has_nothing_pending() -> None:
    """A lost client, one that stopped, one whose state was removed; the will of an earlier process changes nothing."""
    known = Registry(Clock(100.0))
    for gone in (client("car", status=ProcessStatus.LOST), client("car", status=ProcessStatus.STOPPED), ("car", None)):
        known.put_client(*client("car", PendingRequests("seg", 3)))
        assert lag(known, 100.0)["seg"].pending == 3
        known.put_client(*client("car", status=ProcessStatus.LOST, boot=7))
        known.put_client(*client("car", status=ProcessStatus.CLAIMING, boot=8))
        assert lag(known, 100.0)["seg"].pending == 3
        known.put_client(*gone)
        assert lag(known, 100.0) == {}


def test_a_model_without_workers_is_listed() -> None:
    """With its card alone, so that what was scaled to zero still has a number."""
    known = Registry(Clock(100.0))
    known.put_card("seg", ModelCard(name="seg", versions=("1",), platform="onnx_onnxv1"))
    assert to_record(lag(known, 100.0)) == {"seg": {"pending": 0, "oldest_ms": 0, "workers": 0, "capacity": 0}}


def test_only_models_that_exist_get_series() -> None:
    """Those with a card or a worker: a client that makes names up gets none of them into a scrape."""
    known = Registry(Clock(100.0))
    known.put_card("card", ModelCard(name="card", versions=("1",), platform="onnx_onnxv1"))
    known.put_worker(*worker("w.0", 1, model="worked"))
    known.put_client(*client("car", *(PendingRequests(model, 1) for model in ("made-up", "card", "worked"))))
    known.finish()
    live: Any = SimpleNamespace(known=known, is_complete=True)
    samples = Samples()
    add_lag(samples, live)
    models = {sample.labels["model"] for family in samples.families() for sample in family.samples}
    assert models == {"card", "worked"}


@dataclass
class Gate:
    """A model whose runs wait until they are let through."""

    model: LoadedModel
    permits: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        """Put the gate before the backend."""
        backend: Any = self.model.backend
        infer = backend.infer

        def wait_and_infer(*arguments: Any) -> Any:
            assert self.permits.acquire(timeout=300)
            return infer(*arguments)

        backend.infer = wait_and_infer

    def let_through(self, runs: int) -> None:
        """Let so many runs through."""
        self.permits.release(runs)


@dataclass
class Observer:
    """An operator's view: the registry of another client, which watches clients, and what went over the broker."""

    requester: Requester
    registry: LiveRegistry
    changed: threading.Condition = field(default_factory=threading.Condition)
    results: int = 0

    def __post_init__(self) -> None:
        """Follow what the broker keeps, and count the results."""
        self.registry.watches_clients = True
        self.registry.watch(self._on_change)
        self.registry.follow()

    def _on_change(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def on_result(self, message: Message) -> None:
        """Count a result; a worker that starts into a backlog may send a request back as `rejected`, which is none."""
        self.results += decode_response(message.payload).outcome is Outcome.OK

    def now(self, model: str) -> Lag:
        """Return the lag of a model."""
        return lag(self.registry.known, time.monotonic()).get(model, Lag())

    def wait(self, model: str, pending: int) -> Lag:
        """Wait until so much is pending."""
        with self.changed:
            assert self.changed.wait_for(lambda: self.now(model).pending == pending, 120), self.now(model)
        return self.now(model)


@pytest.fixture
def observer(broker_url: str, unique: Callable[[str], str]) -> Iterator[Observer]:
    """An operator on the session's Mosquitto, below a root of its own."""
    topics = Topics(unique("root"))
    requester = connect(broker_url, unique("operator"), topics)
    watcher = make_link(broker_url, client_id=unique("watcher"))
    watcher.open()
    made = Observer(requester, LiveRegistry(requester))
    watcher.subscribe(f"{topics.root}/results/+/+/+", made.on_result, retained=False)
    yield made
    watcher.close()
    requester.close()


def submit(requester: Requester, count: int) -> list[Future[InferResult]]:
    """Send requests."""
    futures: list[Future[InferResult]] = [Future() for _ in range(count)]
    for future in futures:
        requester.submit(make_request("echo", ROWS, {}), 300, future.set_result)
    return futures


@pytest.mark.broker
def test_lag_rises_and_falls_with_a_backlog(
    broker_url: str,
    observer: Observer,
    serve: Callable[..., Any],
    write_echo: Callable[..., Path],
    unique: Callable[[str], str],
) -> None:
    """Before there is a worker, while it works, and after; each number is that of the requests without a result."""
    topics = observer.requester.topics
    (found,) = Repository(write_echo("echo", config="max_batch_size = 0\n")).models()
    gate = Gate(load_model(found, device="cpu"))
    announcer = ClientAnnouncer(name := unique("gateway"), topics, "test", refresh_s=0.05)
    requester = connect(broker_url, name, topics, PATIENT, announcer=announcer)
    assert observer.now("echo") == Lag()
    futures = submit(requester, 25)
    first = observer.wait("echo", 25)
    assert (first.workers, first.capacity) == (0, 0)
    futures += submit(requester, 5)
    assert observer.wait("echo", 30).oldest_ms >= first.oldest_ms

    worker = serve(
        broker_url, gate.model, topics=topics, capacity=8, inline_s=0.0
    )  # so that the gate keeps no link waiting
    gate.let_through(12)
    seen = observer.wait("echo", 18)
    assert (seen.workers, seen.capacity) == (1, 8)
    wait_until(lambda: sum(not future.done() for future in futures) == 18)
    wait_until(lambda: observer.results >= 12)
    assert observer.results == 12
    gate.let_through(18)
    assert observer.wait("echo", 0).oldest_ms == 0
    assert {future.result(PATIENCE_S).outcome for future in futures} == {"ok"}

    worker.refresh()
    submit(requester, 100)
    observer.wait("echo", 100)  # more than count of a client that has sent nothing
    requester.link.cut()  # type: ignore[attr-defined]  # a real link: its will says that it is lost
    gate.let_through(100)
    observer.wait("echo", 0)
    announcer.presence.end()
    requester.close()
    wait_until(lambda: observer.registry.known.clients == {})


@pytest.mark.broker
def test_the_command(broker_url: str, unique: Callable[[str], str]) -> None:
    """A Python client that announces itself counts: in JSON as the gateway's, and in the table of models."""
    topics = Topics(unique("root"))

    def run(*options: str) -> str:
        done = CliRunner().invoke(app, ["status", "--broker", broker_url, "--root", topics.root, *options])
        assert done.exit_code == 1, done.output  # nothing is served
        return done.stdout

    seen = threading.Event()
    link = make_link(broker_url, client_id=unique("watcher"))
    link.open()

    def look(message: Message) -> None:
        if b'"queued"' in bytes(message.payload):
            seen.set()

    link.subscribe(topics.client_state.filter(), look)
    with Client(broker_url, root=topics.root, options=PATIENT, announce="planner") as planner:
        future = planner.submit("seg", ROWS, timeout=300)
        assert seen.wait(120)
        found = json.loads(run("--json"))["lag"]["seg"]
        assert found.pop("oldest_ms") > 0
        assert found == {"pending": 1, "workers": 0, "capacity": 0}
        assert ["seg", "-", "-", "0/0", "-", "-", "1"] in [line.split()[:7] for line in run().splitlines()]
        future.cancel()
    link.close()
    assert json.loads(run("--json"))["lag"] == {}


@pytest.mark.broker
@in_loop
async def test_the_gateways_answer(broker_url: str, unique: Callable[[str], str]) -> None:
    """The same JSON over HTTP; 503 while it is not known, since a zero would scale the workers down."""
    from aiohttp.test_utils import TestClient, TestServer

    from mqinfer.client.control import AsyncControl
    from mqinfer.gateway.access import Access
    from mqinfer.gateway.core import Core
    from mqinfer.gateway.metrics import make_metrics_app
    from mqinfer.gateway.settings import GatewaySettings

    topics = Topics(unique("root"))
    state = ClientState("car", ProcessStatus.READY, 1, pending=(PendingRequests("seg", 2, 3, 10),))
    link = make_link(broker_url, client_id=unique("car"))
    link.open()
    link.publish(Message(topics.client_state("car"), state.to_json(), retain=True))
    link.close()

    async with AsyncClient(broker_url, root=topics.root, announce="gateway") as gateway:
        app = make_metrics_app(Core(gateway, AsyncControl(gateway)), Access(), GatewaySettings())
        async with TestClient(TestServer(app)) as http:
            assert (await http.get("/lag")).status == 503
            gateway.connection.registry.watches_clients = True
            assert await gateway.connection.registry.wait_until_complete()
            answer = await http.get("/lag")
            assert answer.status == 200
            found = await answer.json()
            assert found["seg"].pop("oldest_ms") >= 10
            assert found == {"seg": {"pending": 5, "workers": 0, "capacity": 0, "wanted": 1}}


@pytest.mark.broker
@in_loop
async def test_two_gateways_of_one_name(broker_url: str, unique: Callable[[str], str]) -> None:
    """The second is refused, also while the first watches all clients over one filter."""
    topics, name = Topics(unique("root")), unique("gateway")
    async with AsyncClient(broker_url, name=name, root=topics.root, announce="gateway") as first:
        first.connection.registry.watches_clients = True
        assert await first.connection.registry.wait_until_complete()
        with pytest.raises(NameTaken, match=name):
            async with AsyncClient(broker_url, name=name, root=topics.root, announce="gateway"):
                pass
