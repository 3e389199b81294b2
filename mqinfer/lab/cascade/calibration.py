"""Chooses the thresholds of a cascade for a target accuracy, as NoScope's optimiser does, with a stated confidence.

The optimiser (arXiv:1703.02529, section 6) searches the thresholds with the least cost on recorded scores. What is best
on some frames looks better on them than it is. So the first half of the frames only proposes thresholds, one set for
each of some bounds from safe to cheap. The second half tests the proposals in this order, and the last one before
the first failure is chosen: a false promise is then no likelier than in one test (fixed sequence testing, as in "Learn
then Test", arXiv:2110.01052, section 3).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mqinfer.judging.thumbnail import difference
from mqinfer.lab.cascade.scores import Costs, Scores
from mqinfer.lab.cascade.simulation import Pass, Thresholds
from mqinfer.protocol.errors import ConfigError

Floats = npt.NDArray[np.float64]
_LONGEST_LAG = 100
"""Errors farther apart than this many frames count as independent."""


def design_effect(series: Sequence[Floats]) -> float:
    """Return how many consecutive frames tell as little about a mean as one independent frame; at least 1.

    It is `1 + 2 * sum((1 - k / K) * r_k)` for `k = 1 ... K - 1` (Newey and West, Econometrica 55, 1987), where `r_k` is
    the correlation of a frame with the k-th after it; the largest one of all series that vary, since one without
    errors shows nothing of their correlation.

    Args:
        series: What is averaged, and what varies like it, each [n].
    """
    return max([1.0, *map(_design_effect, series)])


def _design_effect(values: Floats) -> float:
    lags = min(_LONGEST_LAG, max(len(values) // 5, 1))
    centred = values - values.mean()
    variance = float(centred @ centred)
    if variance <= 0:
        return 1.0
    # The sum over all pairs at once: the transform of the correlations is the spectrum.
    spectrum = np.abs(np.fft.rfft(centred, 2 * len(centred))) ** 2
    correlations = np.fft.irfft(spectrum)[1:lags] / variance
    return float(1 + 2 * (1 - np.arange(1, lags) / lags) @ correlations)


def lower_bound(mean: Floats, at_risk: Floats, count: Floats, confidence: float) -> Floats:
    """Return what the true mean of values from 0 to 1 exceeds with a confidence, given the mean of some of them.

    Values that are not at risk are 1. For the others it is the smallest `p` with
    `count * KL(mean, p) <= ln(1 / (1 - confidence))`, Chernoff's bound in Hoeffding's form (J. Am. Stat. Assoc. 58,
    1963, theorem 1), which holds for every distribution; where all values are 1 it is Clopper and Pearson's.

    Args:
        mean: Of all values, 0 to 1.
        at_risk: Share of the values that may be below 1.
        count: How many independent values at risk there are.
        confidence: Such as 0.95.
    """
    risk = np.maximum(at_risk, 1e-9)
    own = np.clip(1 - (1 - np.asarray(mean)) / risk, 0.0, 1.0)
    allowed = -math.log(1 - confidence) / np.maximum(count, 1e-9)
    low, high = np.zeros_like(own), own.copy()
    for _ in range(50):
        middle = (low + high) / 2
        is_far = _divergence(own, middle) > allowed
        low, high = np.where(is_far, middle, low), np.where(is_far, high, middle)
    return np.where(at_risk > 0, 1 - risk * (1 - low), 1.0)


def _divergence(mean: Floats, assumed: Floats) -> Floats:
    """Return the relative entropy of two coins; `assumed` is above 0 where `mean` is."""
    tiny = 1e-300
    first = mean * (np.log(np.maximum(mean, tiny)) - np.log(np.maximum(assumed, tiny)))
    second = (1 - mean) * (np.log(np.maximum(1 - mean, tiny)) - np.log(np.maximum(1 - assumed, tiny)))
    return np.asarray(first + second)


NEVER = 2.0
"""A `c_high` that no confidence reaches: the small model answers nothing then."""
_DIFFERENCES = 14
_CONFIDENCES = 48
_LEAST_FRAMES = 40
_SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.2, 1.5, 2.0, 4.0)
"""What is proposed: thresholds that surely lose at most these shares of the allowed loss on the first half."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What is promised.

    Attributes:
        accuracy: Share of the frames whose answer is the reference's own, or mean share of equal pixels.
        tolerance: With the confidence, the accuracy on other frames of the video is at most this much lower.
        confidence: Of the promise: 0.95 is 19 of 20 calibrations.
    """

    accuracy: float = 0.98
    tolerance: float = 0.01
    confidence: float = 0.95

    def __post_init__(self) -> None:
        for name in ("accuracy", "confidence"):
            if not 0.5 <= getattr(self, name) < 1:
                raise ConfigError(
                    f"{name} {getattr(self, name):g}: expected a number from 0.5 to below 1; a sample can't promise 1"
                )
        if not 0 <= self.tolerance < self.accuracy:
            raise ConfigError(f"tolerance {self.tolerance:g}: expected 0 or more, and less than the accuracy")

    @property
    def least(self) -> float:
        """What the accuracy on other frames is to exceed with the confidence."""
        return self.accuracy - self.tolerance


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One point of the frontier of accuracy against cost.

    Attributes:
        thresholds: Its thresholds.
        proposed: Accuracy on the frames that proposed it.
        tested: Accuracy on the frames that tested it.
        bound: What the accuracy on other frames exceeds with the goal's confidence.
        per_independent: How many of the tested frames count as one independent frame.
        reused: Share of the frames that got the last answer.
        small: Share that the small model answered.
        reference: Share that the reference answered.
        cost_ms: Of a frame on average, in milliseconds of a processor core.
    """

    thresholds: Thresholds
    proposed: float
    tested: float
    bound: float
    per_independent: float
    reused: float
    small: float
    reference: float
    cost_ms: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """A frontier, and the point that was chosen on it.

    Attributes:
        goal: What is promised.
        chosen: The cheapest point that keeps the promise.
        frontier: From the safest to the cheapest.
        frames: How many frames were used, half to propose and half to test.
        costs: What the stages cost.
    """

    goal: Goal
    chosen: FrontierPoint
    frontier: tuple[FrontierPoint, ...]
    frames: int
    costs: Costs


