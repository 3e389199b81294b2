"""Faults of workers: RELIABILITY, section 6, rows 1 to 5, 9, 11 and 14."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from mqinfer.bench.faults import Traffic, Workers
from mqinfer.protocol.types import Outcome

Start = Callable[..., Any]
RATE = 100.0
"""Requests a second to three workers of 20 ms: two thirds of what they can; two of them can serve it just so."""


def all_ok(*clients: Traffic) -> None:
    """Every request of these clients ended as `ok`, with its own numbers, once."""
    for client in clients:
        client.wait()
        counters = client.check()
        assert counters.outcomes[Outcome.OK] == client.asked, client.outcomes()


def test_no_fault(workers: Start, traffic: Start, figure: Start, pick: Start) -> None:
    """Three workers without a fault: every request is sent once."""
    workers(20, 20, 20)
    client = traffic(window=32)
    client.burst(10)
    client.wait()
    client.pace(90, pick(200, 1000))
    all_ok(client)
    row = "no fault, 3 workers of 20 ms, 90/s"
    figure(row, "publishes a request", f"{client.publishes():.3f}", "1.000", passed=client.publishes() == 1)
    extra = client.percentile(0.5) * 1e3 - 20
    figure(row, "p50 above the service time", f"{extra:.1f} ms", "<= 3 ms", passed=extra <= 3)
    assert client.publishes() == 1


def _makespan(clients: list[Traffic], each: int) -> float:
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
    workers: Start, traffic: Start, figure: Start, pick: Start, delays: tuple[int, ...], edges: int
) -> None:
    """One worker is 5 or 10 times slower, and nobody waits for it much longer than for the fast ones."""
    workers(*delays)
    clients = [traffic(window=32) for _ in range(edges)]
    requests = pick(240, 600)
    took = _makespan(clients, requests // edges)
    ideal = requests / sum(1000 / delay for delay in delays)
    all_ok(*clients)
    row = f"workers of {', '.join(map(str, delays))} ms, a burst of {requests} from {edges} edges"
    bound = 1.15 if edges == 1 else 1.25
    figure(row, "time / ideal", f"{took / ideal:.2f}", f"<= {bound}", passed=took / ideal <= bound)
    figure(row, "publishes a request", f"{max(client.publishes() for client in clients):.3f}")
    assert took / ideal <= 2.0, "about 3.7 and 5.5 are what a blind deal in turn gives"


@pytest.mark.parametrize("edges", [1, 4])
def test_unlike_workers_at_82_percent(workers: Start, traffic: Start, figure: Start, pick: Start, edges: int) -> None:
    """Paced at 82 % of the capacity, one worker 5 times slower: nearly everybody is served as by a fast one."""
    workers(20, 20, 100)
    clients = [traffic(window=32) for _ in range(edges)]
    _makespan(clients, 4)
    rate, requests = 0.82 * 110, pick(240, 900)
    pacers = [
        threading.Thread(target=client.pace, args=(rate / edges, requests // edges), name="pacer") for client in clients
    ]
    for pacer in pacers:
        pacer.start()
    for pacer in pacers:
        pacer.join()
    all_ok(*clients)
    p95 = max(client.percentile(0.95) for client in clients) / 0.020
    bound = 2 if edges == 1 else 5
    row = f"workers of 20, 20, 100 ms, paced at 82 %, {edges} edges"
    figure(row, "p95 / fast service time", f"{p95:.1f}", f"<= {bound}", passed=p95 <= bound)
    assert p95 <= 30, "about 300 is what a blind deal in turn gives"


def _under_load(client: Traffic, rate: float, seconds: float, disturb: Callable[[], None]) -> None:
    pacer = threading.Thread(target=client.pace, args=(rate, int(rate * seconds)), name="pacer")
    pacer.start()
    try:
        disturb()
    finally:
        pacer.join()


def test_killed_workers(workers: Start, traffic: Start, figure: Start, pick: Start) -> None:
    """SIGKILL of one of three under load, again and again: none lost, little sent twice."""
    crew: Workers = workers(20, 20, 20)
    client: Traffic = traffic()
    client.burst(10)
    client.wait()
    times = pick(3, 10)
    killed: list[float] = []

    def kill() -> None:
        for number in range(times):
            time.sleep(1.0)
            crew.wait_until_ready(3 + number)
            assert crew.kill(number % 3)
            killed.append(time.monotonic())
            time.sleep(1.0)

    _under_load(client, RATE, 2.5 * times, kill)
    all_ok(client)
    again = [each for each in client.ended if each.attempts > 1]
    row = f"SIGKILL of 1 of 3 workers, {times} times, {RATE:.0f}/s of 150"
    share = client.publishes()
    figure(row, "ok", f"{len(client.ended)}/{client.asked}", "all", passed=True)
    figure(row, "publishes a request", f"{share:.4f}", "<= 1.01", passed=share <= 1.01)
    worst = max((each.took for each in again), default=0.0)
    figure(
        row,
        "slowest of those that were sent again",
        f"{worst * 1e3:.0f} ms",
        "<= 100 ms + service",
        passed=worst <= 0.3,
    )
    assert crew.deaths == times
    assert share <= 1.05
