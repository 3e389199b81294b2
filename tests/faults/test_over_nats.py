"""Faults of workers and of the network with NATS in place of Mosquitto; their figures are in no table."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from benchmarks.faults.soak import as_markdown
from benchmarks.faults.traffic import EchoTraffic, beside
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.nats.secured import keep_running
from mqinfer.broker.nats.server import NatsServers
from mqinfer.protocol.topics import Topics
from tests.broker.bridges import Bridges
from tests.broker.nats.machines import Machines
from tests.broker.nats.server import NatsServer
from tests.faults.figures import Figures
from tests.faults.test_network import link, test_half_open_connection, test_twenty_cuts
from tests.faults.test_workers import (
    test_halted_worker,
    test_killed_workers,
    test_no_fault,
    test_poison,
    test_rolling_restart,
    test_unlike_workers_finish_together,
    test_zero_workers,
)
from tests.patience import wait_until

__all__ = [
    "link",
    "test_half_open_connection",
    "test_halted_worker",
    "test_killed_workers",
    "test_no_fault",
    "test_poison",
    "test_rolling_restart",
    "test_twenty_cuts",
    "test_unlike_workers_finish_together",
    "test_zero_workers",
]


_NOTICED_S = 25.0
"""By then whoever is on the smaller side has noticed it, at 15 to 20 s, and has gone."""


@pytest.fixture(scope="module")
def broker_url() -> Iterator[str]:
    """URL of a nats-server."""
    with NatsServer() as server:
        yield server.url


@pytest.fixture
def figure() -> Iterator[Figures]:
    """Figures that go into no table: that is Mosquitto's."""
    figures = Figures()
    yield figures
    logging.getLogger(__name__).info("%s", as_markdown(figures.recorded))


@pytest.fixture
def cluster() -> Iterator[NatsServers]:
    """Three servers; one that ends is started again."""
    stop = threading.Event()
    with NatsServers(nodes=3) as servers:
        keeper = threading.Thread(target=keep_running, args=(servers, stop))
        keeper.start()
        try:
            yield servers
        finally:
            stop.set()
            keeper.join()


async def _leader(url: str) -> int:
    nats = pytest.importorskip("nats")
    while True:
        client = await nats.connect([f"nats://{place}" for place in url.removeprefix("nats://").split(",")])
        try:
            state = json.loads((await client.request("$JS.API.STREAM.INFO.mqinfer", b"", timeout=2)).data)
            if len([each for each in state["cluster"].get("replicas", ()) if each["current"]]) == 2:
                return int(state["cluster"]["leader"].removeprefix("node"))
        except (nats.errors.Error, KeyError):
            pass
        finally:
            await client.close()
        await asyncio.sleep(0.2)


def under_load(client: EchoTraffic, disturb: Callable[[], str], figure: Figures) -> None:
    """Send requests while something goes wrong: each has one outcome, which is `ok`."""
    words: list[str] = []
    with beside(lambda: words.append(disturb())) as faults:
        while faults.is_alive():
            client.pace(75.0, 20)
    client.served()
    ends = sorted(each.at for each in client.ended)
    figure.every(words[0], "ok", len(client.ended), client.asked)
    figure(words[0], "publishes a request", f"{client.publishes():.4f}")
    figure(words[0], "longest time without an outcome", f"{max(np.diff(ends)):.2f} s")
    figure(words[0], "late replies", client.requester.counters().late)
    assert len(client.ended) == client.asked


@pytest.fixture
def client(workers: Callable[..., Any], traffic: Callable[..., Any], cluster: NatsServers) -> EchoTraffic:
    """A client of three workers, which are on another server than it is."""
    workers(20, 20, 20, url=cluster.url)
    first, *others = cluster.url.removeprefix("nats://").split(",")
    made: EchoTraffic = traffic(f"nats://{','.join((*others, first))}", first=10)
    return made


