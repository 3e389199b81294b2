"""What was measured, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

__all__ = ["Loaded", "Point", "Profile", "Turn", "ratio"]


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a process says of the model that it has loaded.

    Attributes:
        engine: With its version.
        device: What it really runs on.
        precision: What it computes in.
        load_s: Seconds that loading took, without the engine's import.
        imported_bytes: Memory with the engine imported and no model.
        loaded_bytes: Memory with the model loaded and not yet run.
    """

    engine: str
    device: str
    precision: str
    load_s: float
    imported_bytes: int
    loaded_bytes: int


@dataclass(frozen=True, slots=True, eq=False)
class Turn:
    """One stretch of runs without a pause.

    Attributes:
        latencies_ns: Of each run.
        peak_bytes: The most memory that the process held since this batch size began.
        gpu_bytes: Memory that the process held on the GPU behind the last run; engines keep there what they once took.
        cpu_ns: Processor time that the runs took, of all threads: other programs on the machine hardly change it.
    """

    latencies_ns: npt.NDArray[np.int64]
    peak_bytes: int
    gpu_bytes: int = 0
    cpu_ns: int = 0

    @property
    def seconds(self) -> float:
        """Time that the runs took."""
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
class Point:
    """A model at one batch size: one turn a round, or the reason why it can't run.

    Attributes:
        batch: How many inferences one run makes.
        turns: In the order of the rounds.
        problem: Empty where it ran.
    """

    batch: int
    turns: tuple[Turn, ...] = ()
    problem: str = ""

    @property
    def p50_ms(self) -> float:
        """Median over the rounds of the median run: what a disturbed round changes least."""
        return median(turn.p50_ms for turn in self.turns)

    @property
    def p99_ms(self) -> float:
        """The 99th of a hundred runs, over the runs of all rounds; with fewer runs than that, nearly the slowest."""
        return float(np.percentile(np.concatenate([turn.latencies_ns for turn in self.turns]), 99)) / 1e6

    @property
    def rate(self) -> float:
        """Inferences a second of one caller."""
        return self.batch * median(len(turn.latencies_ns) / turn.seconds for turn in self.turns)

    @property
    def peak_bytes(self) -> int:
        """The most memory that the process held, at this batch size."""
        return max(turn.peak_bytes for turn in self.turns)

    @property
    def gpu_bytes(self) -> int:
        """The most that it held on the GPU; 0 on the CPU, or where the driver does not tell."""
        return max(turn.gpu_bytes for turn in self.turns)


@dataclass(frozen=True, slots=True)
class Profile:
    """One subject of a measurement: its points by batch size, or the reason why it could not be measured.

    Attributes:
        name: Of the subject.
        loaded: None where it could not be loaded.
        points: In the order of the plan's batch sizes.
        problem: Empty where it was measured.
    """

    name: str
    loaded: Loaded | None = None
    points: tuple[Point, ...] = ()
    problem: str = ""

    def at(self, batch: int) -> Point | None:
        """Find a point that ran."""
        return next((point for point in self.points if point.batch == batch and point.turns), None)


def ratio(profile: Profile, base: Profile, batch: int) -> float | None:
    """Say how many times as fast as another subject one is: the median of the rounds' ratios.

    Both took turns, so what else went on on the machine within a round disturbs its ratio least.

    Returns:
        The ratio (2: half the time), or None where one of them did not run.
    """
    one, other = profile.at(batch), base.at(batch)
    if one is None or other is None:
        return None
    rounds = zip(one.turns, other.turns, strict=False)  # one may have died early
    return median(theirs.p50_ms / ours.p50_ms for ours, theirs in rounds)
