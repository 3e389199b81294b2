"""The targets of mqinfer's path, and of its gateway, against a bare grpc.aio server."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.results import Measurement, Round

__all__ = ["GATEWAY_TARGETS", "TARGETS", "Target", "Verdict", "judge"]


@dataclass(frozen=True, slots=True)
class Target:
    """A ratio of mqinfer, or of its gateway, to bare grpc.aio.

    Attributes:
        what: In words.
        workload: Its name.
        bound: The least ratio, or the greatest where `smaller_is_better`.
        later: The bound for a path that is compiled, or None where there is none.
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
    """A target with what was measured.

    Attributes:
        target: The target.
        ratio: To bare grpc.aio; None where it was not measured.
        of_floor: To the socket floor; None where it was not measured.
    """

    target: Target
    ratio: float | None
    of_floor: float | None = None

    @property
    def passed(self) -> bool:
        """Whether the ratio keeps the bound."""
        if self.ratio is None:
            return False
        return self.ratio <= self.target.bound if self.target.smaller_is_better else self.ratio >= self.target.bound


def _rate(each: Round) -> float:
    return each.rate


def _latency(each: Round) -> float:
    return each.latency_ms


TARGETS: tuple[Target, ...] = (
    Target("small tensors, 8 callers, requests/s", "small", 1.1, 2.6, _rate),
    Target("Conv-VAE-like, 8 callers, requests/s", "vae", 1.7, 3.0, _rate),
    Target("968x608 raw frame, 8 callers, requests/s", "frame", 1.05, 1.4, _rate),
    Target("classifier, 8 callers, requests/s", "classifier", 1.0, 1.1, _rate),
    Target("small tensors, one caller, p50", "small", 1.1, 0.5, _latency, smaller_is_better=True),
)
GATEWAY_TARGETS: tuple[Target, ...] = (
    Target("small tensors, 8 callers, requests/s", "small", 0.5, None, _rate),
    Target("968x608 raw frame, 8 callers, requests/s", "frame", 0.8, None, _rate),
    Target("classifier, 8 callers, requests/s", "classifier", 0.9, None, _rate),
    Target("small tensors, one caller, p50", "small", 1 / 0.5, None, _latency, smaller_is_better=True),
    Target("968x608 raw frame, one caller, p50", "frame", 1 / 0.8, None, _latency, smaller_is_better=True),
    Target("classifier, one caller, p50", "classifier", 1 / 0.9, None, _latency, smaller_is_better=True),
)


def judge(
    measurement: Measurement, contestant: str, base: str, floor: str, targets: Sequence[Target] = TARGETS
) -> tuple[Verdict, ...]:
    """Compare what was measured with the targets of its workloads.

    Args:
        measurement: What was measured.
        contestant: Above the line.
        base: Below the line.
        floor: Of whose figure a share is stated.
        targets: Those of the contestant.
    """
    measured = {series.workload for series in measurement.series}
    return tuple(
        Verdict(
            target,
            measurement.ratio(target.workload, contestant, base, target.pick),
            measurement.ratio(target.workload, contestant, floor, target.pick),
        )
        for target in targets
        if target.workload in measured
    )
