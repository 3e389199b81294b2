"""Batching that needs no delay set by hand: learns what a batch costs, and chooses the batch that pays.

Three habits, each from what was measured while serving:

- **What waits while one batch runs is the next batch**, as in Clipper (Crankshaw et al., NSDI 2017, section 4.3) with a
  delay of 0 and as GPU servers do under load: a lone caller is never delayed.
- **Grow while it pays.** Clipper finds the largest batch within the latency objective by additive increase and
  multiplicative decrease. Here the time of each size is smoothed into a curve instead, sizes are tried by doubling
  while the rows a second still grow by more than 2 %, and the smallest size within 2 % of the best is used: more would
  only make requests wait. On a CPU large networks stay at 1. With a latency target, a batch may take at most half of
  it, since a request waits for about one batch before its own.
- **Wait for callers that are sure to come back.** Callers that just got a reply often ask again at once. How many they
  are, and how soon they come, is measured; the next batch waits for them only where one batch of all takes less time
  than two, by more than the wait: the saving in the closed form of batch service queues (Deb and Serfozo, 1973).
  Where they don't come, the forecast is corrected at once.

A batch costs the time from the end of the one before it, where requests waited then: changing from one batch to the
next takes time as well, and larger batches do it less often. What else could pay is tried again now and then, for at
most about 1 % of the model's time, since devices and their other users change.
"""

from __future__ import annotations

from mqinfer.cloud_worker.batching.batcher import Choice, FinishedBatch
from mqinfer.cloud_worker.batching.cost_curve import CostCurve

_MARGIN = 0.02
"""The smallest size is used whose rows a second are at least `1 - _MARGIN` of the best size's."""

_PATIENCE = 2.0
"""A batch waits for callers for at most `_PATIENCE` times as long as they usually take to come back."""

_LONGEST = 0.5
"""A batch waits for at most this share of the time that it would take: for callers that don't wait for replies, which
can't be told from others, latency then grows by little."""

_ARRIVAL_WEIGHT = 0.1
"""Weight of the newest reading in the times and shares of callers that come back."""

_SURE = 0.75
"""Share of the last batches after which a number of rows came, from which so many are expected."""


