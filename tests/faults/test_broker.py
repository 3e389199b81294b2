"""Faults of the broker: killed with and without persistence, restarted, and several faults at once."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.faults.traffic import EchoTraffic, beside
from benchmarks.faults.workers import MODEL, Workers
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client import Client
from mqinfer.lab.profiling.memory import resident_bytes
from mqinfer.protocol.topics import Topics
from tests.faults.figures import Figures

Start = Callable[..., Any]
RATE = 75.0
"""Requests a second to three workers of 20 ms: half of their capacity."""


@pytest.fixture
def persistent_broker(tmp_path: Path) -> Iterator[MosquittoServer]:
    """A Mosquitto that saves each change, like an existing broker may."""
    folder = tmp_path / "stored"
    folder.mkdir()
    stored = f"persistence true\npersistence_location {folder}/\nautosave_on_changes true\nautosave_interval 1\n"
    with MosquittoServer(configuration=lambda port: render(port).replace("persistence false\n", stored)) as server:
        yield server


def until_served(client: EchoTraffic, since: float) -> float:
    """Return the seconds from a time to the first outcome after it."""
    while True:
        later = [each.at for each in list(client.ended) if each.at > since]
        if later:
            return min(later) - since
        time.sleep(0.01)


def outages(
    client: EchoTraffic,
    broker: MosquittoServer,
    times: int,
    seconds: float,
    end: Callable[[], None],
    steady: float = 1.0,
) -> list[float]:
    """Stop and start the broker several times; return the time from each start to the next outcome."""
    recoveries = []
    for _ in range(times):
        time.sleep(steady)
        end()
        time.sleep(seconds)
        broker.start()
        recoveries.append(until_served(client, time.monotonic()))
    time.sleep(0.5)
    return recoveries


@pytest.mark.parametrize("kind", ["own_broker", "persistent_broker"])
def test_killed_broker(
    workers: Start, traffic: Start, figure: Figures, pick: Start, request: pytest.FixtureRequest, kind: str
) -> None:
    """After SIGKILL under load and a restart two seconds later all requests are served once, and memory stays flat."""
    broker: MosquittoServer = request.getfixturevalue(kind)
    workers(20, 20, 20, url=broker.url)
    client: EchoTraffic = traffic(broker.url, first=10)
    times, steady = pick(1, 10), pick(1, 6)
    before = resident_bytes(os.getpid())
    recoveries: list[float] = []
    with beside(lambda: recoveries.extend(outages(client, broker, times, 2.0, broker.kill, steady))) as faults:
        while faults.is_alive():
            client.pace(RATE, 20)
    client.served()
    stored = "with" if kind == "persistent_broker" else "without"
    row = f"SIGKILL of the broker ({stored} persistence), back after 2 s, {times} times, {RATE:.0f}/s"
    figure.every(row, "ok", len(client.ended), client.asked)
    figure.bound(row, "served after its return", max(recoveries), 1.5, ".2f s")
    growth = (resident_bytes(os.getpid()) - before) / 2**20
    figure(row, "publishes a request", f"{client.publishes():.4f}")
    figure(row, "late replies", client.requester.counters().late)
    figure(row, "edge's growth", f"{growth:.1f} MB", "flat", passed=growth <= 20)
    assert client.publishes() <= 1.0 + times * 16 / client.asked + 0.1, "a burst is bounded by the window"


def test_standby(
    workers: Start, traffic: Start, figure: Figures, pick: Start, own_broker: MosquittoServer, topics: Topics
) -> None:
    """With a standby beside it the broker may be killed again and again: all follow, there and back, at once."""
    times = pick(2, 10)
    row = f"SIGKILL of the broker beside a standby, back after 3 s, {times} times, {RATE:.0f}/s"
    with MosquittoServer() as standby:
        url = f"{own_broker.url},{standby.host}:{standby.port}"
        workers(20, 20, 20, url=url)
        client: EchoTraffic = traffic(url, first=10)
        with Client(url, root=topics.root) as watcher, watcher.watch(MODEL, buffer=1024) as results:

            def kill() -> None:
                for _ in range(times):
                    time.sleep(1.0)
                    own_broker.kill()
                    time.sleep(3.0)
                    own_broker.start()
                    time.sleep(3.0)  # all look within two

            with beside(kill) as faults:
                while faults.is_alive():
                    client.pace(RATE, 20)
            client.served()
            own_broker.kill()  # once more, so that it counts who follows from there
            client.burst(10)
            client.served()
            while results.next(timeout=0.1):
                pass
            client.burst(10)
            assert results.next(timeout=60.0), "the watch has followed"
            client.served()
    ends = sorted(each.at for each in client.ended)[10:-20]
    figure.every(row, "ok", len(client.ended), client.asked)
    figure.bound(row, "longest time without an outcome", max(np.diff(ends)), 2.5, ".2f s")
    figure(row, "publishes a request", f"{client.publishes():.4f}")


def test_restarted_broker(workers: Start, traffic: Start, figure: Figures, own_broker: MosquittoServer) -> None:
    """After a SIGTERM and an immediate restart all requests are served once."""
    workers(20, 20, 20, url=own_broker.url)
    client: EchoTraffic = traffic(own_broker.url)
    recoveries: list[float] = []
    with beside(lambda: recoveries.extend(outages(client, own_broker, 2, 0.0, own_broker.stop))) as faults:
        while faults.is_alive():
            client.pace(RATE, 20)
    client.served()
    row = f"SIGTERM of the broker and back at once, 2 times, {RATE:.0f}/s"
    figure.every(row, "ok", len(client.ended), client.asked)
    figure.bound(row, "served after its return", max(recoveries), 1.5, ".2f s")


def test_all_at_once(workers: Start, traffic: Start, figure: Figures, pick: Start, own_broker: MosquittoServer) -> None:
    """A killed worker, a broker that is gone for a while and a halted worker, all in one run."""
    crew: Workers = workers(20, 20, 20, url=own_broker.url)
    client: EchoTraffic = traffic(own_broker.url, first=10)
    rate, seconds, pause = pick(60, 75), pick(7, 30), pick(1, 2)

    def disturb() -> None:
        time.sleep(pause)
        crew.kill(0)
        time.sleep(pause)
        own_broker.kill()
        time.sleep(pause)
        own_broker.start()
        time.sleep(pause)
        crew.halt(1)
        time.sleep(pause)
        crew.resume(1)

    with beside(disturb):
        client.pace(rate, int(rate * seconds))
    client.served()
    what = f"a worker killed, the broker down for {pause} s, a worker halted for {pause} s"
    row = f"all at once: {what}; {rate}/s for {seconds} s"
    figure.every(row, "ok", len(client.ended), client.asked)
    share = client.publishes()
    figure.bound(row, "publishes a request", share, 1.01, ".4f")
    figure.bound(row, "p50", client.percentile(0.5) * 1e3, 35, ".0f ms", why="service + 15")
    worst = max(each.took for each in client.ended)
    figure.bound(row, "slowest", worst, 3.5, ".2f s", why="outage + 1.5")
    assert share <= 1.1 + 4 * 16 / client.asked, "the retry budget, and a window for it and for each of the faults"
