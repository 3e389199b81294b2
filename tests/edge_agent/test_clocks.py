from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer import InferResult, Outcome
from mqinfer.edge_agent.frames.times import Clocks, Exchange
from mqinfer.protocol.types import Scalar

MS, SECOND = 1_000_000, 1_000_000_000


class Link:
    """A worker whose clock is wrong, behind ways that take differently long."""

    def __init__(
        self, seed: int, error: int, *, up: tuple[int, int], down: tuple[int, int], drift: float = 0.0
    ) -> None:
        self.now = 10**18
        self.error = error
        self._random = random.Random(seed)  # noqa: S311  the network's delays
        self._up, self._down, self._drift = up, down, drift
        self._began = self.now

    @property
    def offset(self) -> int:
        """How far the worker's clock is ahead now."""
        return self.error + round(self._drift * (self.now - self._began))

    def exchange(self) -> Exchange:
        """Send a request, and receive its reply."""
        sent = self.now
        self.now += self._random.randint(*self._up)
        arrived = self.now + self.offset
        self.now += 20 * MS
        replied = self.now + self.offset
        self.now += self._random.randint(*self._down)
        received = self.now
        self.now += 100 * MS
        return Exchange(sent, arrived, replied, received)


@pytest.mark.parametrize("error", [3 * SECOND, -3 * SECOND])
@pytest.mark.parametrize("jittery", ["up", "down"])
@pytest.mark.parametrize("drift", [0.0, 50e-6])
def test_three_seconds_and_jitter_of_20_ms_one_way(error: int, jittery: str, drift: float) -> None:
    """The estimate is right within 1 ms, and always within what it states."""
    ways = {"up": (MS, MS), "down": (MS, MS), jittery: (MS, 21 * MS)}
    for seed in range(50):
        link, clocks = Link(seed, error, drift=drift, **ways), Clocks()
        for _ in range(150):
            exchange = link.exchange()
            found = clocks.add("w", exchange)
            assert abs(found.offset - link.offset) <= found.uncertainty + 10_000  # what it drifted in the pause since
        assert abs(found.offset - link.offset) < MS
        assert found.uncertainty < 3 * MS


@given(
    seed=st.integers(0, 2**32),
    error=st.integers(-(10**12), 10**12),
    ways=st.tuples(*[st.integers(0, SECOND)] * 4),
    count=st.integers(1, 30),
)
def test_the_truth_is_within_what_is_stated(seed: int, error: int, ways: tuple[int, ...], count: int) -> None:
    """Whatever the ways take, while the clocks run alike."""
    up, down = sorted(ways[:2]), sorted(ways[2:])
    link, clocks = Link(seed, error, up=(up[0], up[1]), down=(down[0], down[1])), Clocks()
    for _ in range(count):
        exchange = link.exchange()
        found = clocks.add("w", exchange)
        assert abs(found.offset - error) <= found.uncertainty + 1
        assert found.uncertainty <= (exchange.received - exchange.sent - exchange.inside) // 2 + 1


def test_a_clock_that_was_set_is_learnt_anew() -> None:
    """One exchange that contradicts what was known replaces it."""
    link, clocks = Link(1, 0, up=(MS, 2 * MS), down=(MS, 2 * MS)), Clocks()
    for _ in range(20):
        clocks.add("w", link.exchange())
    link.error = 40 * MS
    found = clocks.add("w", link.exchange())
    assert abs(found.offset - 40 * MS) <= found.uncertainty <= 2 * MS


def test_each_worker_has_its_clock_and_their_number_is_bounded() -> None:
    """The worker that replied longest ago is forgotten first."""
    link, clocks = Link(1, 0, up=(MS, MS), down=(MS, MS)), Clocks()
    for number in range(300):
        link.error = number * SECOND
        clocks.add(f"w-{number:03}", link.exchange())
    found = clocks.offsets()
    assert list(found) == [f"w-{number:03}" for number in range(44, 300)]
    assert found["w-099"].offset == 99 * SECOND


@pytest.mark.parametrize(
    ("attempts", "stamps"),
    [
        (1, {}),
        (1, {"received_time_ns": 5}),
        (1, {"received_time_ns": "5", "sent_time_ns": "6"}),
        (1, {"received_time_ns": True, "sent_time_ns": True}),
        (1, {"received_time_ns": 0.5, "sent_time_ns": float("nan")}),
        (1, {"received_time_ns": 9, "sent_time_ns": 5}),
        (1, {"received_time_ns": 0, "sent_time_ns": 10**18}),
        (2, {"received_time_ns": 5, "sent_time_ns": 6}),
    ],
)
def test_replies_that_tell_nothing(attempts: int, stamps: dict[str, Scalar]) -> None:
    """Without stamps, with impossible ones, or to one of several attempts."""
    result = InferResult("1", Outcome.OK, "m", worker="w", attempts=attempts, parameters=stamps)
    assert Clocks().exchange(result, 100, 200) is None


def test_clocks_that_were_read_apart_only_widen_the_bounds() -> None:
    """An interruption between reading the monotonic clock and that of the day misleads nobody."""
    readings = iter([1000, 1900])
    clocks = Clocks(lambda: next(readings), lambda: 50_000 + 1500)
    result = InferResult(
        "1", Outcome.OK, "m", worker="w", attempts=1, parameters={"received_time_ns": 50_510, "sent_time_ns": 50_520}
    )
    exchange = clocks.exchange(result, 500, 530)
    assert exchange is not None
    found = clocks.add("w", exchange)
    assert abs(found.offset) <= found.uncertainty
