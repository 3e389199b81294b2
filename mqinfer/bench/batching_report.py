"""Reports what was measured of batching: tables on the terminal, JSON for programs, Markdown for a document."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from mqinfer.bench.batching import ADAPTIVE, ALONE, BatchingMeasurement
from mqinfer.lab.reports import Grid, as_json, as_markdown, machine_sentence, print_grid, write_files

_OF_THE_BEST = 0.95
"""Least ratio of the adaptive setting's rate to that of the best setting by hand."""

_NEVER_SLOWER = 0.98
"""Least ratio to no batching where nothing is to be gained; two equal settings differ by 2 % from run to run."""


def verdicts(measurement: BatchingMeasurement) -> Sequence[tuple[str, float, float]]:
    """Return the targets of the adaptive setting: in words, the ratio, and the least ratio.

    One caller gains nothing from batches, and neither does the small model, whose run takes 20 us: there the adaptive
    setting must not be slower than no batching.
    """
    found = []
    for callers in measurement.options.callers:
        best = measurement.best_fixed(callers)
        found.append((f"{_callers(callers)}, against {best}", measurement.ratio(callers, ADAPTIVE, best), _OF_THE_BEST))
        if callers == 1 or measurement.options.workload == "small":
            ratio = measurement.ratio(callers, ADAPTIVE, ALONE)
            found.append((f"{_callers(callers)}, against no batching", ratio, _NEVER_SLOWER))
    return found


def batching_grids(measurement: BatchingMeasurement) -> tuple[Grid, ...]:
    """Return the tables: rates and latencies by setting and load, and the verdicts."""
    rows = [
        [_callers(callers), setting, *_figures(measurement, callers, setting)]
        for callers in measurement.options.callers
        for setting in measurement.settings
    ]
    headings = ["load", "setting", "req/s", "from - to", "against max 1", "p50 ms", "p99 ms"]
    judged = [
        [what, "pass" if ratio >= bound else "miss", f"{ratio:.3f}x", f">= {bound:g}x"]
        for what, ratio, bound in verdicts(measurement)
    ]
    title = f"Batching the {measurement.options.workload}: {len(measurement.settings)} settings in turns"
    return (
        Grid(title, headings, rows, words=2),
        Grid("The adaptive setting", ["at", "verdict", "ratio", "target"], judged, words=2),
    )


def print_batching(measurement: BatchingMeasurement, console: Console) -> None:
    """Print the tables."""
    for grid in batching_grids(measurement):
        print_grid(grid, console)


def write_batching(measurement: BatchingMeasurement, directory: Path) -> tuple[Path, ...]:
    """Write `batching.json` (every round) and `batching.md` (the tables).

    Raises:
        ConfigError: The directory can't be written.
    """
    return write_files(directory, {"batching.json": _as_json(measurement), "batching.md": _as_document(measurement)})


def _figures(measurement: BatchingMeasurement, callers: int, setting: str) -> Sequence[str]:
    rates = [turn.rate for turn in measurement.turns[callers, setting]]
    return (
        f"{measurement.median(callers, setting, lambda turn: turn.rate):,.0f}",
        f"{min(rates):,.0f} - {max(rates):,.0f}",
        f"{measurement.ratio(callers, setting, ALONE):.2f}x",
        f"{measurement.median(callers, setting, lambda turn: turn.p50_ms):.1f}",
        f"{measurement.median(callers, setting, lambda turn: turn.p99_ms):.1f}",
    )


def _callers(callers: int) -> str:
    return "one caller" if callers == 1 else f"{callers} callers"


def _as_json(measurement: BatchingMeasurement) -> str:
    turns = [
        {"callers": callers, "setting": setting, "rounds": each}
        for (callers, setting), each in measurement.turns.items()
    ]
    judged = [{"what": what, "ratio": ratio, "bound": bound} for what, ratio, bound in verdicts(measurement)]
    whole = {"machine": measurement.machine, "options": measurement.options, "turns": turns, "targets": judged}
    return as_json(whole)


def _as_document(measurement: BatchingMeasurement) -> str:
    options = measurement.options
    sentences = (
        f"Medians of {options.rounds} rounds of {options.seconds:g} s; all settings took turns within each round, and "
        f"ratios are medians of the rounds' ratios. Fixed settings wait for {options.delay_us} us at most. Client, "
        f"broker and workers shared the machine.\n\n{machine_sentence(measurement.machine)}"
    )
    return "\n\n".join(["# Batching, measured", sentences, *map(as_markdown, batching_grids(measurement))]) + "\n"
