"""The files of what was measured, one form for each kind of file: CSV, Markdown, a plot."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from textwrap import fill
from typing import Any

from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.lab.reports import Grid, as_csv, as_markdown, check_plots, new_figure, plain_markdown, shown
from mqinfer.logs import printable
from mqinfer.protocol.errors import ConfigError

_PLOTS = (".png", ".svg", ".pdf")
_PANEL, _LEAST_HEIGHT, _BAR = 4.6, 4.2, 0.34
"""Width of a panel, least height of a plot, and height of a bar, in hundreds of pixels."""
_COLOURS = ("#4477aa", "#ccbb44", "#228833", "#ee6677", "#aa3377", "#66ccee", "#bbbbbb")


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes of a plot, drawn from columns of a table.

    Attributes:
        label: What is measured, with its unit.
        columns: Headings: the parts of each bar, or a line each.
        over: Heading that lines run over, on a logarithmic axis; where it is empty, each row is a bar.
        by: Heading whose words get a line each; where it is empty, each column gets one.
        is_log: Whether the axis of the figures is logarithmic.
    """

    label: str
    columns: Sequence[str]
    over: str = ""
    by: str = ""
    is_log: bool = False


@dataclass(frozen=True, slots=True)
class Report:
    """What a measurement found.

    Attributes:
        grid: One row for each thing that was measured.
        panels: How the table is drawn.
        about: How it was measured, in sentences.
        whole: All that was measured, for JSON.
    """

    grid: Grid
    panels: Sequence[Panel]
    about: str
    whole: object


_FORMS: Mapping[str, Callable[[Report], str]] = {
    "csv": lambda report: as_csv(report.grid),
    "markdown": lambda report: f"{as_markdown(report.grid)}\n\n{plain_markdown(report.about)}\n",
}


def check_files(files: Mapping[str, Path]) -> None:
    """Check before minutes of measuring that files can be written.

    Args:
        files: By kind: `csv`, `markdown` or `plot`.

    Raises:
        ConfigError: There is no such folder, or the plot's suffix is none of a picture.
        MissingExtra: matplotlib is not installed, and a plot is asked for.
    """
    for kind, path in files.items():
        if not path.parent.is_dir():
            raise ConfigError(f"--{kind} {path}: there is no folder {path.parent}; make it, or choose another")
        if kind == "plot":
            check_plots()
            if path.suffix.lower() not in _PLOTS:
                raise ConfigError(f"--plot {path}: expected a file whose name ends with one of {', '.join(_PLOTS)}")


def write_report(report: Report, files: Mapping[str, Path]) -> None:
    """Write a report into each of the files; files of earlier measurements are kept under a number.

    Raises:
        ConfigError: A file can't be written.
        MissingExtra: matplotlib is not installed, and a plot is asked for.
    """
    for kind, path in files.items():
        with writing(path):
            set_aside(path)
            if kind == "plot":
                _draw(report, path)
            else:
                path.write_text(_FORMS[kind](report), encoding="utf-8")


def _draw(report: Report, path: Path) -> None:
    grid = _measured(report)
    if not grid.rows:
        raise ConfigError(f"--plot {path}: nothing to plot, since no request had a result")
    width = _PANEL * len(report.panels)
    bars = 0 if all(panel.over for panel in report.panels) else len(grid.rows)
    figure = new_figure(width, max(_LEAST_HEIGHT, 1.4 + _BAR * bars))
    figure.suptitle(fill(printable(grid.title), int(width * 13)), fontsize="small", parse_math=False)
    for axes, panel in zip(figure.subplots(1, len(report.panels), squeeze=False)[0], report.panels, strict=True):
        (_lines if panel.over else _bars)(axes, grid, panel)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize="small")
        if len(panel.columns) > 1 or panel.by:
            _legend(axes)
    figure.savefig(path)


def _measured(report: Report) -> Grid:
    """Return the rows that have all figures of the plot."""
    columns = [_column(report.grid, heading) for panel in report.panels for heading in panel.columns]
    rows = [row for row, *cells in zip(report.grid.rows, *columns, strict=True) if None not in cells]
    return replace(report.grid, rows=rows)


def _legend(axes: Any) -> None:
    for text in axes.legend(fontsize="x-small").get_texts():
        text.set_parse_math(False)


def _bars(axes: Any, grid: Grid, panel: Panel) -> None:
    """Draw a bar for each row, the first at the top, of one part for each column."""
    names = [_name(grid, number) for number in range(len(grid.rows))]
    left = [0.0] * len(names)
    for heading, colour in zip(panel.columns, _COLOURS, strict=False):
        sizes = _column(grid, heading)
        bars = axes.barh(range(len(names)), sizes, left=left, color=colour, label=heading, log=panel.is_log)
        left = [start + size for start, size in zip(left, sizes, strict=True)]
    axes.bar_label(bars, [shown(whole) for whole in left], padding=2, fontsize="x-small")
    axes.set_yticks(range(len(names)), names, parse_math=False)
    axes.invert_yaxis()
    axes.margins(x=0.18)
    axes.set_xlabel(panel.label)


def _lines(axes: Any, grid: Grid, panel: Panel) -> None:
    """Draw a line for each column, or for each of the words of a column, from the rows that have a place on it."""
    grid = replace(grid, rows=[row for row, at in zip(grid.rows, _column(grid, panel.over), strict=True) if at])
    series = _column(grid, panel.by) if panel.by else [None] * len(grid.rows)
    for number, word in enumerate(dict.fromkeys(series)):
        part = replace(grid, rows=[row for row, each in zip(grid.rows, series, strict=True) if each == word])
        for other, heading in enumerate(panel.columns):
            colour = _COLOURS[(number + other) % len(_COLOURS)]
            figures = _column(part, panel.over), _column(part, heading)
            axes.plot(*figures, "o-", color=colour, markersize=4, label=shown(word or heading))
    axes.set_xscale("log", base=2)
    places = sorted(set(_column(grid, panel.over)))
    axes.set_xticks(places, map(shown, places), minor=False)
    if panel.is_log:
        _plain_log(axes)
    else:
        axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.set_xlabel(panel.over)
    axes.set_ylabel(panel.label)


def _plain_log(axes: Any) -> None:
    """Make the vertical axis logarithmic with plain numbers, between the decades where it spans about one or less."""
    from matplotlib.ticker import LogFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False, minor_thresholds=(1.5, 0.5)))


def _column(grid: Grid, heading: str) -> list[Any]:
    if heading not in grid.headings:  # no row has one
        return [None] * len(grid.rows)
    number = list(grid.headings).index(heading)
    return [row[number] for row in grid.rows]


def _name(grid: Grid, row: int) -> str:
    """Return what names a row: its words, and its first figures with their headings."""
    cells = list(zip(grid.headings, grid.rows[row][: grid.words], strict=False))
    return ", ".join(
        shown(cell) if isinstance(cell, str) else f"{shown(cell)} {heading}" for heading, cell in cells if cell
    )
