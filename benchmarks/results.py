"""The figures of a run as plain data: every round, medians over rounds, and calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from statistics import median

from benchmarks.calls import CountedCalls

__all__ = ["Measurement", "Round", "Rounds"]


@dataclass(frozen=True, slots=True)
class Round:
    """One turn of one contestant.

    Attributes:
        rate: Requests a second with many callers.
        latency_ms: Median of one caller, in milliseconds.
        cpu_s: Processor seconds for 1000 requests with many callers, by role.
        stages_ms: Mean of each stage of the path, with one caller, in milliseconds; empty where it is not reported.
        busy_stages_ms: The same with many callers.
    """

    rate: float
    latency_ms: float
    cpu_s: Mapping[str, float]
    stages_ms: Mapping[str, float] = field(default_factory=dict)
    busy_stages_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rounds:
    """All rounds of one contestant with one workload, in order."""

    workload: str
    contestant: str
    rounds: tuple[Round, ...]

    @property
    def rate(self) -> float:
        """Median requests a second."""
        return median(each.rate for each in self.rounds)

    @property
    def latency_ms(self) -> float:
        """Median over the rounds of the median latency."""
        return median(each.latency_ms for each in self.rounds)

    def median_of(self, pick: Callable[[Round], Mapping[str, float]]) -> dict[str, float]:
        """Return the medians of a mapping's entries."""
        return {name: median(pick(each)[name] for each in self.rounds) for name in pick(self.rounds[0])}


@dataclass(frozen=True, slots=True)
class Measurement:
    """A whole run.

    Attributes:
        series: One for each workload and contestant.
        machine: What it ran on, by name.
        settings: How it was measured, by name.
        calls: What one request of each workload passes through, where that was counted.
    """

    series: tuple[Rounds, ...]
    machine: Mapping[str, str]
    settings: Mapping[str, str]
    calls: tuple[CountedCalls, ...] = ()

    def find(self, workload: str, contestant: str) -> Rounds | None:
        """Find a series; None where it was not measured."""
        wanted = (workload, contestant)
        return next((each for each in self.series if (each.workload, each.contestant) == wanted), None)

    def ratio(self, workload: str, contestant: str, base: str, pick: Callable[[Round], float]) -> float | None:
        """Return the median of the rounds' ratios of one contestant to another.

        The two took turns, so a ratio within a round is disturbed by other programs on the machine least.

        Args:
            workload: Its name.
            contestant: Above the line.
            base: Below the line.
            pick: What to compare.

        Returns:
            The ratio, or None where one of them was not measured.
        """
        above, below = self.find(workload, contestant), self.find(workload, base)
        if above is None or below is None:
            return None
        return median(pick(one) / pick(other) for one, other in zip(above.rounds, below.rounds, strict=True))
