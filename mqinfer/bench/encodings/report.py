"""Shows what was measured of encodings: a table, JSON, and a plot."""

from __future__ import annotations

from pathlib import Path

from mqinfer.bench.encodings.measure import EncodingFigures, EncodingsMeasurement
from mqinfer.lab.reports import Grid, new_figure

_USUAL = "jpeg:90"
"""The default of `--encoding`: what the thin link is compared with."""


def grid_of(measured: EncodingsMeasurement) -> Grid:
    """Return the table."""
    headings = ["encoding", "kB a frame", "edge CPU ms", "worker CPU ms", "PSNR dB", "answers changed", "p50 ms"]
    has_link = any(each.link_rate is not None for each in measured.figures)
    usual = next((each.link_rate for each in measured.figures if each.encoding == _USUAL), None)
    if has_link:
        headings += ["results/s over the link", f"times {_USUAL}"]
    rows = [_row(each) + (_link(each, usual) if has_link else []) for each in measured.figures]
    return Grid(_title(measured), headings, rows, words=1)


def draw(measured: EncodingsMeasurement, path: Path) -> None:
    """Write a plot: bytes of a frame, processor time of both sides, and p50, by encoding.

    Args:
        measured: What to draw.
        path: File; its suffix is the format, such as `.svg` or `.png`.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figures = measured.figures[::-1]
    names = [each.encoding for each in figures]
    figure = new_figure(11, 0.6 + 0.32 * len(names))
    figure.suptitle(_title(measured), fontsize="small")
    sizes, times, whole = figure.subplots(1, 3, sharey=True)
    bars = sizes.barh(names, [each.alone.frame_bytes / 1e3 for each in figures], color="#4477aa", log=True)
    sizes.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize="x-small")
    sizes.set_xlabel("kB a frame")
    edge = [each.alone.edge_ms for each in figures]
    times.barh(names, edge, color="#228833", label="edge")
    times.barh(names, [each.alone.worker_ms for each in figures], left=edge, color="#ccbb44", label="worker")
    times.set_xlabel("processor time a frame, ms")
    times.legend(fontsize="x-small")
    bars = whole.barh(names, [each.p50_ms for each in figures], color="#aa3377")
    whole.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize="x-small")
    whole.set_xlabel("end to end, p50 in ms")
    for axes in (sizes, times, whole):
        axes.margins(x=0.18)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize="small")
    figure.savefig(path)


def _title(measured: EncodingsMeasurement) -> str:
    return ", ".join(f"{key} {value}" for key, value in measured.subject.items() if value)


def _row(each: EncodingFigures) -> list[str]:
    return [
        each.encoding,
        f"{each.alone.frame_bytes / 1e3:.1f}",
        f"{each.alone.edge_ms:.1f}",
        f"{each.alone.worker_ms:.1f}",
        "same" if each.alone.psnr_db is None else f"{each.alone.psnr_db:.1f}",
        f"{each.changed:.3%}",
        f"{each.p50_ms:.0f}",
    ]


def _link(each: EncodingFigures, usual: float | None) -> list[str]:
    if each.link_rate is None:
        return ["", ""]
    return [f"{each.link_rate:.1f}", f"{each.link_rate / usual:.1f}" if usual else ""]
