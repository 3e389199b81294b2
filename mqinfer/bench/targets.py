"""The figures that mqinfer's path has to reach against a bare grpc.aio server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mqinfer.bench.results import Measurement, Round

__all__ = ["TARGETS", "Target", "Verdict", "judge"]


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of mqinfer to bare grpc.aio that is to be reached.

    Attributes:
        what: In words.
        workload: Its name.
        bound: The least ratio, or the greatest where `smaller_is_better`.
        later: The bound for the finished path, or None where it is measured otherwise.
        pick: What is compared.
        smaller_is_better: For latencies.
    """

    what: str
    workload: str
    bound: float
    later: float | None
    pick: Callable[[Round], float]
    smaller_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """A target with the ratio that was measured, None where it was not."""

    target: Target
    ratio: float | None

    @property
    def passed(self) -> bool:
        """Whether the ratio keeps the bound."""
        if self.ratio is None:
            return False
        return self.ratio < self.target.bound if self.target.smaller_is_better else self.ratio >= self.target.bound


def _rate(each: Round) -> float:
    return each.rate


def _latency(each: Round) -> float:
    return each.latency_ms


TARGETS: tuple[Target, ...] = (
    Target("small tensors, 8 callers, requests/s", "small", 1.5, 2.6, _rate),
    Target("Conv-VAE-like, 8 callers, requests/s", "vae", 2.0, 3.0, _rate),
    Target("968x608 raw frame, 8 callers, requests/s", "frame", 1.0, 1.4, _rate),
    Target("classifier, 8 callers, requests/s", "classifier", 0.95, 1.1, _rate),
    Target("small tensors, one caller, p50", "small", 0.5, None, _latency, smaller_is_better=True),
)


def judge(measurement: Measurement, contestant: str, base: str) -> tuple[Verdict, ...]:
    """Hold the targets against what was measured; workloads that were left out are left out."""
    measured = {series.workload for series in measurement.series}
    return tuple(
        Verdict(target, measurement.ratio(target.workload, contestant, base, target.pick))
        for target in TARGETS
        if target.workload in measured
    )
