"""Renders a profile as tables for the terminal, as CSV, and as a plot with one line for each backend."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import groupby
from pathlib import Path
from textwrap import fill
from typing import Any

from mqinfer.lab.profiling.results import BatchPoint, Profile, ratio
from mqinfer.lab.reports import Grid, machine_sentence, new_figure
from mqinfer.protocol.errors import ConfigError

_LINE = 220
"""Characters below the axes in one line."""


def draw(found: ModelProfile, path: Path) -> None:
    """Write a plot of 1600x720 pixels: latency with its 99th percentile, and peak memory, on logarithmic axes.

    Raises:
        MissingExtra: matplotlib is not installed.
        ConfigError: No backend ran the model.
    """
    ran = [profile for profile in found.profiles if any(point.turns for point in profile.points)]
    if not ran:
        raise ConfigError(f"{found.model}: no backend ran it, so there is nothing to plot")
    figure = new_figure(16, 7.2)
    figure.suptitle(f"{found.model} version {found.version}")
    latency, memory = figure.subplots(1, 2)
    for number, profile in enumerate(ran):
        _line(latency, profile, number, lambda point: point.p50_ms)
        batches, slow = _series(profile, lambda point: point.p99_ms)
        latency.fill_between(batches, _series(profile, lambda point: point.p50_ms)[1], slow, alpha=0.12)
        _line(memory, profile, number, lambda point: point.peak_bytes / 1e6)
    _dress(latency, ran, "ms a run: median, shaded up to the 99th percentile")
    _dress(memory, ran, "peak memory of the process, MB (with engine and Python)")
    figure.supxlabel(fill(machine_sentence(found.machine), _LINE), fontsize="x-small")
    figure.savefig(path)


def _series(profile: Profile, pick: Callable[[BatchPoint], float]) -> tuple[list[int], list[float]]:
    ran = [point for point in profile.points if point.turns]
    return [point.batch for point in ran], [pick(point) for point in ran]


def _line(axes: Any, profile: Profile, number: int, pick: Callable[[BatchPoint], float]) -> None:
    loaded = profile.loaded
    label = f"{loaded.engine} {loaded.precision} ({loaded.device})" if loaded else profile.name
    axes.plot(*_series(profile, pick), marker="os^Dv"[number % 5], color=f"C{number}", label=label)


def _dress(axes: Any, ran: list[Profile], what: str) -> None:
    from matplotlib.ticker import LogFormatter

    batches = sorted({point.batch for profile in ran for point in profile.points if point.turns})
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(batches, [str(batch) for batch in batches])
    # Plain numbers, and minor labels where the axis spans about a decade or less.
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(1.5, 0.5)))
    axes.set_xlabel("batch size")
    axes.set_ylabel(what)
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend()


_MB = 1e6
_HEADINGS = ("backend", "device", "precision", "batch", "p50 ms", "p99 ms", "inferences/s", "speed", "peak MB", "")
_MEMORY_HEADINGS = ("backend", "engine", "load s", "imported MB", "loaded MB", "peak MB", "of which model MB")
_COLUMNS = (
    "model",
    "version",
    "backend",
    "engine",
    "device",
    "precision",
    "batch",
    "runs",
    "p50_ms",
    "p99_ms",
    "inferences_per_s",
    "speed",
    "peak_bytes",
    "imported_bytes",
    "loaded_bytes",
    "gpu_bytes",
    "load_s",
    "problem",
)


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A model's profiles in all backends.

    Attributes:
        model: Model name.
        version: Version number.
        profiles: In the requested order of the backends; those that can't run the model have a problem.
        machine: Machine and versions, by name.
    """

    model: str
    version: int
    profiles: tuple[Profile, ...]
    machine: Mapping[str, str]

    @property
    def base(self) -> Profile | None:
        """Profile that speeds are relative to: TensorFlow if it ran, else the first that ran."""
        ran = [profile for profile in self.profiles if any(point.turns for point in profile.points)]
        return next((profile for profile in ran if profile.name == "tensorflow"), next(iter(ran), None))