def kill_leaders(cluster: NatsServers, times: int) -> str:
    """SIGKILL of whoever is the leader, each time once the servers are in step again; returns it in words."""
    killed: list[int] = []
    for _ in range(times):
        killed.append(asyncio.run(_leader(cluster.url)))
        os.kill(cluster.pids[killed[-1]], signal.SIGKILL)
        time.sleep(2.0)
    asyncio.run(_leader(cluster.url))
    return f"SIGKILL of a cluster's leader, {len(killed)} times ({killed})"


def test_killed_leaders(client: EchoTraffic, pick: Callable[..., int], cluster: NatsServers, figure: Figures) -> None:
    """SIGKILL of the leader of a cluster, again and again."""
    under_load(client, lambda: f"{kill_leaders(cluster, pick(2, 10))}, 75/s", figure)


def test_a_halted_server(client: EchoTraffic, pick: Callable[..., int], cluster: NatsServers, figure: Figures) -> None:
    """SIGSTOP of the server that all workers are connected to, for long: they go to another, and nothing is lost."""

    def halt() -> str:
        seconds = pick(20, 60)
        os.kill(cluster.pids[0], signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(cluster.pids[0], signal.SIGCONT)
        time.sleep(2.0)
        return f"SIGSTOP of one of three servers for {seconds} s, 75/s"

    under_load(client, halt, figure)


@pytest.fixture
def machines() -> Iterator[Machines]:
    """Three servers on machines of their own."""
    with Machines() as machines:
        yield machines


@pytest.fixture
def spread(machines: Machines, workers: Callable[..., Any], traffic: Callable[..., Any]) -> EchoTraffic:
    """A client of three workers, each connected to a server of its own, which is that of the first worker."""
    orders = ((0, 1, 2), (1, 2, 0), (2, 0, 1))
    workers(20, 20, 20, url=machines.url(), urls=[machines.url(*order) for order in orders])
    made: EchoTraffic = traffic(machines.url(), first=10)
    return made


@pytest.mark.parametrize("how", ["separate", "unplug"])
def test_a_partition(
    spread: EchoTraffic, machines: Machines, pick: Callable[..., int], figure: Figures, how: str
) -> None:
    """A network that falls in two, with the client and a worker on the smaller side: both go to the larger one.

    Separated servers are still reached by all clients, an unplugged one by nobody.
    """
    break_apart = getattr(machines, how)
    times = pick(1, 5)

    def part() -> str:
        for _ in range(times):
            break_apart(0)
            parted = time.monotonic()
            wait_until(lambda: spread.ended[-1].submitted > parted + _NOTICED_S)  # noqa: B023 - at once
            break_apart(0, ends=True)
            time.sleep(pick(10, 20))
        asyncio.run(_leader(machines.url()))
        return f"network: {how} one of three servers until all are served again, {times} times, 75/s"

    under_load(spread, part, figure)


@pytest.mark.parametrize("whose", ["leader", "follower"])
def test_a_full_disk(
    spread: EchoTraffic, machines: Machines, pick: Callable[..., int], figure: Figures, whose: str
) -> None:
    """The disk of one server is full: it serves on, or the others do."""

    def fill() -> str:
        leader = asyncio.run(_leader(machines.url()))
        machines.fill(leader if whose == "leader" else (leader + 1) % 3)
        time.sleep(pick(15, 60))
        return f"full disk at the {whose} of three servers for {pick(15, 60)} s, 75/s"

    under_load(spread, fill, figure)


def test_a_cluster_behind_bridges(
    own_broker: MosquittoServer,
    cluster: NatsServers,
    workers: Callable[..., Any],
    traffic: Callable[..., Any],
    topics: Topics,
    pick: Callable[..., int],
    figure: Figures,
) -> None:
    """SIGKILL of the leader of a cluster whose workers clients at a Mosquitto ask: nothing is lost, as beside it.

    While the others elect one, 4 to 6 s, no worker can be stated; a client's patience is 2 s.
    """
    workers(20, 20, 20, url=cluster.url)
    with Bridges(own_broker.url, cluster.url, topics):
        client: EchoTraffic = traffic(own_broker.url, first=10)
        under_load(client, lambda: f"{kill_leaders(cluster, pick(2, 10))}, behind two bridges, 75/s", figure)