def calibrate(scores: Scores, goal: Goal, *, blocks: int = 1) -> Calibration:
    """Choose the thresholds with the least cost that keep the goal.

    Args:
        scores: Recorded on frames that the small model was not trained on.
        goal: What is promised.
        blocks: Rows and columns of the difference detector's blocks.

    Raises:
        ConfigError: There are too few frames, the reference answers the same for each, or no thresholds keep the goal.
    """
    if len(scores) < _LEAST_FRAMES:
        raise ConfigError(f"{len(scores)} frames are too few to calibrate with; expected {_LEAST_FRAMES} or more")
    if (scores.reference == scores.reference[0]).all():
        raise ConfigError(
            f"the reference answers the same for all {len(scores)} frames, so no threshold can be judged; choose a "
            "part of the recording where the target comes and goes, or another target"
        )
    half = len(scores) // 2
    passes = [Pass(scores, t_diff, blocks) for t_diff in _differences(scores, blocks)]
    points = []
    for run, thresholds in _propose(passes, scores.costs, half, goal):
        points.append(_judge(run, thresholds, goal, half, scores.costs))
    kept = itertools.takewhile(lambda point: point.bound >= goal.least, points)
    within = [point for point in kept if point.proposed >= goal.accuracy and point.reference < 1]
    if not within:
        raise ConfigError(_unreachable(goal, points, len(scores)))
    cheapest = min(within, key=lambda point: point.cost_ms)
    return Calibration(goal, cheapest, tuple(points), len(scores), scores.costs)


