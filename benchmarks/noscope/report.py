"""Reports NoScope's experiment: tables on the terminal, JSON for programs, Markdown for a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.noscope.experiment import SettingResult
from benchmarks.noscope.preparing import PreparedExperiment
from mqinfer.lab.cascade.report import promise
from mqinfer.lab.reports import Grid, as_json, as_markdown, machine_sentence, print_grid, write_files
from mqinfer.protocol.types import Stage

__all__ = ["LEAST_ACCURACY", "Measured", "grids", "print_measured", "write_measured"]

LEAST_ACCURACY = 0.98
"""Accuracy against the reference's own answers that each setting must reach."""
_SEED_SPEED_UP = 5.52
"""Of Distributed NoScope at 500 frames, against the same cascade on one machine."""


@dataclass(frozen=True, slots=True)
class Measured:
    """The whole experiment.

    Attributes:
        prepared: What it was measured with.
        turns: The baseline first, and once more at the end.
        machine: What it ran on, by name.
    """

    prepared: PreparedExperiment
    turns: tuple[SettingResult, ...]
    machine: Mapping[str, str]

    @property
    def baseline_s(self) -> float:
        """Mean time of the reference in the client, before and after the other settings."""
        both = [turn.seconds for turn in self.turns if turn.setting.name == self.turns[0].setting.name]
        return sum(both) / len(both)


def grids(measured: Measured) -> tuple[Grid, ...]:
    """Return the tables: settings, Table 1 of the seed, what each part contributes, and what each process took."""
    return _settings(measured), _table_1(measured), _contributions(measured), _components(measured)


def _settings(measured: Measured) -> Grid:
    reference = measured.turns[0].answers
    rows = [
        [
            turn.setting.name,
            f"{turn.seconds:.1f}",
            f"{measured.baseline_s / turn.seconds:.2f}x",
            *(str(turn.stages.get(stage.value, 0)) for stage in (Stage.REUSE, Stage.EDGE, Stage.WORKER)),
            f"{turn.latency_ms:.0f}",
            f"{turn.sent_mb:.1f}",
            f"{_share(turn.answers, reference):.4f}",
            "pass" if _share(turn.answers, reference) >= LEAST_ACCURACY else "miss",
        ]
        for turn in measured.turns
    ]
    headings = [
        *("setting", "s", "speed-up", "reused", "small", "reference", "p50 ms", "sent MB", "accuracy"),
        f">= {LEAST_ACCURACY:g}",
    ]
    return Grid(f"{len(reference)} frames, client on one core", headings, rows, words=1)


def _table_1(measured: Measured) -> Grid:
    """Return the seed's Table 1: rows are placements of the small model, columns are reference workers."""
    cascades = [turn for turn in measured.turns if turn.setting.name.startswith("cascade, ")]
    counts = sorted({turn.setting.references for turn in cascades})
    rows = []
    for smalls in sorted({turn.setting.smalls for turn in cascades}):
        found = {turn.setting.references: turn for turn in cascades if turn.setting.smalls == smalls}
        where = f"{smalls} in the cloud" if smalls else "on the edge"
        rows.append([where, *(f"{found[count].seconds:.1f}" for count in counts if count in found)])
    asked = max((turn.stages.get(Stage.WORKER.value, 0) for turn in cascades), default=0)
    title = f"Seconds for N_F = {len(measured.turns[0].answers)} frames, N_R = {asked} of them to the reference"
    return Grid(title, ["small model", *(f"N_S = {count}" for count in counts)], rows, words=1)


def _contributions(measured: Measured) -> Grid:
    """Return how much slower the whole cascade is without each of its parts."""
    turns = {turn.setting.name: turn for turn in measured.turns}
    at_edge = [turn for turn in measured.turns if turn.setting.name.startswith("cascade, small on the edge")]
    whole = at_edge[-1]
    one_worker = at_edge[0]
    compared = {
        "difference detector": turns.get("without difference detector"),
        "small model": turns.get("without small model"),
        "both: the cascade": turns.get(f"reference, {whole.setting.name.rpartition(', ')[2]}"),
        "reference outside the client": turns.get("cascade in the client"),
        "second reference worker": one_worker if one_worker is not whole else None,
        "several requests in flight": turns.get("one request at a time"),
    }
    rows = [
        [part, f"{turn.seconds:.1f}", f"{turn.seconds / whole.seconds:.2f}x"] for part, turn in compared.items() if turn
    ]
    rows.append(["nothing is missing", f"{whole.seconds:.1f}", "1.00x"])
    return Grid(f"What each part contributes: {whole.setting.name}, without it", ["part", "s", "slower"], rows, words=1)


def _components(measured: Measured) -> Grid:
    rows = [
        [turn.setting.name, part.name, str(part.processes), f"{part.cpu_s:.1f}", f"{part.memory_mb:.0f}"]
        for turn in measured.turns
        for part in turn.components
    ]
    return Grid("What each component took", ["setting", "component", "processes", "CPU s", "peak MB"], rows, words=2)


def notes(measured: Measured) -> list[str]:
    """Return what a reader must know of the figures."""
    prepared, best = measured.prepared, min(measured.turns, key=lambda turn: turn.seconds)
    truth, answers = prepared.truth, measured.turns[0].answers
    found = prepared.calibration.chosen.thresholds
    alone = next((turn for turn in measured.turns if turn.setting.name == "cascade in the client"), best)
    best_line = (
        f"Best: {best.setting.name}, {measured.baseline_s / best.seconds:.2f} times as fast as the reference in the "
        f"client on each frame, {alone.seconds / best.seconds:.2f} times as fast as the cascade in the client; "
        f"Distributed NoScope reports {_SEED_SPEED_UP} against the latter"
    )
    thresholds = f"t_diff {found.t_diff:g}, c_low {found.c_low:g}, c_high {found.c_high:g}"
    models = (
        f"The reference is right about {_share(answers, truth):.2%} of the frames by the scene itself, and the small "
        f"model about {prepared.trained_accuracy:.2%} of the reference's answers to frames kept back from its training"
    )
    cpu = "CPU of the client is with its start, imports and loading; the seconds are without it"
    return [best_line, f"Thresholds: {thresholds}; {promise(prepared.calibration)}", models, cpu]


def _share(answers: Sequence[bool], truth: Sequence[bool]) -> float:
    """Return the share of answers that are right."""
    return sum(one == other for one, other in zip(answers, truth, strict=True)) / len(truth)


def print_measured(measured: Measured, console: Console) -> None:
    """Print the tables and the notes."""
    for grid in grids(measured):
        print_grid(grid, console)
    console.print()
    for line in notes(measured):
        console.print(line)


def write_measured(measured: Measured, directory: Path) -> tuple[Path, ...]:
    """Write `noscope.json` (everything) and `noscope.md` (the tables).

    Raises:
        ConfigError: The directory can't be written.
    """
    content = {
        "machine": measured.machine,
        "calibration": measured.prepared.calibration,
        "truth": measured.prepared.truth,
        "turns": measured.turns,
    }
    parts = [*map(as_markdown, grids(measured)), *notes(measured), machine_sentence(measured.machine)]
    return write_files(directory, {"noscope.json": as_json(content), "noscope.md": "\n\n".join(parts) + "\n"})
