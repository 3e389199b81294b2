"""Results of an optimisation, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from mqinfer.lab.optimize.parity import Parity, Tolerance
from mqinfer.lab.profiling.results import BatchPoint, Profile


@dataclass(frozen=True, slots=True)
class Speed:
    """Speed of a version, measured in the same rounds as the original.

    Attributes:
        p50_ms: Median latency at batch 1.
        ratio: Speed relative to the original at batch 1: the median of the rounds' ratios.
        spread: Smallest and largest of these ratios.
        cpu_ms: Processor time of a run at batch 1 over all threads, median of the rounds.
        cpu_ratio: Processor time of the original divided by `cpu_ms`. Other programs disturb it least.
        batch: Batch size with the most inferences a second.
        rate: Inferences a second at that batch size.
        rate_ratio: `rate` divided by the original's rate at its own best batch size.
        peak_bytes: Peak memory of the process, engine included, over all batch sizes.
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
        """Return the speed of one profile relative to another; None if one of them did not run."""
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


def _best(profile: Profile) -> BatchPoint:
    return max((point for point in profile.points if point.turns), key=lambda point: point.rate)


@dataclass(frozen=True, slots=True)
class Product:
    """A product, or why it could not be made.

    Attributes:
        label: Name, such as `openvino-bf16`.
        precision: Requested precision.
        problem: Why it could not be made, run or kept; empty if it was kept.
        parity: Comparison with the original; None if it could not run.
        speed: Speed relative to the original; None if it was not measured.
        size_bytes: Size of its files.
        folder: Its folder; None if it was not kept.
        notes: Changes of the graph.
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
    """Result of an optimisation.

    Attributes:
        model: Model name.
        version: Version of the original.
        engine: Engine of the original.
        original: Speed of the original; None if nothing was measured.
        original_size: Size of the original's files, in bytes.
        candidates: Products in the order of the plan.
        tolerance: Largest loss of a product.
        samples: Description of the samples for the comparison.
        machine: Machine and versions, by name.
        promoted: Version number of the promoted product; None without one.
    """

    model: str
    version: int
    engine: str
    original: Speed | None
    original_size: int
    candidates: tuple[Product, ...]
    tolerance: Tolerance
    samples: str
    machine: Mapping[str, str]
    promoted: int | None = None

    @property
    def kept(self) -> tuple[Product, ...]:
        """Products within the tolerance, the fastest at batch 1 first."""
        kept = [each for each in self.candidates if each.folder is not None]
        return tuple(sorted(kept, key=lambda each: each.speed.ratio if each.speed else 0.0, reverse=True))

    @property
    def best(self) -> Product | None:
        """The fastest product, if it is faster than the original."""
        first = next(iter(self.kept), None)
        return first if first is not None and first.speed is not None and first.speed.ratio > 1 else None
