"""Plots latency and memory by batch size, one line for each backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from textwrap import fill
from typing import Any

from mqinfer.lab.profiling.report import ModelProfile
from mqinfer.lab.profiling.results import BatchPoint, Profile
from mqinfer.lab.reports import machine_sentence, new_figure
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
