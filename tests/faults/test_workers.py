"""Faults of workers: unequal, killed, halted, restarted, absent, poisoned and overloaded ones."""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from benchmarks.faults.traffic import EchoTraffic, beside
from benchmarks.faults.workers import Workers
from mqinfer.bench.processes import CpuMeter
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.options import Silence
from mqinfer.lab.profiling.memory import resident_bytes
from mqinfer.protocol.types import Outcome
from tests.faults.figures import Figures

Start = Callable[..., Any]
POISON = 13
RATE = 100.0
"""Requests a second to three workers of 20 ms: two thirds of their capacity, which two of them just have."""


def slow_share(clients: list[EchoTraffic], slow: int) -> float:
    """Return the share of the replies that the last of several workers sent."""
    workers = [each.worker for client in clients for each in client.ended]
    return sum(f"-{slow}." in worker or worker.endswith(f"-{slow}") for worker in workers) / len(workers)


def test_no_fault(workers: Start, traffic: Start, figure: Figures, pick: Start, silence: Silence) -> None:
    """Without a fault every request is sent once."""
    workers(20, 20, 20)
    client = traffic(window=32, silence=silence, first=10)
    client.pace(90, pick(200, 1000))
    client.served()
    row = "no fault, 3 workers of 20 ms, 90/s"
    figure(row, "publishes a request", f"{client.publishes():.3f}", "1.000", passed=client.publishes() == 1)
    extra = client.percentile(0.5) * 1e3 - 20
    figure.bound(row, "p50 above the service time", extra, 3, ".1f ms")
    assert client.publishes() == 1


def _makespan(clients: list[EchoTraffic], each: int) -> float:
    for client in clients:  # everybody knows the workers before the clock runs
        client.burst(1)
        client.wait()
    start = time.monotonic()
    for client in clients:
        client.burst(each)
    for client in clients:
        client.wait()
    return time.monotonic() - start


