"""The frontier of accuracy against cost, as a table and as a plot."""

from __future__ import annotations

from pathlib import Path

from mqinfer.edge_agent.output_files import set_aside
from mqinfer.lab.cascade.calibration import Calibration, FrontierPoint
from mqinfer.lab.reports import Grid, new_figure
from mqinfer.protocol.errors import ConfigError


def promise(found: Calibration) -> str:
    """Return in one sentence what is promised, and on what grounds."""
    goal, chosen = found.goal, found.chosen
    alone = found.costs.reference
    return (
        f"with {goal.confidence:.0%} confidence the accuracy on further frames like these is above {chosen.bound:.4f} "
        f"({chosen.tested:.4f} on {found.frames - found.frames // 2} frames that did not choose the thresholds; "
        f"{chosen.per_independent:.1f} neighbouring frames count as one). A frame costs {chosen.cost_ms:.1f} ms "
        f"instead of {alone:.1f} ms: {alone / max(chosen.cost_ms, 1e-6):.1f} times less"
    )


def frontier_grid(found: Calibration) -> Grid:
    """Return a table with one row for each point, from the safest to the cheapest; `*` marks the chosen one."""
    headings = ("", "t_diff", "c_low", "c_high", "accuracy", "surely", "reused", "small", "reference", "ms a frame")
    rows = [("*" if point == found.chosen else "", *_thresholds(point), *_figures(point)) for point in found.frontier]
    return Grid("Accuracy against cost", headings, rows, words=1)


def _thresholds(point: FrontierPoint) -> tuple[str, str, str]:
    chosen = point.thresholds
    if chosen.c_high > 1:
        return f"{chosen.t_diff:g}", "-", "-"
    return f"{chosen.t_diff:g}", f"{chosen.c_low:.4f}", f"{chosen.c_high:.4f}"


def _figures(point: FrontierPoint) -> tuple[str, ...]:
    shares = (f"{share:.1%}" for share in (point.reused, point.small, point.reference))
    return f"{point.tested:.4f}", f"{point.bound:.4f}", *shares, f"{point.cost_ms:.1f}"


def draw_frontier(found: Calibration, path: Path) -> None:
    """Write a plot of the frontier as PNG or SVG: accuracy over cost, with what is sure, and the chosen point.

    Raises:
        MissingExtra: matplotlib is not installed.
        ConfigError: The file can't be written.
    """
    figure = new_figure(9, 5.4)
    axes = figure.subplots()
    points = sorted(found.frontier, key=lambda point: point.cost_ms)
    costs = [point.cost_ms for point in points]
    axes.plot(costs, [point.tested for point in points], "o-", label="on the frames that test the thresholds")
    axes.plot(
        costs, [point.bound for point in points], "v--", label=f"above this with {found.goal.confidence:.0%} confidence"
    )
    axes.plot([found.chosen.cost_ms], [found.chosen.tested], "*", markersize=18, color="C3", label="chosen")
    axes.axhline(found.goal.least, color="grey", linewidth=1, label=f"promised: {found.goal.least:g}")
    axes.axvline(found.costs.reference, color="grey", linestyle=":", label="the reference on every frame")
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel("cost of a frame, in milliseconds of a processor core")
    axes.set_ylabel("share of the reference's own answers")
    axes.grid(visible=True, which="both", alpha=0.3)
    axes.legend(fontsize="small")
    try:
        set_aside(path)
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--plot {path}: {error}; expected a .png or .svg file in a folder that exists") from error
