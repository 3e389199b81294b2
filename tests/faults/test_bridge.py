"""Faults of two bridges of a site, with a Mosquitto or NATS at their far end: cuts, a bridge or a worker killed."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from benchmarks.faults.fault_proxy import FaultProxy
from benchmarks.faults.traffic import EchoTraffic, beside
from benchmarks.faults.workers import Workers
from mqinfer.broker.connect import make_link
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.presence import make_client_id
from mqinfer.client.options import Silence
from mqinfer.protocol.states import WorkerState, WorkerStatus
from mqinfer.protocol.topics import Topics
from tests.broker.bridges import Bridges
from tests.broker.heard import Inbox
from tests.broker.nats.server import NatsServer
from tests.faults.figures import Figures

Start = Callable[..., Any]
RATE = 50.0


@pytest.fixture(params=["mqtt", "nats"])
def far(request: pytest.FixtureRequest) -> Iterator[MosquittoServer | NatsServer]:
    """The broker where the workers are."""
    with MosquittoServer() if request.param == "mqtt" else NatsServer() as server:
        yield server


def test_cuts_and_kills(
    own_broker: MosquittoServer,
    far: Any,
    topics: Topics,
    workers: Start,
    traffic: Start,
    proxy: Start,
    figure: Figures,
    pick: Start,
    silence: Silence,
) -> None:
    """Requests through two bridges have one outcome each, `ok`, while these are cut off and one of them is killed."""
    between: FaultProxy = proxy(far.url)
    workers(5, 5, url=far.url)
    chance, cuts, kills = random.Random(7), pick(6, 20), pick(2, 5)  # noqa: S311 - no secret depends on it
    with Bridges(own_broker.url, between.url, topics) as bridges:
        client: EchoTraffic = traffic(own_broker.url, first=10, silence=silence)

        def harm() -> None:
            for number in range(cuts):
                time.sleep(0.3 + 0.4 * chance.random())
                between.cut(reset=number % 2 == 0)
            for number in range(kills):
                time.sleep(1.0)
                bridges.kill(number % 2)

        with beside(harm) as harming:
            while harming.is_alive():
                client.pace(RATE, 10)
        client.served()
    row = f"{cuts} cuts between two brokers, {kills} kills of one of two bridges, {RATE:.0f}/s"
    figure.every(row, "ok", len(client.ended), client.asked)
    figure(
        row,
        "publishes a request; late or double replies",
        f"{client.publishes():.3f}; {client.requester.counters().late}",
    )
    figure(row, "slowest", f"{max(each.took for each in client.ended):.2f} s")


def test_brokers_that_are_killed(
    own_broker: MosquittoServer,
    far: Any,
    topics: Topics,
    workers: Start,
    traffic: Start,
    figure: Figures,
    pick: Start,
    silence: Silence,
) -> None:
    """The brokers at both ends are killed in turn, and each comes back after a while."""
    workers(5, 5, url=far.url)
    times = pick(1, 3)
    with Bridges(own_broker.url, far.url, topics):
        client: EchoTraffic = traffic(own_broker.url, first=10, silence=silence)

        def harm() -> None:
            for server in (own_broker, far) * times:
                time.sleep(2.0)
                getattr(server, "kill", server.stop)()  # a nats-server has no gentle end
                time.sleep(1.5)
                server.start()

        with beside(harm) as harming:
            while harming.is_alive():
                client.pace(RATE, 10)
        client.served()
    row = f"the brokers at both ends of two bridges killed in turn, {times} times each, {RATE:.0f}/s"
    figure.every(row, "ok", len(client.ended), client.asked)
    figure(row, "slowest", f"{max(each.took for each in client.ended):.2f} s")


def lost_at(topics: Topics, inbox: Inbox, after: float) -> float:
    """Return when a worker was first stated to be lost, after some moment."""

    def moments() -> list[float]:
        pairs = [
            (at, WorkerState.read(topics, each.topic, each.payload)[1])
            for at, each in zip(inbox.times, inbox.items, strict=False)
        ]
        return [at for at, state in pairs if at > after and state and state.status is WorkerStatus.LOST]

    inbox.wait_until(lambda _: bool(moments()))
    return moments()[0]


def test_a_far_worker_that_is_killed(
    own_broker: MosquittoServer, far: Any, topics: Topics, workers: Start, figure: Figures, pick: Start
) -> None:
    """The site's clients learn of it by its will, which comes at its own broker first."""
    found: Workers = workers(0, url=far.url)
    inboxes, delays = (Inbox(), Inbox()), list[tuple[float, float]]()
    with ExitStack() as stack:
        stack.enter_context(Bridges(own_broker.url, far.url, topics))
        for url, inbox in zip((far.url, own_broker.url), inboxes, strict=True):
            link = make_link(url, client_id=make_client_id("watch"))
            link.open()
            stack.callback(link.close)
            link.subscribe(topics.worker_state.filter(), inbox)
        for number in range(pick(2, 5)):
            inboxes[1].wait_until(lambda got: b'"ready"' in bytes(got[-1].payload))
            killed = time.monotonic()
            found.kill(0)
            first, second = (lost_at(topics, inbox, killed) - killed for inbox in inboxes)
            delays.append((first, second))
            found.wait_until_ready(number + 2)
    row = f"a worker behind two bridges, killed {len(delays)} times"
    figure(row, "lost at its broker", f"{max(first for first, _ in delays):.3f} s")
    figure(row, "lost at the site", f"{max(second for _, second in delays):.3f} s")
