"""Reports what was measured of batching."""

from __future__ import annotations

from collections.abc import Sequence

from mqinfer.bench.batching import ALONE, BatchingMeasurement
from mqinfer.lab.report_files import Panel, Report
from mqinfer.lab.reports import Cell, Grid, machine_sentence

_HEADINGS = ("callers", "setting", "req/s", "least", "most", "against max 1", "p50 ms", "p99 ms")


def report_batching(measurement: BatchingMeasurement) -> Report:
    """Return the report: rates and latencies by load and setting; every round is in its JSON."""
    options = measurement.options
    rows = [
        [callers, setting, *_figures(measurement, callers, setting)]
        for callers in options.callers
        for setting in measurement.settings
    ]
    title = f"Batching the {options.workload}: {len(measurement.settings)} settings in turns"
    about = (
        f"Medians of {options.rounds} rounds of {options.seconds:g} s; all settings took turns within each round, and "
        f"ratios are medians of the rounds' ratios. Fixed settings wait for {options.delay_us} us at most. Client, "
        f"broker and workers shared the machine. {machine_sentence(measurement.machine)}"
    )
    turns = [
        {"callers": callers, "setting": setting, "rounds": each}
        for (callers, setting), each in measurement.turns.items()
    ]
    panels = (
        Panel("requests a second", ["req/s"], over="callers", by="setting"),
        Panel("latency, p99 in ms", ["p99 ms"], over="callers", by="setting"),
    )
    whole = {"machine": measurement.machine, "options": options, "turns": turns}
    return Report(Grid(title, _HEADINGS, rows, words=2), panels, about, whole)


def _figures(measurement: BatchingMeasurement, callers: int, setting: str) -> Sequence[Cell]:
    rates = [turn.rate for turn in measurement.turns[callers, setting]]
    return (
        measurement.median(callers, setting, lambda turn: turn.rate),
        min(rates),
        max(rates),
        measurement.ratio(callers, setting, ALONE),
        measurement.median(callers, setting, lambda turn: turn.p50_ms),
        measurement.median(callers, setting, lambda turn: turn.p99_ms),
    )