@pytest.mark.parametrize("edges", [1, 4])
@pytest.mark.parametrize("delays", [(20, 20, 100), (20, 200)], ids=["5x-slower", "10x-slower"])
def test_unlike_workers_finish_together(
    workers: Start,
    traffic: Start,
    figure: Figures,
    pick: Start,
    delays: tuple[int, ...],
    edges: int,
) -> None:
    """With one worker 5 or 10 times slower, the last request ends little later than with fast ones alone."""
    workers(*delays)
    clients = [traffic(window=32) for _ in range(edges)]
    requests = pick(240, 600)
    took = _makespan(clients, requests // edges)
    share = slow_share(clients, len(delays) - 1)
    ideal = requests / sum(1000 / delay for delay in delays)
    for client in clients:
        client.served()
    row = f"workers of {', '.join(map(str, delays))} ms, a burst of {requests} from {edges} edges"
    bound = 1.15 if edges == 1 else 1.25
    figure.bound(row, "time / ideal", took / ideal, bound, ".2f")
    figure(row, "publishes a request", f"{max(client.publishes() for client in clients):.3f}")
    assert share <= 0.8 / len(delays), "a blind deal in turn gives each worker the same share"


@pytest.mark.parametrize("edges", [1, 4])
def test_unlike_workers_at_82_percent(workers: Start, traffic: Start, figure: Figures, pick: Start, edges: int) -> None:
    """At 82 % of the capacity, with one worker 5 times slower, nearly all requests take the time of a fast one."""
    workers(20, 20, 100)
    clients = [traffic(window=32) for _ in range(edges)]
    _makespan(clients, 4)
    rate, requests = 0.82 * 110, pick(240, 900)
    with ExitStack() as pacers:
        for client in clients:
            pacers.enter_context(beside(partial(client.pace, rate / edges, requests // edges)))
    for client in clients:
        client.served()
    p95 = max(client.percentile(0.95) for client in clients) / 0.020
    bound = 2 if edges == 1 else 5
    row = f"workers of 20, 20, 100 ms, paced at 82 %, {edges} edges"
    figure.bound(row, "p95 / fast service time", p95, bound, ".1f")
    assert slow_share(clients, 2) <= 0.8 / 3, "a blind deal in turn gives each worker the same share"


def test_equal_workers(workers: Start, traffic: Start, figure: Figures, pick: Start) -> None:
    """With equal workers, for which round robin is optimal, choosing among them costs very little."""
    workers(10, 10, 10)
    chooses, dealt = traffic(window=32), traffic(window=32, lanes=False)
    rounds, requests = pick(3, 11), pick(150, 900)
    ratios = []
    for _ in range(rounds):
        by_choice, in_turn = _makespan([chooses], requests), _makespan([dealt], requests)
        ratios.append(in_turn / by_choice)
    chooses.served()
    dealt.served()
    got = Counter(each.worker for each in dealt.ended).values()
    row = f"3 equal workers of 10 ms, bursts of {requests}, by lanes and over plain $share in turn, {rounds} rounds"
    ratio = statistics.median(ratios)
    figure(row, "throughput by lanes / over $share", f"{ratio:.3f}", ">= 0.98", passed=ratio >= 0.98)
    figure(row, "least and most of the rounds", f"{min(ratios):.3f}; {max(ratios):.3f}")
    assert max(got) - min(got) <= 1, "the broker deals in turn, whatever the client knows"
    assert ratio >= 0.5


def _under_load(client: EchoTraffic, rate: float, seconds: float, disturb: Callable[[], None]) -> None:
    with beside(lambda: client.pace(rate, int(rate * seconds))):
        disturb()


def test_killed_workers(workers: Start, traffic: Start, figure: Figures, pick: Start, silence: Silence) -> None:
    """Repeated SIGKILL of one of three workers under load loses no request and repeats few."""
    crew: Workers = workers(20, 20, 20)
    client: EchoTraffic = traffic(silence=silence, first=10)
    times = pick(3, 15)
    killed: list[float] = []

    def kill() -> None:
        for number in range(times):
            time.sleep(1.0)
            crew.wait_until_ready(3 + number)
            assert crew.kill(number % 3)
            killed.append(time.monotonic())
            time.sleep(1.0)

    _under_load(client, RATE, 2.5 * times, kill)
    client.served()
    again = [each for each in client.ended if each.attempts > 1]
    row = f"SIGKILL of 1 of 3 workers, {times} times, one every 2 s, {RATE:.0f}/s of 150"
    share = client.publishes()
    figure.every(row, "ok", len(client.ended), client.asked)
    figure.bound(row, "publishes a request", share, 1.01, ".4f")
    worst = max((each.took for each in again), default=0.0)
    figure.bound(row, "slowest of those that were sent again", worst * 1e3, 120, ".0f ms", why="100 and service")
    assert crew.crashes == times
    assert client.requester.counters().retries <= 16 * times, "no more than the window at each kill"


def test_halted_worker(workers: Start, traffic: Start, figure: Figures, pick: Start) -> None:
    """SIGSTOP of one of three for three seconds delays only its accepted requests, which are sent elsewhere."""
    crew: Workers = workers(20, 20, 20)
    client: EchoTraffic = traffic(first=10)
    times, seconds = pick(2, 10), pick(2, 3)
    halts: list[tuple[float, float]] = []

    def halt() -> None:
        for number in range(times):
            time.sleep(1.0)
            begin = time.monotonic()
            crew.halt(number % 3)
            time.sleep(seconds)
            crew.resume(number % 3)
            halts.append((begin, time.monotonic()))

    _under_load(client, RATE / 2, (seconds + 1.5) * times, halt)
    client.served()
    again = [each for each in client.ended if each.attempts > 1]
    spared = [each for each in client.ended if each.attempts == 1]
    row = f"SIGSTOP of 1 of 3 workers for {seconds} s, {times} times, {RATE / 2:.0f}/s of 150"
    share = client.publishes()
    figure.bound(row, "publishes a request", share, 1.01, ".4f")
    figure.bound(row, "requests sent again", len(again), 8 * times, "d", why="its window")
    worst = max((each.took for each in again), default=0.0)
    figure.bound(row, f"slowest of the {len(again)} that it had", worst, 1.1, ".2f s", why="timeout + 100 ms")
    slow = sorted(each.took for each in spared)[int(0.99 * len(spared))]
    figure.bound(row, "p99 of all the others", slow * 1e3, 100, ".0f ms")
    assert share <= 1.1 + 16 / client.asked, "what the retry budget allows for want of a reply"


def test_rolling_restart(workers: Start, traffic: Start, figure: Figures, pick: Start, silence: Silence) -> None:
    """A restart of each worker in turn sends nothing twice, except from a client that is held up while one leaves."""
    crew: Workers = workers(20, 20, 20)
    client: EchoTraffic = traffic(silence=silence, first=10)
    rounds = pick(1, 3)

    def restart() -> None:
        for number in range(3 * rounds):
            crew.drain(number % 3)
            crew.wait_until_ready(4 + number)

    with beside(restart) as restarting:
        while restarting.is_alive():
            client.pace(RATE * 0.8, 40)
    client.served()
    retries = client.requester.counters().retries
    row = f"rolling restart of all workers, {rounds} times, {RATE * 0.8:.0f}/s of 150"
    figure(row, f"retries of {client.asked} requests", retries, "0", passed=retries == 0)
    assert retries <= 16 * 3 * rounds, "no more than the window at each restart"


def test_zero_workers(workers: Start, traffic: Start, figure: Figures) -> None:
    """Without a worker every request ends as `no_worker` within the patience; once one appears, all are served."""
    client: EchoTraffic = traffic(first=50)
    client.check()
    assert client.outcomes() == {"no_worker": 50}
    slowest = max(each.took for each in client.ended)
    row = "zero workers, 50 requests"
    figure(row, "outcomes", client.outcomes(), "no_worker", passed=True)
    figure.bound(row, "slowest (patience is 2 s)", slowest, 2.1, ".2f s")
    patient: EchoTraffic = traffic()
    started = threading.Event()

    def ask() -> None:
        while not started.is_set():
            patient.pace(20, 5)

    with ExitStack() as stack:
        stack.enter_context(beside(ask))
        stack.callback(started.set)
        workers(20)
    later = {patient.ask(60.0) for _ in range(10)}
    patient.wait()
    counters = patient.check()
    served = counters.outcomes[Outcome.OK]
    figure(row, "one appears: served of those asked after", f"{served}/{patient.asked}")
    assert all(each.outcome is Outcome.OK for each in patient.ended if each.number in later)


def test_poison(workers: Start, traffic: Start, figure: Figures, pick: Start) -> None:
    """A request that crashes its workers ends as poison after two of them; the others are served."""
    crew: Workers = workers(20, 20, 20, die_on=POISON)
    client: EchoTraffic = traffic(first=10)
    poisons, between = pick(1, 4), pick(300, 1000)
    for _ in range(poisons):
        client.pace(RATE * 0.6, between // 2)
        client.ask(60, number=POISON)
        client.pace(RATE * 0.6, between // 2)
    client.wait()
    counters = client.check(repeated=POISON)
    poisoned = [each for each in client.ended if each.number == POISON]
    row = f"a poison request in {between}, {poisons} of them"
    figure(row, "their outcomes", dict(Counter(each.code for each in poisoned)), "poison", passed=True)
    each = crew.crashes / poisons
    figure(row, "workers that crashed per poison request", f"{each:g}", "2", passed=each == 2)
    ok = counters.outcomes[Outcome.OK]
    figure(row, "ok of the others", f"{ok}/{client.asked - poisons}", "all", passed=ok == client.asked - poisons)
    assert {each.code for each in poisoned} == {"poison"}
    assert crew.crashes == 2 * poisons
    assert ok == client.asked - poisons


def test_overload(
    workers: Start,
    traffic: Start,
    figure: Figures,
    pick: Start,
    own_broker: MosquittoServer,
) -> None:
    """At twice their capacity the workers run at full speed, every request has an outcome, and memory is bounded."""
    width = pick(125_000, 1_000_000)  # 1 or 8 MB
    delay, seconds = pick(50, 100), pick(4, 60)
    workers(delay, delay, url=own_broker.url, width=width)
    client: EchoTraffic = traffic(own_broker.url, width=width, window=16, max_pending=64, first=8)
    before = resident_bytes(os.getpid())
    meter = CpuMeter({"broker": [own_broker.pid], "edge": [os.getpid()]})
    rate = 2 * 2000 / delay
    start, done = time.monotonic(), len(client.ended)
    client.pace(rate, int(rate * seconds), timeout=0.5)
    client.wait()
    took = time.monotonic() - start
    ok = sum(each.outcome is Outcome.OK for each in client.ended[done:])
    counters = client.check()
    goodput = ok / took / (2000 / delay)
    row = f"overload 2x, {seconds} s, requests of {width * 8 // 1_000_000} MB with a deadline of 0.5 s"
    figure(row, "goodput / capacity", f"{goodput:.2f}", ">= 0.95", passed=goodput >= 0.95)
    figure(row, "outcomes", client.outcomes(), "each stated")
    peaks = meter.peaks()
    broker, edge = peaks["broker"] / 2**20, (peaks["edge"] - before) / 2**20
    figure.bound(row, "broker's resident memory", broker, 250, ".0f MB")
    bound = 2 * 64 * width * 8 >> 20
    figure.bound(row, "edge's growth", edge, bound, ".0f MB", why="64 pending, twice")
    assert counters.pending == 0
    assert ok > 0