def as_grids(found: ModelProfile) -> tuple[Grid, Grid]:
    """Return two tables.

    The first has latency, throughput, speed relative to the base, and peak memory by backend and batch size; the second
    each process's memory: after the import, after loading, and at its peak.
    """
    base = f"{found.base.name} = 1" if found.base else ""
    rows = [row for profile in found.profiles for row in _rows(found, profile)]
    speeds = Grid(f"{found.model} version {found.version} ({base})", _HEADINGS, rows, words=3, ends_in_words=True)
    memory = [row for profile in found.profiles if (row := _memory(profile))]
    return speeds, Grid("Memory of each backend's process", _MEMORY_HEADINGS, memory, words=2)


def _memory(profile: Profile) -> tuple[str, ...]:
    ran = [point.peak_bytes for point in profile.points if point.turns]
    if profile.loaded is None or not ran:
        return ()
    sizes = (profile.loaded.imported_bytes, profile.loaded.loaded_bytes, max(ran))
    megabytes = [f"{size / _MB:.0f}" for size in (*sizes, sizes[2] - sizes[0])]
    return (profile.name, profile.loaded.engine, f"{profile.loaded.load_s:.2f}", *megabytes)


def as_csv(found: ModelProfile) -> str:
    """Return one CSV line for each point, sizes in bytes; a cell without a value is empty."""
    text = StringIO()
    writer = csv.DictWriter(text, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    for profile in found.profiles:
        for point in profile.points or (BatchPoint(0, problem=profile.problem),):
            writer.writerow(_record(found, profile, point))
    return text.getvalue()


def _rows(found: ModelProfile, profile: Profile) -> Iterator[tuple[str, ...]]:
    if profile.loaded is None:
        yield (profile.name, *[""] * 8, profile.problem)
        return
    head = (profile.name, profile.loaded.device, profile.loaded.precision)
    for ran, points in groupby(profile.points, key=lambda point: bool(point.turns)):
        if ran:
            yield from ((*head, *_figures(found, profile, point)) for point in points)
        else:
            refused = list(points)
            yield (*head, ", ".join(str(point.batch) for point in refused), *[""] * 5, refused[0].problem)


def _figures(found: ModelProfile, profile: Profile, point: BatchPoint) -> tuple[str, ...]:
    speed = found.base and ratio(profile, found.base, point.batch)
    return (
        str(point.batch),
        _significant(point.p50_ms),
        _significant(point.p99_ms),
        f"{point.rate:.0f}" if point.rate >= 10 else f"{point.rate:.2f}",
        f"{speed:.2f}" if speed else "",
        f"{point.peak_bytes / _MB:.0f}",
        point.problem,
    )


def _significant(value: float) -> str:
    """Format with three significant digits, without an exponent."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}" if value >= 1 else f"{value:.3f}"


def _record(found: ModelProfile, profile: Profile, point: BatchPoint) -> dict[str, object]:
    record: dict[str, object] = {
        "model": found.model,
        "version": found.version,
        "backend": profile.name,
        "problem": point.problem,
        "batch": point.batch or "",
    }
    if loaded := profile.loaded:
        record |= {"engine": loaded.engine, "device": loaded.device, "precision": loaded.precision}
        record |= {"imported_bytes": loaded.imported_bytes, "loaded_bytes": loaded.loaded_bytes}
        record["load_s"] = round(loaded.load_s, 4)
    if point.turns:
        speed = found.base and ratio(profile, found.base, point.batch)
        record |= {"runs": sum(len(turn.latencies_ns) for turn in point.turns), "peak_bytes": point.peak_bytes}
        record |= {"p50_ms": round(point.p50_ms, 6), "p99_ms": round(point.p99_ms, 6), "gpu_bytes": point.gpu_bytes}
        record |= {"inferences_per_s": round(point.rate, 3), "speed": round(speed, 4) if speed else ""}
    return record
