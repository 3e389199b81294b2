"""Results of a measurement, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Loaded:
    """Report of a process that has loaded its model.

    Attributes:
        engine: Engine with its version.
        device: Device in use.
        precision: Precision in use.
        load_s: Seconds for loading, without the import of the engine.
        imported_bytes: Memory after the import of the engine.
        loaded_bytes: Memory after loading, before the first run.
    """

    engine: str
    device: str
    precision: str
    load_s: float
    imported_bytes: int
    loaded_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """Consecutive runs of one turn.

    Attributes:
        latencies_ns: Latency of each run.
        peak_bytes: Peak memory of the process at this batch size.
        gpu_bytes: GPU memory of the process after the last run; engines rarely free it.
        cpu_ns: Processor time of the runs over all threads, which other programs hardly disturb.
    """

    latencies_ns: npt.NDArray[np.int64]
    peak_bytes: int
    gpu_bytes: int = 0
    cpu_ns: int = 0

    @property
    def seconds(self) -> float:
        """Total time of the runs."""
        return float(self.latencies_ns.sum()) / 1e9

    @property
    def p50_ms(self) -> float:
        """Median of a run, in milliseconds."""
        return float(np.median(self.latencies_ns)) / 1e6

    @property
    def cpu_ms(self) -> float:
        """Processor time of a run, in milliseconds."""
        return self.cpu_ns / len(self.latencies_ns) / 1e6


@dataclass(frozen=True, slots=True)
class BatchPoint:
    """A model at one batch size: one turn for each round, or the reason why it can't run.

    Attributes:
        batch: Batch size.
        turns: Turns in the order of the rounds.
        problem: Why it can't run; empty if it ran.
    """

    batch: int
    turns: tuple[Turn, ...] = ()
    problem: str = ""

    @property
    def p50_ms(self) -> float:
        """Median of the rounds' median latencies, which a disturbed round changes least."""
        return median(turn.p50_ms for turn in self.turns)

    @property
    def p99_ms(self) -> float:
        """99th percentile over the runs of all rounds; with fewer than 100 runs, nearly the slowest."""
        return float(np.percentile(np.concatenate([turn.latencies_ns for turn in self.turns]), 99)) / 1e6

    @property
    def rate(self) -> float:
        """Inferences a second with one caller."""
        return self.batch * median(len(turn.latencies_ns) / turn.seconds for turn in self.turns)

    @property
    def peak_bytes(self) -> int:
        """Peak memory of the process at this batch size."""
        return max(turn.peak_bytes for turn in self.turns)

    @property
    def gpu_bytes(self) -> int:
        """Largest GPU memory; 0 on the CPU, or where the driver does not report it."""
        return max(turn.gpu_bytes for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Profile:
    """One subject of a measurement: its points by batch size, or the reason why it could not be measured.

    Attributes:
        name: Name of the subject.
        loaded: Report after loading; None if it could not be loaded.
        points: Points in the order of the plan's batch sizes.
        problem: Why it could not be measured; empty otherwise.
    """

    name: str
    loaded: Loaded | None = None
    points: tuple[BatchPoint, ...] = ()
    problem: str = ""

    def at(self, batch: int) -> BatchPoint | None:
        """Return the point of a batch size, or None if it did not run."""
        return next((point for point in self.points if point.batch == batch and point.turns), None)


def ratio(profile: Profile, base: Profile, batch: int) -> float | None:
    """Return the speed of a profile relative to another: the median of the rounds' ratios.

    Both ran in each round, so other load on the machine disturbs these ratios least.

    Returns:
        The ratio (2: half the time), or None if one of them did not run.
    """
    one, other = profile.at(batch), base.at(batch)
    if one is None or other is None:
        return None
    rounds = zip(one.turns, other.turns, strict=False)  # one may have crashed early
    return median(theirs.p50_ms / ours.p50_ms for ours, theirs in rounds)
