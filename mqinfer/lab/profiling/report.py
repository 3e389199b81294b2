"""Renders a profile as tables for the terminal, as CSV, and as what a plot has: one line for each backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby

from mqinfer.lab import reports
from mqinfer.lab.profiling.results import BatchPoint, Profile, ratio
from mqinfer.lab.report_files import Panel, Report
from mqinfer.lab.reports import Cell, Grid, machine_sentence

_MB = 1e6
_HEADINGS = ("backend", "device", "precision", "batch", "p50 ms", "p99 ms", "inferences/s", "speed", "peak MB", "")
_MEMORY_HEADINGS = ("backend", "engine", "load s", "imported MB", "loaded MB", "peak MB", "of which model MB")
_DRAWN = ("backend", "batch", "p50 ms", "p99 ms", "peak MB")
_PANELS = (
    Panel("ms a run: median", ("p50 ms",), over="batch", by="backend", is_log=True),
    Panel("ms a run: 99th percentile", ("p99 ms",), over="batch", by="backend", is_log=True),
    Panel("peak memory of the process, MB", ("peak MB",), over="batch", by="backend", is_log=True),
)
_LOADED = ("engine", "device", "precision", "load_s", "imported_bytes", "loaded_bytes")
_MEASURED = ("runs", "p50_ms", "p99_ms", "inferences_per_s", "speed", "peak_bytes", "gpu_bytes")
"""Columns of the CSV file that are empty where a backend did not load, or not run."""


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
    records = [
        _record(found, profile, point)
        for profile in found.profiles
        for point in profile.points or (BatchPoint(0, problem=profile.problem),)
    ]
    rows = [list(record.values()) for record in records]
    return reports.as_csv(Grid("", list(records[0]), rows, words=3))


def as_report(found: ModelProfile) -> Report:
    """Return what is drawn: latency with its 99th percentile, and peak memory, by batch size."""
    rows = [
        (_in_words(profile), point.batch, point.p50_ms, point.p99_ms, point.peak_bytes / _MB)
        for profile in found.profiles
        for point in profile.points
        if point.turns
    ]
    machine = machine_sentence(found.machine)
    title = f"{found.model} version {found.version}. {machine}"
    return Report(Grid(title, _DRAWN, rows, words=1), _PANELS, machine, found)


def _in_words(profile: Profile) -> str:
    loaded = profile.loaded
    return f"{loaded.engine} {loaded.precision} ({loaded.device})" if loaded else profile.name


def _rows(found: ModelProfile, profile: Profile) -> Iterator[tuple[Cell, ...]]:
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


def _figures(found: ModelProfile, profile: Profile, point: BatchPoint) -> tuple[Cell, ...]:
    speed = ratio(profile, found.base, point.batch) if found.base else None
    return point.batch, point.p50_ms, point.p99_ms, point.rate, speed, point.peak_bytes / _MB, point.problem


def _record(found: ModelProfile, profile: Profile, point: BatchPoint) -> dict[str, Cell]:
    record: dict[str, Cell] = {"model": found.model, "version": found.version, "backend": profile.name}
    record |= {name: getattr(profile.loaded, name, None) for name in _LOADED} | {"batch": point.batch or None}
    record |= dict.fromkeys(_MEASURED)
    if point.turns:
        record |= {
            "runs": sum(len(turn.latencies_ns) for turn in point.turns),
            "p50_ms": point.p50_ms,
            "p99_ms": point.p99_ms,
            "inferences_per_s": point.rate,
            "speed": ratio(profile, found.base, point.batch) if found.base else None,
            "peak_bytes": point.peak_bytes,
            "gpu_bytes": point.gpu_bytes,
        }
    return record | {"problem": point.problem}
