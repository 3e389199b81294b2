"""Fixtures for the tests of the whole path with real parts."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.client.connection import connect, random_name
from mqinfer.client.control import ControlClient
from mqinfer.client.options import ClientOptions
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.autoscaling import Autoscaler, Bounds
from mqinfer.cloud_worker.supervision.canary import CanaryWatch
from mqinfer.cloud_worker.supervision.control_server import ControlServer
from mqinfer.cloud_worker.supervision.management import Management
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec, serve
from mqinfer.cloud_worker.supervision.supervisor import Event, Supervisor
from mqinfer.edge_agent.reporting.report import SessionReport
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.models.repository import Repository
from mqinfer.protocol.topics import Topics
from tests.settings import run_session, settings_of

Serve = Callable[[Path], Topics]
Replayed = Callable[..., SessionReport]

SHARED = Path(__file__).parents[3] / "shared" / "data"


@pytest.fixture
def shared_data() -> Path:
    """Folder of real data, which is not part of the project."""
    if not SHARED.is_dir():
        pytest.skip("the folder ../shared/data is not here")
    return SHARED


@pytest.fixture
def serving(broker_url: str, unique: Callable[[str], str]) -> Iterator[Serve]:
    """Serve a repository on the session's Mosquitto, with a topic root for each test."""
    with ExitStack() as stack:

        def serve_all(repository: Path) -> Topics:
            topics = Topics(unique("test"))
            address = BrokerAddress.parse(broker_url)
            template = ProcessSpec(repository, "", 0, address, WorkerOptions(unique("worker"), topics))
            for spec in plan(Repository(repository), template):
                stack.callback(serve(spec).stop)
            return topics

        yield serve_all


@dataclass(frozen=True, slots=True)
class Server:
    """A server as `mqinfer worker` starts it, and an operator's client."""

    name: str
    topics: Topics
    template: ProcessSpec
    supervisor: Supervisor
    control: ControlClient
    events: SimpleQueue[Event]


@pytest.fixture
def managed(broker_url: str, unique: Callable[[str], str]) -> Iterator[Callable[..., Server]]:
    """Start servers on the session's Mosquitto: `managed(repository, topics, load=False, poll=1.0, capacity=64)`.

    Further arguments are fields of ProcessSpec.
    """
    with ExitStack() as stack:

        def start(
            repository: Path,
            topics: Topics | None = None,
            *,
            load: bool = True,
            poll: float | None = None,
            autoscale: str = "",
            instances: int | None = None,
            capacity: int = 64,
            url: str = broker_url,
            **fields: Any,
        ) -> Server:
            topics = topics or Topics(unique("test"))
            address = BrokerAddress.parse(url)
            options = WorkerOptions(unique("server"), topics, capacity=capacity)
            template = ProcessSpec(repository, "", 0, address, options, device="cpu", **fields)
            events: SimpleQueue[Event] = SimpleQueue()
            bounds = Bounds.parse(autoscale) if autoscale else None
            instances = max(1, bounds.least) if bounds else instances
            specs = plan(Repository(repository), template, instances=instances) if load else []
            supervisor = Supervisor(specs, may_idle=True)
            management = Management(template, supervisor, instances, scales=bounds is not None)
            server = ControlServer(
                template.options,
                lambda name, will, handler: make_link(address, client_id=name, will=will, on_connection=handler),
                management,
                follows_clients=bounds is not None,
            )
            server.repeat(0.2, CanaryWatch(supervisor, management).look)
            if bounds:
                server.repeat(0.2, Autoscaler(bounds, template.options.name, management, server.known).look)

            def report(event: Event) -> None:
                server.report(event)
                events.put(event)

            supervisor.on_event = report
            if poll is not None:
                server.poll(poll)
            server.start()
            stack.callback(server.stop)
            thread = threading.Thread(target=supervisor.run, name="supervisor")
            thread.start()
            stack.callback(thread.join)
            stack.callback(supervisor.stop)
            control = stack.enter_context(ControlClient(address, root=topics.root))
            return Server(template.options.name, topics, template, supervisor, control, events)

        yield start


@pytest.fixture
def replayed(broker_url: str) -> Replayed:
    """Replay a source through the session's Mosquitto against a served model."""

    def run(source: Path, topics: Topics, model: str, /, **settings: object) -> SessionReport:
        requester = connect(broker_url, random_name(), topics, ClientOptions(window=4))
        try:
            options = ReplayOptions(model, window=4)
            request = settings_of(source, options, **settings)
            return run_session(request, requester, broker_url)
        finally:
            requester.close()

    return run
