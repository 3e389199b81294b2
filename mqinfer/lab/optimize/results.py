"""Results of an optimisation as plain data, and as a table for the terminal, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from mqinfer.lab.optimize.parity import Parity, Tolerance
from mqinfer.lab.profiling.results import BatchPoint, Profile
from mqinfer.lab.reports import Cell, Grid, as_json, as_markdown, machine_sentence, write_files


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


_HEADINGS = (
    *("version", "p50 ms", "x", "spread", "cpu ms", "x", "batch", "inf/s", "x", "peak MB", "size MB"),
    *("agreement", "difference", "score", "verdict"),
)
_LEGEND = (
    "x: speed relative to the original, the median of the rounds' ratios; spread: the smallest and the largest. "
    "cpu: processor time of a run over all threads, which other programs disturb least. "
    "batch, inf/s: batch size with the most inferences a second. peak: memory of the whole process."
)
_NO_SPEED = (None,) * 9


def as_grid(found: Optimisation) -> Grid:
    """Return the table of the original and its products."""
    title = f"{found.model}: products of version {found.version}"
    return Grid(title, _HEADINGS, _rows(found), words=1, ends_in_words=True)


def write_report(found: Optimisation, directory: Path) -> tuple[Path, ...]:
    """Write `optimize.md` (table, samples, tolerance and machine) and `optimize.json` (everything).

    Raises:
        ConfigError: The folder can't be written.
    """
    notes = "\n".join(f"- {each.label}: {'; '.join(each.notes)}." for each in found.candidates if each.notes)
    document = "\n\n".join(
        [as_markdown(as_grid(found)), _LEGEND, _tolerance(found), machine_sentence(found.machine), notes]
    )
    return write_files(directory, {"optimize.md": document + "\n", "optimize.json": as_json(found)})


def _tolerance(found: Optimisation) -> str:
    bounds = found.tolerance
    difference = "by precision" if bounds.difference is None else f"{bounds.difference:g}"
    tolerance = f"agreement {bounds.agreement:g}, loss of score {bounds.loss:g}, difference {difference}"
    return f"Compared on {found.samples}. Tolerance: {tolerance}."


def _rows(found: Optimisation) -> list[tuple[Cell, ...]]:
    score = next((each.parity.original_score for each in found.candidates if each.parity), None)
    original = (f"{found.version} ({found.engine})", *_speed(found.original), found.original_size / 1e6)
    rows: list[tuple[Cell, ...]] = [(*original, "", "", _number(score), "")]
    for each in found.candidates:
        figures = (*_speed(each.speed), each.size_bytes / 1e6 or None, *_parity(each.parity))
        rows.append((each.label, *figures, _verdict(found, each)))
    return rows


def _verdict(found: Optimisation, each: Product) -> str:
    if each.problem:
        return each.problem
    if each is not found.best:
        return "kept"
    return f"best, now version {found.promoted}" if found.promoted else "best"


def _speed(speed: Speed | None) -> Sequence[Cell]:
    if speed is None:
        return _NO_SPEED
    low, high = speed.spread
    one_row = speed.p50_ms, speed.ratio, f"{low:.2f}-{high:.2f}", speed.cpu_ms, speed.cpu_ratio
    return *one_row, speed.batch, speed.rate, speed.rate_ratio, speed.peak_bytes / 1e6


def _parity(parity: Parity | None) -> Sequence[str]:
    if parity is None:
        return ("", "", "")
    return (_number(parity.agreement), _number(parity.difference, "{:.2g}"), _number(parity.score))


def _number(value: float | None, form: str = "{:.4f}") -> str:
    return "" if value is None else form.format(value)
