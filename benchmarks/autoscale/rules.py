"""The contestants, the product's rule and those of Kubernetes with several targets, and the tables of their contest.

The Horizontal Pod Autoscaler looks every 15 seconds and wants `ceil(replicas * metric / target)` replicas, or
`ceil(metric / target)` where the metric is shared out. It keeps what differs by 10 % at most, adds four or as many as
there are, and takes away what nothing has wanted for 300 seconds: https://kubernetes.io/docs/concepts/workloads/autoscaling/horizontal-pod-autoscale/.
KEDA hands it a metric of the kind that is shared out, and leaves everything else to it while there is a replica:
https://keda.sh/docs/latest/reference/scaledobject-spec/.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from itertools import product

from benchmarks.autoscale.patterns import PATTERNS, frames_of
from benchmarks.autoscale.simulation import MOST, Followed, Rule, SiteOptions, follow
from mqinfer.lab.reports import Grid
from mqinfer.metrics.lag import Lag
from mqinfer.metrics.scaling import Scaler, ScalingRule
from mqinfer.protocol.states import WorkerState
from mqinfer.protocol.types import Outcome

_STARTS_S = (5.0, 20.0)
"""Seconds until a worker serves: a small model with its engine at hand, and a large one or an image to fetch."""
_IN_TIME = 0.99
_SYNC_S, _TOLERANCE, _STABLE_S, _STEP = 15.0, 0.1, 300.0, 4
_Metric = Callable[["PodAutoscaler", float, Lag, Sequence[WorkerState]], float]


@dataclass(slots=True)
class PodAutoscaler:
    """Kubernetes' rule for a metric, each reading of which says how many replicas it calls for."""

    calls_for: _Metric
    stable_s: float = _STABLE_S
    replicas: int = 1
    busy_s: float = 0.0
    _due: float = 0.0
    _wanted: deque[tuple[float, int]] = field(default_factory=deque)

    def update(self, now: float, lag: Lag, workers: Sequence[WorkerState]) -> int:
        """Return the replicas, which change every 15 seconds at most."""
        if now < self._due:
            return self.replicas
        self._due = now + _SYNC_S
        value = self.calls_for(self, now, lag, workers)
        wanted = self.replicas if abs(value / self.replicas - 1) <= _TOLERANCE else max(1, math.ceil(value))
        self._wanted.append((now, min(wanted, MOST, max(2 * self.replicas, self.replicas + _STEP))))
        while now - self._wanted[0][0] > self.stable_s:
            self._wanted.popleft()
        wanted = self._wanted[-1][1]
        self.replicas = wanted if wanted > self.replicas else min(self.replicas, max(each for _, each in self._wanted))
        return self.replicas


def _pending(target: float) -> _Metric:
    return lambda _, __, lag, ___: lag.pending / target


def _oldest(target: float) -> _Metric:
    return lambda pods, _, lag, __: pods.replicas * lag.oldest_ms / 1e3 / target


def _cpu(target: float) -> _Metric:
    def calls_for(pods: PodAutoscaler, _: float, __: Lag, workers: Sequence[WorkerState]) -> float:
        busy_s = sum(each.counters.get(Outcome.OK, 0) * each.service_time_us / 1e6 for each in workers)
        used, pods.busy_s = max(0.0, busy_s - pods.busy_s) / _SYNC_S, busy_s
        return used / target

    return calls_for


def _wanted() -> PodAutoscaler:
    """Return KEDA on the number that the product's rule states, told to wait for nothing that the rule waits for."""
    scaler = Scaler()
    return PodAutoscaler(lambda _, now, lag, workers: scaler.update(now, lag, workers), stable_s=0.0)


def _own(rule: ScalingRule) -> str:
    return f"mqinfer, drain {rule.drain_s:g} s, hold {rule.hold_s:g} s, growth {rule.growth:g}"


_RULES = [
    ScalingRule(drain_s, hold_s, growth)
    for drain_s, hold_s, growth in (
        (20.0, 60.0, 4.0),
        (20.0, 30.0, 4.0),
        (30.0, 30.0, 4.0),
        (20.0, 20.0, 4.0),
        (30.0, 20.0, 4.0),
        (10.0, 15.0, 4.0),
        (20.0, 15.0, 4.0),
        (30.0, 15.0, 4.0),
        (20.0, 15.0, 2.0),
        (20.0, 15.0, 1000.0),
    )
]
CHOSEN = _own(ScalingRule())
CONTESTANTS: dict[str, Callable[[], Rule]] = {
    **{f"KEDA, pending, {each}": lambda each=each: PodAutoscaler(_pending(each)) for each in (4, 8, 16)},  # type: ignore[misc]
    **{f"HPA, processor, {each:.0%}": lambda each=each: PodAutoscaler(_cpu(each)) for each in (0.5, 0.7, 0.9)},  # type: ignore[misc]
    **{f"HPA, oldest, {each} s": lambda each=each: PodAutoscaler(_oldest(each)) for each in (5,)},  # type: ignore[misc]
    "KEDA, wanted, 1": _wanted,
    **{_own(each): lambda each=each: Scaler(each) for each in _RULES},  # type: ignore[misc]
}


@dataclass(frozen=True, slots=True)
class Run:
    """A rule on a pattern with a time that workers take to start."""

    rule: str
    pattern: str
    start_s: float
    found: Followed

    @property
    def late(self) -> float:
        """Frames without an answer in time, in per cent."""
        return 100 * self.found.late / self.found.frames


def play() -> Iterator[Run]:
    """Let each rule follow each pattern, and yield what becomes of it."""
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        yield from processes.map(_run, *zip(*product(CONTESTANTS, PATTERNS, _STARTS_S), strict=True))


def _run(rule: str, pattern: str, start_s: float) -> Run:
    found = follow(frames_of(pattern), CONTESTANTS[rule](), SiteOptions(start_s=start_s))
    return Run(rule, pattern, start_s, found)


def rules_grid(runs: Sequence[Run]) -> Grid:
    """Return a row for each rule, the cheapest of those that keep 99 % in time in each run first."""
    rows = []
    for rule in dict.fromkeys(run.rule for run in runs):
        own = [run for run in runs if run.rule == rule]
        late = 100 * sum(run.found.late for run in own) / sum(run.found.frames for run in own)
        worst = max(run.late for run in own)
        rows.append((rule, f"{late:.2f}", f"{worst:.2f}", *_costs(own)))
    rows.sort(key=lambda row: (float(row[2]) > 100 * (1 - _IN_TIME), float(row[3])))
    headings = ("rule", "late, %", "worst run", "worker hours", "starts", "turns")
    return Grid(f"Rules over {len(PATTERNS)} patterns and {len(_STARTS_S)} start-up times", headings, rows, 1)


def _costs(runs: Sequence[Run]) -> tuple[str, str, str]:
    """Return the hours of all workers, how many were started, and how often their number turned."""
    found = [run.found for run in runs]
    hours = sum(each.worker_s for each in found) / 3600
    return f"{hours:.2f}", str(sum(each.starts for each in found)), str(sum(each.turns for each in found))


def chosen_grid(runs: Sequence[Run]) -> Grid:
    """Return a row for each run of the chosen rule."""
    own = [run for run in runs if run.rule == CHOSEN]
    rows = [
        (run.pattern, f"{run.start_s:g} s", str(run.found.frames), f"{run.late:.2f}", *_costs([run])) for run in own
    ]
    headings = ("pattern", "start-up", "frames", "late, %", "worker hours", "starts", "turns")
    return Grid(f"The chosen rule: {CHOSEN}", headings, rows, 2)
