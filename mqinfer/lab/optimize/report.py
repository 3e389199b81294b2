"""Renders an optimisation as a table for the terminal, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mqinfer.lab.optimize.parity import Parity
from mqinfer.lab.optimize.results import Optimisation, Product, Speed
from mqinfer.lab.reports import Grid, as_json, as_markdown, machine_sentence, write_files

_HEADINGS = (
    *("version", "p50 ms", "x", "spread", "cpu ms", "x", "batch", "inf/s", "x", "peak MB", "size MB"),
    *("agreement", "difference", "score", "verdict"),
)
_LEGEND = (
    "x: speed relative to the original, the median of the rounds' ratios; spread: the smallest and the largest. "
    "cpu: processor time of a run over all threads, which other programs disturb least. "
    "batch, inf/s: batch size with the most inferences a second. peak: memory of the whole process."
)
_NO_SPEED = ("",) * 9


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


def _rows(found: Optimisation) -> list[tuple[str, ...]]:
    score = next((each.parity.original_score for each in found.candidates if each.parity), None)
    original = (f"{found.version} ({found.engine})", *_speed(found.original), _megabytes(found.original_size))
    rows = [(*original, "", "", _number(score), "")]
    for each in found.candidates:
        figures = (*_speed(each.speed), _megabytes(each.size_bytes), *_parity(each.parity))
        rows.append((each.label, *figures, _verdict(found, each)))
    return rows


def _verdict(found: Optimisation, each: Product) -> str:
    if each.problem:
        return each.problem
    if each is not found.best:
        return "kept"
    return f"best, now version {found.promoted}" if found.promoted else "best"


def _speed(speed: Speed | None) -> Sequence[str]:
    if speed is None:
        return _NO_SPEED
    low, high = speed.spread
    return (
        f"{speed.p50_ms:.2f}",
        f"{speed.ratio:.2f}",
        f"{low:.2f}-{high:.2f}",
        f"{speed.cpu_ms:.1f}",
        f"{speed.cpu_ratio:.2f}",
        str(speed.batch),
        f"{speed.rate:.1f}",
        f"{speed.rate_ratio:.2f}",
        f"{speed.peak_bytes / 1e6:.0f}",
    )


def _parity(parity: Parity | None) -> Sequence[str]:
    if parity is None:
        return ("", "", "")
    return (_number(parity.agreement), _number(parity.difference, "{:.2g}"), _number(parity.score))


def _number(value: float | None, form: str = "{:.4f}") -> str:
    return "" if value is None else form.format(value)


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f}" if size else ""
