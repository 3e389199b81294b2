from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import pytest

from benchmarks.autoscale.patterns import PATTERNS, Frame, frames_of
from benchmarks.autoscale.rules import CHOSEN, CONTESTANTS, PodAutoscaler
from benchmarks.autoscale.simulation import SiteOptions, follow
from mqinfer.metrics.lag import Lag
from mqinfer.metrics.scaling import Scaler, ScalingRule
from mqinfer.protocol.states import WorkerState

FRAMES: list[Frame] = [(60 + number / 2, number % 3, 30.0) for number in range(240)]
"""Two frames a second for two minutes, behind a quiet one: work for two workers."""
QUIET = SiteOptions(seconds=300)


class Fixed:
    """Wants the same number of workers always."""

    def __init__(self, count: int) -> None:
        self._count = count

    def update(self, now: float, lag: Lag, workers: Sequence[WorkerState]) -> int:
        """Return that number."""
        del now, lag, workers
        return self._count


@pytest.mark.parametrize(("count", "is_late"), [(1, True), (2, False)])
def test_workers_cost_and_are_worth_what_they_take(count: int, is_late: bool) -> None:  # noqa: FBT001 -- a column of the table
    """One worker answers half of the frames in time, two all of them; each costs the time that it is there."""
    found = follow(FRAMES, Fixed(count), QUIET)
    assert found.frames == 240
    assert bool(found.late) is is_late
    assert found.worker_s == pytest.approx(count * 300, abs=count * 3)


def test_the_rule_follows_the_frames() -> None:
    """Up when they come, down when they end, and the same again from the same frames."""
    found = follow(FRAMES, Scaler(), QUIET)
    counts = [1, *(count for _, count in found.curve)]
    assert (found.late, counts[-1]) == (0, 1)
    assert max(counts) > 1
    assert found.worker_s < 2.5 * 300
    assert found.curve == follow(FRAMES, Scaler(), QUIET).curve


def test_a_chosen_rule_is_the_products() -> None:
    """The contest has the rule as the product uses it, and no rule twice."""
    assert CHOSEN in CONTESTANTS
    scaler = CONTESTANTS[CHOSEN]()
    assert isinstance(scaler, Scaler)
    assert scaler.rule == ScalingRule()


def test_patterns_are_in_order_and_repeat() -> None:
    """A seed is one list of frames, by time."""
    for name in PATTERNS:
        frames = frames_of(name)
        assert all(before[0] <= after[0] for before, after in pairwise(frames))
        assert frames == frames_of(name)


def test_kubernetes_rule() -> None:
    """It looks every 15 s, keeps what is near, adds four or as many as there are, and waits 300 s to take away."""
    wanted = [1.0]
    pods = PodAutoscaler(lambda *_: wanted[0])

    def at(seconds: float, value: float) -> int:
        wanted[0] = value
        return pods.update(seconds, Lag(), ())

    assert at(0.0, 20.0) == 5
    assert at(14.0, 20.0) == 5
    assert at(15.0, 20.0) == 8  # the most
    assert at(30.0, 7.3) == 8
    assert at(45.0, 1.0) == 8
    assert at(330.0, 1.0) == 8  # what was wanted at 30 s
    assert at(345.0, 1.0) == 1
