"""What came of an optimisation, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from mqinfer.lab.optimize.parity import Parity, Tolerance
from mqinfer.lab.profiling import Point, Profile

__all__ = ["Candidate", "Optimisation", "Speed"]


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a version is, beside the original in the same rounds.

    Attributes:
        p50_ms: Median latency at batch 1.
        ratio: How many times as fast as the original at batch 1: the median of the rounds' ratios.
        spread: The smallest and the largest of them.
        cpu_ms: Processor time of a run at batch 1, all threads together, the median of the rounds.
        cpu_ratio: How many times less than the original takes. Other programs on the machine change it least.
        batch: With the most inferences a second.
        rate: Inferences a second at that batch.
        rate_ratio: The same against the original at its own best batch.
        peak_bytes: Most memory of its process, engine included, over all batches.
    """

    p50_ms: float
    ratio: float
    spread: tuple[float, float]
    cpu_ms: float
    cpu_ratio: float
    batch: int
    rate: float
    rate_ratio: float
    peak_bytes: int

    @classmethod
    def of(cls, profile: Profile, base: Profile) -> Speed | None:
        """Sum up a measurement; None where one of the two did not run."""
        one, other = profile.at(1), base.at(1)
        if one is None or other is None:
            return None
        ratios = [theirs.p50_ms / ours.p50_ms for ours, theirs in zip(one.turns, other.turns, strict=True)]
        used, base_used = (median(turn.cpu_ms for turn in point.turns) for point in (one, other))
        best, base_best = _best(profile), _best(base)
        return cls(
            one.p50_ms,
            median(ratios),
            (min(ratios), max(ratios)),
            used,
            base_used / max(used, 1e-9),
            best.batch,
            best.rate,
            best.rate / base_best.rate,
            max(point.peak_bytes for point in profile.points if point.turns),
        )


def _best(profile: Profile) -> Point:
    return max((point for point in profile.points if point.turns), key=lambda point: point.rate)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A product, or the attempt at one.

    Attributes:
        label: Such as `openvino-bf16`.
        precision: What was asked for.
        problem: Why it could not be made, run or kept; empty where it was kept.
        parity: Against the original; None where it could not run.
        speed: Likewise, also None where it was not measured.
        size_bytes: Of its files.
        folder: Where it lies; None where it was not kept.
        notes: What was done to the graph.
    """

    label: str
    precision: str
    problem: str = ""
    parity: Parity | None = None
    speed: Speed | None = None
    size_bytes: int = 0
    folder: Path | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Optimisation:
    """The whole run.

    Attributes:
        model: Its name.
        version: Of the original.
        engine: Of the original.
        original: How fast the original is; None where nothing was measured.
        original_size: Of its files, in bytes.
        candidates: In the order of the plan.
        tolerance: That they were judged by.
        samples: What they were judged on, in words.
        machine: What it ran on, by name.
        promoted: The version that the best product became; None where none did.
    """

    model: str
    version: int
    engine: str
    original: Speed | None
    original_size: int
    candidates: tuple[Candidate, ...]
    tolerance: Tolerance
    samples: str
    machine: Mapping[str, str]
    promoted: int | None = None

    @property
    def kept(self) -> tuple[Candidate, ...]:
        """The products within the tolerance, the fastest at batch 1 first."""
        kept = [each for each in self.candidates if each.folder is not None]
        return tuple(sorted(kept, key=lambda each: each.speed.ratio if each.speed else 0.0, reverse=True))

    @property
    def best(self) -> Candidate | None:
        """The product to promote: the fastest, where it is faster than the original."""
        first = next(iter(self.kept), None)
        return first if first is not None and first.speed is not None and first.speed.ratio > 1 else None
