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

from benchmarks.faults import EchoTraffic, Figures, as_markdown, beside
from mqinfer.broker.nats.secured import keep_running
from mqinfer.broker.nats.server import NatsServers
from tests.broker.nats.server import NatsServer
from tests.faults.test_network import link, test_half_open_connection, test_twenty_cuts
from tests.faults.test_workers import (
    test_halted_worker,
    test_killed_workers,
    test_no_fault,
    test_poison,
    test_rolling_restart,
    test_zero_workers,
)

__all__ = [
    "link",
    "test_half_open_connection",
    "test_halted_worker",
    "test_killed_workers",
    "test_no_fault",
    "test_poison",
    "test_rolling_restart",
    "test_twenty_cuts",
    "test_zero_workers",
]


@pytest.fixture(scope="module")
def broker_url() -> Iterator[str]:
    """URL of a nats-server."""
    with NatsServer() as server:
        yield server.url


@pytest.fixture
def figure() -> Figures:
    """Figures that go into no table: that is Mosquitto's."""
    return Figures()


@pytest.fixture
def cluster() -> Iterator[NatsServers]:
    """Three servers; one that ends is started again."""
    stop = threading.Event()
    with NatsServers(nodes=3) as servers:
        keeper = threading.Thread(target=keep_running, args=(servers, None, stop))
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
    logging.getLogger(__name__).info("%s", as_markdown(figure.recorded))
    assert len(client.ended) == client.asked


@pytest.fixture
def client(workers: Callable[..., Any], traffic: Callable[..., Any], cluster: NatsServers) -> EchoTraffic:
    """A client of three workers, which are on another server than it is."""
    workers(20, 20, 20, url=cluster.url)
    first, *others = cluster.url.removeprefix("nats://").split(",")
    made: EchoTraffic = traffic(f"nats://{','.join((*others, first))}", first=10)
    return made


def test_killed_leaders(client: EchoTraffic, pick: Callable[..., int], cluster: NatsServers, figure: Figures) -> None:
    """SIGKILL of the leader of a cluster, again and again."""

    def kill() -> str:
        killed: list[int] = []
        for _ in range(pick(2, 10)):
            killed.append(asyncio.run(_leader(cluster.url)))
            os.kill(cluster.pids[killed[-1]], signal.SIGKILL)
            time.sleep(2.0)
        asyncio.run(_leader(cluster.url))
        return f"SIGKILL of a cluster's leader, {len(killed)} times ({killed}), 75/s"

    under_load(client, kill, figure)


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
