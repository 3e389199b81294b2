"""Faults of the network between client and broker, made by a proxy."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from benchmarks.faults.fault_proxy import PUBACK, FaultProxy
from benchmarks.faults.traffic import EchoTraffic, beside
from benchmarks.faults.workers import Workers
from mqinfer.broker import Message, make_link
from mqinfer.client.options import Silence
from mqinfer.protocol.types import Outcome
from tests.faults.figures import Figures

Start = Callable[..., Any]
RATE = 75.0
"""Requests a second to three workers of 20 ms: half of their capacity."""
_EXCUSED = {"ok", "expired", "no_worker", "rejected"}
"""Possible outcomes of a request with damaged messages; the request itself is never blamed."""


@pytest.fixture
def link(
    workers: Start, traffic: Start, proxy: Start, broker_url: str, silence: Silence
) -> tuple[FaultProxy, EchoTraffic]:
    """Three workers at the broker, and a client with a window of 64 that reaches it through a proxy."""
    workers(20, 20, 20)
    between: FaultProxy = proxy(broker_url)
    client: EchoTraffic = traffic(between.url, window=64, silence=silence, first=10)
    return between, client


def load_while(client: EchoTraffic, disturb: Callable[[], None]) -> None:
    """Send requests at the usual rate until the disturbance is over; assert that all are served."""
    with beside(disturb) as disturbing:
        while disturbing.is_alive():
            client.pace(RATE, 15)
    client.served()


def report(figure: Figures, row: str, client: EchoTraffic) -> None:
    """Record the figures that every row of this file has."""
    counters = client.requester.counters()
    figure.every(row, "ok", len(client.ended), client.asked)
    figure(row, "publishes a request; late or double replies", f"{client.publishes():.3f}; {counters.late}")
    figure(row, "slowest", f"{max(each.took for each in client.ended):.2f} s")


def test_twenty_cuts(link: tuple[FaultProxy, EchoTraffic], figure: Figures, pick: Start) -> None:
    """The connection is cut repeatedly, by RST and by FIN, at random times."""
    between, client = link
    chance, times = random.Random(7), pick(6, 20)  # noqa: S311 - no secret depends on it

    def cut() -> None:
        for number in range(times):
            time.sleep(0.3 + chance.random())
            between.cut(reset=number % 2 == 0)

    load_while(client, cut)
    report(figure, f"{times} cuts of the client's connection, {RATE:.0f}/s", client)
    assert between.connections > times // 2


def test_cut_workers(
    workers: Start, traffic: Start, proxy: Start, figure: Figures, pick: Start, broker_url: str
) -> None:
    """Cut connections of workers make no request poison, since no worker crashed."""
    between: FaultProxy = proxy(broker_url)
    workers(20, 20, 20, url=between.url)
    client: EchoTraffic = traffic(first=10)
    times = pick(4, 20)

    def cut() -> None:
        for number in range(times):
            time.sleep(1.0)
            between.cut(reset=number % 2 == 0)

    load_while(client, cut)
    report(figure, f"{times} cuts of all workers' connections at once, {RATE:.0f}/s", client)


def test_swallowed_pubacks(link: tuple[FaultProxy, EchoTraffic], figure: Figures, pick: Start) -> None:
    """PUBACKs are swallowed, then the connection is cut: every request is served once."""
    between, client = link
    times = pick(2, 6)

    def swallow() -> None:
        for _ in range(times):
            between.down(without=frozenset({PUBACK}))
            time.sleep(1.0)
            between.cut()
            between.both()
            time.sleep(1.0)

    load_while(client, swallow)
    row = f"PUBACKs swallowed for 1 s, then a cut, {times} times, {RATE:.0f}/s"
    report(figure, row, client)
    figure(row, "PUBACKs swallowed", between.packets_dropped)
    assert between.packets_dropped > 10


def test_half_open_connection(link: tuple[FaultProxy, EchoTraffic], figure: Figures) -> None:
    """All packets vanish for three seconds without a FIN; requests in flight are sent again afterwards."""
    between, client = link

    def half_open() -> None:
        time.sleep(1.0)
        between.both(swallow=True)
        time.sleep(3.0)
        between.cut()
        between.both()
        time.sleep(1.0)

    load_while(client, half_open)
    report(figure, f"half-open for 3 s, then a cut, {RATE:.0f}/s", client)


@pytest.mark.parametrize("delay_ms", [50, 200])
def test_delay(link: tuple[FaultProxy, EchoTraffic], figure: Figures, pick: Start, delay_ms: int) -> None:
    """A long transit adds its delay, and no request is sent twice."""
    between, client = link
    between.both(delay_s=delay_ms / 1000)
    done = len(client.ended)
    seconds = pick(3, 20)
    load_while(client, lambda: time.sleep(seconds))
    row = f"{delay_ms} ms each way, {RATE:.0f}/s, window 64"
    report(figure, row, client)
    took = sorted(each.took for each in client.ended[done:])
    figure(row, "p50", f"{took[len(took) // 2] * 1e3:.0f} ms")
    assert client.publishes() <= 1.02


def test_bandwidth(
    workers: Start, traffic: Start, proxy: Start, broker_url: str, figure: Figures, pick: Start, silence: Silence
) -> None:
    """At 1 MB/s, requests of 100 kB use the full bandwidth, and none is sent twice."""
    width = 12_500
    workers(20, 20, 20, width=width)
    between: FaultProxy = proxy(broker_url)
    client: EchoTraffic = traffic(between.url, width=width, silence=silence, first=4)
    between.both(bytes_per_s=1e6)
    requests = pick(30, 400)
    sent, start = between.passed[0], time.monotonic()
    client.burst(requests, timeout=120)
    client.wait()
    counters = client.check()
    rate = (between.passed[0] - sent) / (time.monotonic() - start)
    row = f"1 MB/s each way, a burst of {requests} requests of 100 kB"
    report(figure, row, client)
    figure(row, "of the bandwidth used upwards", f"{rate / 1e6:.2f}", ">= 0.9", passed=rate >= 0.9e6)
    assert counters.outcomes[Outcome.OK] == client.asked
    assert counters.retries == 0


@pytest.mark.parametrize(("width", "every"), [(2, 20_000), (256, 50_000)])
def test_flipped_bits(
    workers: Start, traffic: Start, proxy: Start, broker_url: str, figure: Figures, pick: Start, width: int, every: int
) -> None:
    """Bits flip in both directions, without TLS: no number is wrong, no request is blamed, and no process crashes.

    Narrow rows are mostly head, so that it is MQTT that breaks; of wide ones it is mostly the payload.
    """
    crew: Workers = workers(20, 20, 20, width=width)
    between: FaultProxy = proxy(broker_url, 3)
    client: EchoTraffic = traffic(between.url, width=width, first=10)
    between.both(flip_every=every)
    seconds = pick(4, 30)
    with beside(lambda: time.sleep(seconds)) as disturbing:
        while disturbing.is_alive():
            client.pace(RATE, 15, timeout=20)
    between.both()
    between.cut()
    client.wait()
    wrong, client.wrong = client.wrong, 0
    client.check()
    done = len(client.ended)
    client.pace(RATE, 30)
    client.wait()
    counters = client.check()
    outcomes = client.outcomes()
    row = f"a bit flipped about every {every // 1000} kB, both ways, requests of {8 * width} bytes, {RATE:.0f}/s"
    figure(row, "numbers changed (no TLS)", wrong, "0", passed=wrong == 0)
    figure(row, "outcomes", outcomes, "ok", passed=set(outcomes) == {"ok"})
    found = f"{counters.retries}; {counters.malformed}; {between.connections}"
    figure(row, "sent again; damaged replies; connections", found)
    figure(row, "workers that crashed", crew.crashes, "0", passed=crew.crashes == 0)
    assert wrong == 0
    assert set(outcomes) <= _EXCUSED
    assert crew.crashes == 0
    assert all(each.outcome is Outcome.OK for each in client.ended[done:])


def test_echo(broker_url: str, unique: Callable[[str], str], figure: Figures) -> None:
    """A small QoS 1 message returns from the broker at once; with Nagle's algorithm it would take 83 ms."""
    link, came = make_link(broker_url, client_id=unique("echo")), threading.Event()
    took = []
    topic = unique("echo")
    link.open()
    try:
        link.subscribe(topic, lambda _: came.set())
        for _ in range(60):
            came.clear()
            start = time.monotonic()
            link.publish(Message(topic, b"x"))
            assert came.wait(10)
            took.append(time.monotonic() - start)
    finally:
        link.close()
    row = "QoS 1 through the broker and back, 60 times one after the other"
    figure.bound(row, "p50", sorted(took)[30] * 1e3, 2, ".2f ms")