class AdaptivePolicy:
    """Chooses batches for the requests of one key. Not thread-safe."""

    def __init__(self, max_rows: int, latency_target: float | None = None, trials: float = 0.01) -> None:
        """Begin knowing nothing: the first batches are single rows.

        Args:
            max_rows: Rows of a batch at most; 1 or more.
            latency_target: Seconds from a request's arrival at the batcher to its result that batching may not exceed;
                None for throughput alone.
            trials: Share of the model's time that trials of other sizes may cost.
        """
        self._max_rows = max(1, max_rows)
        self._target = latency_target
        self._trials = trials
        self._curve = CostCurve()
        self._arrivals = Arrivals(self._max_rows)
        self._running = 0  # rows
        self._chosen: dict[int, int] = {}  # the size that pays, by the rows that there are
        self._trial_budget = 0.0  # seconds that trials may cost
        self._trial = 0  # counts them
        self._goal = 0  # rows that a batch waits for,
        self._until: float | None = None  # and how long; None while none does
        self._latest = 0.0  # end of all waiting for the batch

    def came(self, waiting: int, now: float) -> None:
        """Learn how soon requests come."""
        self._arrivals.came(waiting + self._running, now)

    def choose(self, waiting: int, oldest: float, now: float, idle: int = 1) -> Choice:
        """Choose the size that pays; wait only for callers that will soon be back."""
        if not self._running and waiting < self._max_rows:
            wait = self._wait(waiting, oldest, now)
            if wait > 0:
                return Choice(self._max_rows, wait)
        share = min(-(-waiting // idle), self._max_rows)
        return Choice(self._trial_size(share) or self._best(share))

    def began(self, rows: int, now: float) -> None:  # noqa: ARG002 - the contract's
        """Count the rows that run."""
        self._running += rows
        self._until = None

    def ended(self, batch: FinishedBatch, waiting: int, now: float) -> None:
        """Learn from a batch."""
        self._running -= batch.rows
        self._arrivals.ended(waiting + self._running, now)
        if batch.seconds > 0 and batch.ran > 0:
            self._curve.add(batch.ran, batch.seconds)
            self._chosen.clear()
            self._trial_budget = min(self._trial_budget + self._trials * batch.seconds, 10 * batch.seconds)

    def _best(self, most: int) -> int:
        """Return the size that pays, up to so many rows."""
        best = self._chosen.get(most)
        if best is None:
            best = self._chosen[most] = self._find_best(most)
        return best

    def _find_best(self, most: int) -> int:
        """Compare known sizes by their rates, and go on to twice the largest known one while growing pays."""
        curve = self._curve
        known = curve.sizes(most) if most > 1 else []
        if not known:
            return 1
        best = self._paying([size for size in known if self._in_time(size)] or [1])
        if best == known[-1]:  # larger ones were not tried, or not often enough
            bound = min(most, 2 * best)
            return bound if self._in_time(bound) else best
        if most < 2 * known[-1] and not curve.knows(most) and self._in_time(most):
            return self._paying([best, most])
        return best

    def _paying(self, sizes: list[int]) -> int:
        rates = [size / self._curve.seconds(size) for size in sizes]
        enough = max(rates) * (1 - _MARGIN)
        return next(size for size, rate in zip(sizes, rates, strict=True) if rate >= enough)

    def _in_time(self, rows: int) -> bool:
        return self._target is None or rows == 1 or 2 * self._curve.seconds(rows) <= self._target

    def _trial_size(self, most: int) -> int | None:
        """Return another size than the best one, where the budget of trials allows it: each doubling in turn."""
        if self._trial_budget <= 0 or most < 2 or not self._curve.knows(1):
            return None
        self._trial += 1
        size = 1 << self._trial % most.bit_length()
        best = self._best(most)
        if size == best or not self._in_time(size):
            return None
        curve = self._curve
        took = curve.seconds(size)
        excess = took - size * curve.seconds(best) / best if curve.knows(size) else took / 2
        self._trial_budget -= max(excess, 0.1 * took)
        return size

    def _wait(self, waiting: int, oldest: float, now: float) -> float:
        """Return the seconds for which waiting for callers pays; 0 to run now."""
        if self._until is None or waiting >= self._goal:
            self._until = self._consider(waiting, oldest, now)
        elif now >= self._until:
            self._arrivals.missed()
        return 0.0 if self._until is None else self._until - now

    def _consider(self, waiting: int, oldest: float, now: float) -> float | None:
        """Decide whether to wait, for how many rows (the goal) and until when at most."""
        arrivals, curve = self._arrivals, self._curve
        if not arrivals.expects(waiting + 1) or arrivals.due(waiting + 1) - now > curve.seconds(waiting):
            return None  # nobody will come back, or too late for any saving
        expected = arrivals.expected()
        if self._until is None:
            self._latest = now + _LONGEST * curve.seconds(waiting)
        best = self._best(min(expected, self._max_rows))
        apart = self._rate_apart(waiting, min(expected - waiting, best), now)
        for goal in {best, min(best, waiting + 1)}:
            patient_until = min(arrivals.due(goal, _PATIENCE), self._latest)
            wait = arrivals.due(goal) - now
            if goal > waiting and patient_until - now > max(0.0, wait) and self._pays(goal, wait, now - oldest, apart):
                self._goal = goal
                return patient_until
        return None

    def _pays(self, goal: int, wait: float, age: float, apart: float) -> bool:
        """Return whether waiting for so many rows keeps the target and serves more rows a second than `apart`."""
        seconds = self._curve.seconds(goal)
        if self._target is not None and age + wait + seconds > self._target:
            return False
        return goal > apart * (max(0.0, wait) + seconds) or self._affords(goal, wait)

    def _rate_apart(self, waiting: int, rest: int, now: float) -> float:
        """Return the rows a second if what waits runs now, and the rest when it is back."""
        seconds = self._curve.seconds
        first = max(seconds(waiting), self._arrivals.due(waiting + rest) - now)
        return (waiting + rest) / (first + seconds(rest))

    def _affords(self, goal: int, wait: float) -> bool:
        """Return whether to wait only to learn what that batch takes."""
        if self._trial_budget <= 0 or self._curve.knows(goal):
            return False
        self._trial_budget -= wait
        return True


class Arrivals:
    """Forecast of callers that come back: how many rows, waiting or running, how soon after a batch. Not thread-safe.

    Callers that each wait for their own reply ask again after it, so after each batch the rows come back to the number
    of callers, however they were divided among batches.
    """

    def __init__(self, most: int) -> None:
        """Begin knowing nothing.

        Args:
            most: Rows that are counted at most.
        """
        self._most = most
        self._times: list[float] = []  # until there are 1, 2, … rows
        self._shares: list[float] = []  # of batches after which they were
        self._ended = 0.0
        self._peak = 0

    def ended(self, rows: int, now: float) -> None:
        """Begin to count anew after a batch; `rows` are there without it."""
        for index in range(len(self._shares)):
            self._shares[index] += ((index < self._peak) - self._shares[index]) * _ARRIVAL_WEIGHT
        self._ended, self._peak = now, 0
        self._reach(rows, 0.0)

    def came(self, rows: int, now: float) -> None:
        """Learn how soon there are so many rows."""
        if rows > self._peak:
            self._reach(rows, now - self._ended)

    def expects(self, rows: int) -> bool:
        """Return whether there will probably be so many rows before the next batch ends."""
        return rows <= self._peak or (rows <= len(self._shares) and self._shares[rows - 1] >= _SURE)

    def expected(self) -> int:
        """Return how many rows there will probably be before the next batch ends."""
        level = self._peak
        while level < len(self._shares) and self._shares[level] >= _SURE:
            level += 1
        return level

    def due(self, rows: int, times: float = 1.0) -> float:
        """Return when there will probably be so many rows, by the clock.

        Args:
            rows: At most `expected()`.
            times: Factor for the time that this usually takes after a batch.
        """
        return self._ended + self._times[rows - 1] * times

    def missed(self) -> None:
        """Lower the forecast: what it promised did not come. Twice in a row, and it is expected no more."""
        for index in range(self._peak, len(self._shares)):
            self._shares[index] *= _SURE

    def _reach(self, rows: int, since: float) -> None:
        end = min(rows, self._most)
        for index in range(self._peak, end):
            if index == len(self._times):
                self._times.append(since)
                self._shares.append(0.0)
            elif since:
                self._times[index] += (since - self._times[index]) * _ARRIVAL_WEIGHT
        self._peak = max(self._peak, end)
