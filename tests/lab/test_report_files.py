"""One table is written in every form; what is in it is text, and no markup."""

from __future__ import annotations

import csv
import math
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from mqinfer.lab.report_files import Panel, Report, write_report
from mqinfer.lab.reports import Cell, Grid, print_grid, shown
from mqinfer.protocol.errors import ConfigError

HOSTILE = "<script>alert(1)</script>|[x](javascript:y)$\\frac{$\x1b[2J`*"


def report(*rows: list[Cell]) -> Report:
    """A table of two figures by name."""
    grid = Grid(HOSTILE, ["name", "ms", "of it ms"], rows, words=1)
    panels = (Panel("ms", ["ms", "of it ms"]), Panel("ms", ["ms"], over="of it ms", by="name"))
    return Report(grid, panels, f"On {HOSTILE}.", {"any": 1})


def test_every_form_of_a_hostile_table(tmp_path: Path) -> None:
    """Markdown has no tag, link or further cell; the plot draws it all; CSV keeps each digit."""
    files = {"csv": tmp_path / "a.csv", "markdown": tmp_path / "a.md", "plot": tmp_path / "a.svg"}
    write_report(report([HOSTILE, 1 / 3, 0.1], ["plain", 2.0, None]), files)
    read = list(csv.reader(StringIO(files["csv"].read_text(), newline="")))
    assert read == [["name", "ms", "of it ms"], [HOSTILE, str(1 / 3), "0.1"], ["plain", "2.0", ""]]
    lines = files["markdown"].read_text().splitlines()
    assert all("<" not in line.replace("\\<", "") and "\x1b" not in line for line in lines)
    assert lines[4].replace("\\|", "").count("|") == 4
    assert "<script" not in files["plot"].read_text()


def test_an_earlier_file_is_kept(tmp_path: Path) -> None:
    """Under a number."""
    for figure in (1.0, 2.0):
        write_report(report(["a", figure, 1.0]), {"csv": tmp_path / "a.csv"})
    assert "a,1.0" in (tmp_path / "a.1.csv").read_text()


def test_a_table_without_figures_has_no_plot(tmp_path: Path) -> None:
    """Which a message says."""
    with pytest.raises(ConfigError, match="nothing to plot"):
        write_report(report(["a", None, None]), {"plot": tmp_path / "a.png"})


def test_a_wide_table_is_broken_between_columns() -> None:
    """Each part repeats the words, and no figure is cut."""
    grid = Grid("wide", ["name", *(f"figure {number}" for number in range(12))], [["a", *[123.4] * 12]], words=1)
    console = Console(width=60, file=StringIO())
    print_grid(grid, console)
    assert isinstance(console.file, StringIO)
    lines = console.file.getvalue().splitlines()
    rows = [line.split() for line in lines if "123" in line]
    assert len(rows) > 1
    assert all(row[0] == "a" for row in rows)
    assert sum(row.count("123") for row in rows) == 12
    assert max(map(len, lines)) <= 60


@pytest.mark.parametrize(
    ("cell", "text"),
    [(None, ""), (1234.5, "1,234"), (12.345, "12.3"), (99.99, "100"), (0.01234, "0.012"), (7, "7"), (math.inf, "inf")],
)
def test_a_figure_is_shown_with_three_digits(cell: Cell, text: str) -> None:
    """And without an exponent."""
    assert shown(cell) == text
