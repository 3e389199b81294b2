"""What an LHC study promises of its two autoencoders, and whether a profile keeps it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mqinfer.lab.profiling.report import ModelProfile
from mqinfer.lab.profiling.results import BatchPoint

ENGINE = "onnxruntime"
"""Engine that the study promises it of."""
EVENT_JETS = 9
"""Jets of one event of the study."""


@dataclass(frozen=True, slots=True)
class LatencyBound:
    """A run of so many rows within a time."""

    rows: int
    limit_ms: float
    words: str


_EVENT = LatencyBound(EVENT_JETS, 100.0, "one event of 9 jets")
_BOUNDS: Mapping[str, Sequence[LatencyBound]] = {
    "conv_vae": (LatencyBound(64, 5.0, "64 events"), _EVENT),
    "graph_vae": (LatencyBound(64, 2.5, "64 events"), _EVENT),
}


def verdicts(found: ModelProfile) -> Iterator[str]:
    """Yield a sentence for each bound of the study's networks, and one on memory by the number of rows.

    A bound is judged at the smallest measured batch that has its rows. Nothing is yielded for other networks.
    """
    bounds = next((bounds for name, bounds in _BOUNDS.items() if found.model.startswith(name)), ())
    profile = next((each for each in found.profiles if each.name == ENGINE), None)
    if not bounds or profile is None:
        return
    points = [point for point in profile.points if point.turns]
    for bound in bounds:
        yield f"{ENGINE}, {bound.words} within {bound.limit_ms:g} ms: {_judged(bound, points)}"
    if len(points) > 1:
        yield f"{ENGINE}, memory: {_grown(points[0], points[-1])}"


def _judged(bound: LatencyBound, points: Sequence[BatchPoint]) -> str:
    point = next((point for point in points if point.batch >= bound.rows), None)
    if point is None:
        return f"not measured; add {bound.rows} to --batch"
    share = point.p50_ms / bound.limit_ms - 1
    return f"{'kept' if share <= 0 else 'missed'}, {point.p50_ms:.3g} ms for {point.batch} ({share:+.0%})"


def _grown(least: BatchPoint, most: BatchPoint) -> str:
    added = most.peak_bytes - least.peak_bytes
    each = added / (most.batch - least.batch) / 1e3
    peaks = " and ".join(f"{point.peak_bytes / 1e6:.0f} MB with {point.batch}" for point in (least, most))
    return f"{peaks} rows a run, {each:.0f} kB more for each"