def _differences(scores: Scores, blocks: int) -> list[float]:
    """Return the values of `t_diff` to try: 0, and quantiles of the differences of frames near each other."""
    pictures = scores.thumbnails
    step = max(len(scores) // 300, 1)
    pairs = ((number, number + apart) for apart in (1, 8) for number in range(0, len(scores) - apart, step))
    found = [difference(pictures[one], pictures[other], blocks) for one, other in pairs]
    quantiles = np.quantile(found, np.linspace(0.05, 0.98, _DIFFERENCES))
    return [0.0, *sorted({float(f"{each:.3g}") for each in quantiles if each > 0})]


def _propose(passes: Sequence[Pass], costs: Costs, half: int, goal: Goal) -> list[tuple[Pass, Thresholds]]:
    """Return the cheapest thresholds for each of some lower bounds on the first half, from the safest on."""
    searches = [_Search(run, costs, half, goal) for run in passes]
    found = []
    for share in _SHARES:
        best = min(searches, key=lambda search: search.cheapest(1 - share * (1 - goal.least))[0])
        found.append((best.run, best.cheapest(1 - share * (1 - goal.least))[1]))
    return list({thresholds: (run, thresholds) for run, thresholds in found}.values())


class _Search:
    """Cost and bound of all pairs of confidences for one `t_diff`, on the frames of the first half."""

    def __init__(self, run: Pass, costs: Costs, half: int, goal: Goal) -> None:
        self.run = run
        is_key = run.is_key[:half].astype(np.float64)
        grid = np.quantile(run.confidences[:half], np.linspace(0, 1, _CONFIDENCES)).astype(np.float64)
        self._grid = np.unique(np.round([0.0, *grid, 1.0, NEVER], 6))
        is_below = (run.confidences[:half, None] < self._grid[None, :]).astype(np.float64)
        by_reference, (by_low, by_high) = run.by_reference[:half], (each[:half] for each in run.by_small)
        lost_low, lost_high = (by_reference - by_low) @ is_below, (by_reference - by_high) @ (1 - is_below)
        keys_below = is_key @ is_below
        asked = np.maximum(keys_below[None, :] - keys_below[:, None], 0)
        is_small = (self._grid[:, None] > 0) | (self._grid[None, :] <= 1)
        spent = costs.difference * half * (run.t_diff > 0) + costs.small * is_key.sum() * is_small
        is_high = (self._grid[None, :] <= 1) | (self._grid[:, None] == 0)  # a file's c_high is 1 at most
        is_allowed = (
            (self._grid[:, None] <= self._grid[None, :]) & (self._grid[:, None] <= (not run.has_masks)) & is_high
        )
        self._cost = np.where(is_allowed, (spent + costs.reference * asked) / half, math.inf)
        mean = (by_reference.sum() - lost_low[:, None] - lost_high[None, :]) / half
        at_risk = 1 - asked / half
        count = at_risk * half / max(design_effect([run.doubt[:half]]), run.reach(slice(half)))
        self._bound = lower_bound(mean, at_risk, count, goal.confidence)
        self._cost[mean < goal.accuracy] = math.inf

    def cheapest(self, bound: float) -> tuple[float, Thresholds]:
        """Return the least cost with at least this bound, and its thresholds; infinite if there are none."""
        costs = np.where(self._bound >= bound, self._cost, math.inf)
        low, high = np.unravel_index(int(costs.argmin()), costs.shape)
        return float(costs[low, high]), Thresholds(self.run.t_diff, float(self._grid[low]), float(self._grid[high]))


def _judge(run: Pass, thresholds: Thresholds, goal: Goal, half: int, costs: Costs) -> FrontierPoint:
    """Test thresholds on the second half.

    One wrong answer is wrong for as many frames as get it. How long errors last beyond that, thresholds without errors
    do not show; so thresholds that are less strict show it too.
    """
    values = run.agreement(thresholds)
    near = replace(thresholds, c_low=(thresholds.c_low + 0.5) / 2, c_high=(min(thresholds.c_high, 1.0) + 0.5) / 2)
    looser = [values, run.agreement(near), run.doubled.agreement(near), run.doubt]
    per_frame = max(design_effect([each[half:] for each in looser]), run.reach(slice(half, None)))
    reused, small, reference = run.shares(thresholds, slice(half, None))
    at_risk = np.float64(1 - reference)
    count = at_risk * (len(values) - half) / per_frame
    proposed, tested = float(values[:half].mean()), values[half:].mean()
    bound = float(lower_bound(np.array(tested), np.array(at_risk), np.array(count), goal.confidence))
    is_small = thresholds.c_low > 0 or thresholds.c_high <= 1
    cost = (
        costs.difference * (thresholds.t_diff > 0) + costs.small * (1 - reused) * is_small + costs.reference * reference
    )
    return FrontierPoint(thresholds, proposed, float(tested), bound, per_frame, reused, small, reference, cost)


def _unreachable(goal: Goal, points: Sequence[FrontierPoint], frames: int) -> str:
    saving = next((point for point in points if point.reference < 1), None)
    best = (
        "no thresholds save anything on the first half of the frames"
        if saving is None
        else f"the safest thresholds that save anything kept {saving.tested:.4f} of {frames - frames // 2} frames, "
        f"{saving.per_independent:.0f} neighbouring frames count as one, and only {saving.bound:.4f} is sure"
    )
    return (
        f"accuracy {goal.accuracy:g} within {goal.tolerance:g} can't be promised with confidence {goal.confidence:g}: "
        f"{best}. Calibrate with more frames, train the small model with more, or lower --accuracy or --confidence"
    )
