from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from itertools import count, pairwise, product
from statistics import fmean
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqinfer.cloud_worker.batching.adaptive import AdaptivePolicy, Arrivals
from mqinfer.cloud_worker.batching.batcher import Batch, Batcher, BatchPolicy, Choice, FinishedBatch, FixedPolicy, Ready
from mqinfer.cloud_worker.batching.cost_curve import CostCurve

Cost = Callable[[int, int], float]
"""Seconds of a batch, by its rows and its number."""


@dataclass
class Simulation:
    """A model, its callers and a batcher in simulated time: requests come, batches run one at a time.

    `rate` and `latencies` are of the second half.

    Args:
        policy: What is tried.
        cost: Of the device.
        noise: Standard deviation of the logarithm of each batch's time.
        gap: Seconds from the end of a batch to the beginning of the next, during which the device idles.
    """

    policy: BatchPolicy
    cost: Cost
    noise: float = 0.0
    gap: float = 0.0
    seed: int = 0
    rate: float = 0.0
    sizes: list[int] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)  # noqa: S311 - a simulation
        self.batcher: Batcher[float] = Batcher(lambda: self.policy)
        self.events: list[tuple[float, int, str, Any]] = []
        self.number = count()
        self.busy = False

    def callers(self, callers: int, back: float, batches: int = 1200) -> Simulation:
        """Let callers ask, each again after its reply; they take `back` seconds, give or take 30 %."""
        for _ in range(callers):
            self.plan(self.random.random() * back, "come")
        half = 0.0
        while len(self.sizes) < batches:
            now, ended = self.step()
            for _ in ended:
                self.plan(now + back * self.random.uniform(0.7, 1.3), "come")
            if ended and len(self.sizes) == batches // 2:
                half = now
        self.rate = sum(self.sizes[batches // 2 :]) / (now - half)
        return self

    def stream(self, per_second: float, requests: int = 3000) -> Simulation:
        """Let requests come whether or not there are replies (a Poisson process)."""
        now = 0.0
        for _ in range(requests):
            now += self.random.expovariate(per_second)
            self.plan(now, "come")
        ended: list[tuple[float, float]] = []
        while self.events:
            now, items = self.step()
            ended += ((now, item) for item in items)
        self.latencies = [end - came for end, came in ended[requests // 2 :]]
        return self

    def plan(self, at: float, kind: str, what: Any = None) -> None:
        """Note an event to come."""
        heapq.heappush(self.events, (at, next(self.number), kind, what))

    def step(self) -> tuple[float, list[float]]:
        """Let the next event happen; gives the time, and the arrivals of the requests that ended."""
        now, _, kind, what = heapq.heappop(self.events)
        ended: list[float] = []
        if kind == "come":
            self.batcher.add(Ready(now, "key", 1), now)
        elif kind == "end":
            batch = what
            ended = batch.items
            self.batcher.ended(batch, batch.rows, now)
            self.sizes.append(batch.rows)
            self.plan(now + self.gap, "free")
        elif kind == "free":
            self.busy = False
        if not self.busy:
            self.begin(now)
        return now, ended

    def begin(self, now: float) -> None:
        """Run a batch, or come again when there is one."""
        taken = self.batcher.take(now)
        if isinstance(taken, Batch):
            self.busy = True
            seconds = self.cost(taken.rows, len(self.sizes)) * self.random.lognormvariate(0, self.noise)
            self.plan(now + seconds, "end", taken)
        elif taken is not None:
            self.plan(now + taken + 1e-9, "wake")


MOST = 16
CURVES: dict[str, Cost] = {
    "no gain": lambda rows, _: 0.004 * rows,
    "a loss": lambda rows, _: 0.004 * rows**1.1,
    "linear": lambda rows, _: 0.002 + 0.001 * rows,
    "steep": lambda rows, _: 0.001 + 0.003 * rows,
    "flat": lambda _, __: 0.004,
    "steps of four": lambda rows, _: 0.004 * -(-rows // 4),
    "knee": lambda rows, _: 0.003 if rows <= 8 else 0.003 + 0.002 * (rows - 8),
    "tiny": lambda rows, _: 0.00005 + 0.00001 * rows,
}


@cache
def by_hand(curve: str, callers: int, noise: float) -> tuple[float, float]:
    """Give the best rate of the settings that a user would try, and that of no batching."""
    rates = {
        (rows, delay): Simulation(FixedPolicy(rows, delay), CURVES[curve], noise).callers(callers, 0.0005, 400).rate
        for rows in (1, 4, 8, 16)
        for delay in (0.0, 0.001)
    }
    return max(rates.values()), rates[1, 0.0]


@pytest.mark.parametrize("noise", [0.0, 0.15])
@pytest.mark.parametrize("callers", [1, 4, 16])
@pytest.mark.parametrize("curve", [*(set(CURVES) - {"tiny"}), pytest.param("tiny", marks=pytest.mark.full)])
def test_it_reaches_the_best_setting_by_hand(curve: str, callers: int, noise: float) -> None:
    """Within 5 % on every device at every load; with one caller it is no slower than no batching."""
    best, alone = by_hand(curve, callers, noise)
    rate = Simulation(AdaptivePolicy(MOST), CURVES[curve], noise).callers(callers, 0.0005).rate
    assert rate >= 0.95 * best
    if callers == 1:
        assert rate >= 0.98 * alone


@pytest.mark.parametrize("noise", [0.0, 0.15])
@pytest.mark.parametrize("callers", [4, 16])
@pytest.mark.parametrize("curve", ["no gain", "a loss", "linear", "flat"])
def test_what_it_costs_to_begin_a_batch_counts(curve: str, callers: int, noise: float) -> None:
    """Where the device idles for 2.4 ms between two batches, larger ones pay that would not without."""
    fixed = (Simulation(FixedPolicy(rows), CURVES[curve], noise, 0.0024) for rows in (1, 4, 8, 16))
    best = max(each.callers(callers, 0.0005, 400).rate for each in fixed)
    adaptive = Simulation(AdaptivePolicy(MOST), CURVES[curve], noise, 0.0024).callers(callers, 0.0005)
    assert adaptive.rate >= 0.95 * best


@settings(max_examples=25, derandomize=True)  # a simulation: the same one each time
@given(
    fixed=st.floats(3e-5, 5e-3),
    per_row=st.floats(3e-5, 5e-3),
    back=st.floats(2e-4, 1e-2),
    callers=st.integers(1, 24),
    noise=st.sampled_from([0.0, 0.2]),
)
def test_it_is_never_slower_than_no_batching(
    fixed: float, per_row: float, back: float, callers: int, noise: float
) -> None:
    """Whatever a batch costs, however long callers take and however many there are, but for a few per cent of noise."""

    def cost(rows: int, _: int) -> float:
        return fixed + per_row * rows

    alone = Simulation(FixedPolicy(1), cost, noise).callers(callers, back, 1200).rate
    assert Simulation(AdaptivePolicy(MOST), cost, noise).callers(callers, back).rate >= 0.94 * alone


@pytest.mark.parametrize(
    ("before", "after", "sizes"), [("flat", "no gain", (8, 1)), ("no gain", "flat", (1, 8)), ("linear", "flat", (8, 8))]
)
def test_a_device_that_changes_is_learned_anew(before: str, after: str, sizes: tuple[int, int]) -> None:
    """With eight callers: what paid before is dropped, what did not is taken up, within a few hundred batches."""

    def cost(rows: int, number: int) -> float:
        return CURVES[before if number < 600 else after](rows, number)

    run = Simulation(AdaptivePolicy(8), cost).callers(8, 0.0005, 2000)
    for part, size in zip((run.sizes[400:600], run.sizes[-200:]), sizes, strict=True):
        rows_at_that_size = sum(each for each in part if each == size)
        assert rows_at_that_size >= 0.8 * sum(part)


@pytest.mark.parametrize(
    ("curve", "per_second"), [*product(["linear", "flat"], [50, 200, 400]), ("no gain", 50), ("no gain", 200)]
)
def test_requests_that_come_regardless_wait_little_longer(curve: str, per_second: int) -> None:
    """Where nobody waits for replies the mean latency stays near that of the best setting by hand."""
    best = min(
        fmean(Simulation(FixedPolicy(rows, delay), CURVES[curve]).stream(per_second).latencies)
        for rows in (1, 4, 16)
        for delay in (0.0, 0.002)
    )
    assert fmean(Simulation(AdaptivePolicy(MOST), CURVES[curve]).stream(per_second).latencies) <= 1.1 * best


@settings(max_examples=20, derandomize=True)
@given(target=st.floats(0.004, 0.1), callers=st.integers(1, 40), noise=st.sampled_from([0.0, 0.1]))
def test_a_latency_target_bounds_the_batch(target: float, callers: int, noise: float) -> None:
    """No batch is taken that is expected to take more than half of the target, but for single rows."""

    def cost(rows: int, _: int) -> float:
        return 0.001 + 0.001 * rows

    run = Simulation(AdaptivePolicy(64, target), cost, noise).callers(callers, 0.0005, 600)
    largest = max(1.0, (target / 2 - 0.001) / 0.001 * (1 + 3 * noise))
    assert sum(size > largest for size in run.sizes) <= 0.02 * len(run.sizes)


def test_it_begins_with_single_rows_and_grows_by_doubling() -> None:
    """Nothing is risked before it is known: with a full queue each size is at most twice the largest known one."""
    policy = AdaptivePolicy(64)
    largest = 0
    for now in range(60):
        policy.came(64, now)
        rows, wait = policy.choose(64, now, now)
        assert wait == 0
        assert rows <= max(1, 2 * largest)
        policy.began(rows, now)
        policy.ended(FinishedBatch(rows, rows, 1.0), 64, now + 1)
        largest = max(largest, rows)
    assert largest == 64


@pytest.mark.parametrize(("callers", "gain"), [(1, 0.95), (4, 2.2), (16, 4), (64, 6)])
def test_a_device_on_which_batches_are_filled_up(callers: int, gain: float) -> None:
    """Where a batch costs what the next prepared size does, the batch that pays is found all the same."""
    seconds = {1: 0.0013, 4: 0.0016, 8: 0.0023, 16: 0.0037, 32: 0.0064, 64: 0.0117}  # ResNet-50 on an H200, in part

    def cost(rows: int, number: int) -> float:  # noqa: ARG001 - the simulation's
        return next(took for size, took in seconds.items() if size >= rows)

    simulation = Simulation(AdaptivePolicy(64), cost).callers(callers, 0.0005)
    assert simulation.rate > gain / (seconds[1] + 0.0005 * (callers == 1))


def test_a_lone_caller_never_waits() -> None:
    """However often it has come back."""
    policy = AdaptivePolicy(8)
    for number in range(200):
        now = number * 0.01
        policy.came(1, now)
        assert policy.choose(1, now, now) == Choice(1)
        policy.began(1, now)
        policy.ended(FinishedBatch(1, 1, 0.005), 0, now + 0.005)


def test_streams_share_what_is_idle() -> None:
    """With several free requests of the engine the waiting rows are divided among them."""
    policy = AdaptivePolicy(8, trials=0.0)
    for size in (1, 2, 4, 8):
        for _ in range(5):
            policy.began(size, 0.0)
            policy.ended(FinishedBatch(size, size, 1.0), 0, 0.0)
    assert policy.choose(8, 0.0, 0.0, idle=1) == Choice(8)
    assert policy.choose(8, 0.0, 0.0, idle=2) == Choice(4)
    assert policy.choose(3, 0.0, 0.0, idle=4) == Choice(1)


def test_expired_requests_teach_nothing() -> None:
    """A batch of which nothing ran is no batch that takes no time."""
    policy = AdaptivePolicy(8)
    for _ in range(20):
        policy.began(4, 0.0)
        policy.ended(FinishedBatch(4, 0, 1e-6), 0, 0.0)
    assert policy.choose(8, 0.0, 0.0) == Choice(1)


@given(st.floats(1e-6, 1.0), st.floats(1e-6, 1.0), st.sets(st.integers(1, 500), min_size=2), st.integers(1, 1000))
@example(1.0, 0.00390625, {32, 33}, 44)
def test_a_linear_curve_is_found_everywhere(fixed: float, per_row: float, sizes: set[int], asked: int) -> None:
    """Between and above the sizes that were seen; below the smallest its time is what is expected at most."""
    curve = CostCurve()
    for size in sizes:
        for _ in range(6):
            curve.add(size, fixed + per_row * size)
    expected = fixed + per_row * asked
    if asked < min(sizes):
        assert curve.seconds(asked) >= expected * 0.999
    elif len(curve._points) > 1:
        assert curve.seconds(asked) == pytest.approx(expected, rel=0.3)
    else:  # sizes that share a point are one size, which promises no gain
        assert expected * 0.7 <= curve.seconds(asked) <= (fixed + per_row * max(sizes)) * max(1, asked / min(sizes))


@given(st.lists(st.integers(1, 1 << 20), max_size=200))
def test_the_curve_is_bounded_in_memory(sizes: list[int]) -> None:
    """About four points for each doubling, whatever sizes come."""
    curve = CostCurve()
    for size in sizes * 5:
        curve.add(size, 1.0)
    known = curve.sizes(1 << 20)
    assert len(known) == len(curve._points) <= 8 + 4 * 18
    assert known == sorted(known)


def test_first_runs_and_outliers_count_little() -> None:
    """A first run that is a hundred times slower and a pause of the machine later leave the estimate near the rest."""
    curve = CostCurve()
    for number in range(100):
        curve.add(4, 1.0 if number in (0, 50) else 0.01)
    assert curve.seconds(4) == pytest.approx(0.01, rel=0.1)
    assert curve.knows(4)
    assert not curve.knows(3)


def test_one_size_alone_promises_no_gain() -> None:
    """Before a second size was seen, twice the rows are taken to need twice the time."""
    curve = CostCurve()
    assert curve.seconds(3) == 0.0
    curve.add(2, 0.5)
    assert (curve.seconds(1), curve.seconds(2), curve.seconds(8)) == (0.5, 0.5, 2.0)


@given(st.integers(1, 12), st.floats(0.01, 1.0))
def test_callers_are_counted_and_their_return_is_timed(callers: int, back: float) -> None:
    """After some batches as many are expected as there are, when they came back before."""
    arrivals = Arrivals(32)
    for number in range(40):
        start = number * 10.0
        arrivals.ended(0, start)
        for caller in range(callers):
            arrivals.came(caller + 1, start + back * (caller + 1))
    arrivals.ended(0, 400.0)
    assert arrivals.expected() == callers
    dues = [arrivals.due(rows) for rows in range(1, callers + 1)]
    assert dues == pytest.approx([400.0 + back * rows for rows in range(1, callers + 1)])
    assert all(later > sooner for sooner, later in pairwise(dues))


def test_callers_that_went_away_are_not_expected_for_long() -> None:
    """Missed three times, they are forgotten until they have come again and again."""
    arrivals = Arrivals(8)
    for number in range(40):
        arrivals.ended(0, number)
        arrivals.came(4, number + 0.5)
    arrivals.ended(1, 40.0)
    misses = 0
    while arrivals.expected() > 1:
        arrivals.missed()
        misses += 1
    assert misses <= 3
