"""The forms of a report: tables for the terminal and for a document, JSON, plots, and the files that hold them."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from io import StringIO
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.extras import check_packages, import_extra
from mqinfer.logs import printable

Cell = str | float | None
"""A word, a figure, or nothing."""
_GAP, _SENTENCE = 2, 24
"""Columns of a terminal between two columns of a table, and the least that a sentence has."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A titled table of words and figures that can be drawn in several ways.

    Attributes:
        title: Text above it.
        headings: Names of the columns.
        rows: As many cells each as there are headings; a number is shown with three digits, and kept whole in a file.
        words: Columns from the left that hold words; the others hold figures.
        ends_in_words: Whether the last column holds words too, such as a verdict.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    words: int
    ends_in_words: bool = False

    def is_word(self, number: int) -> bool:
        """Return whether a column holds words."""
        return number < self.words or (self.ends_in_words and number == len(self.headings) - 1)


def grid_of(title: str, records: Sequence[Mapping[str, Cell]], words: int, *, ends_in_words: bool = False) -> Grid:
    """Return a table of records that have the same headings; a column in which none has anything is left out.

    Args:
        title: As of `Grid`.
        records: One a row.
        words: As of `Grid`.
        ends_in_words: As of `Grid`.
    """
    headings = [name for name in records[0] if any(record[name] is not None for record in records)]
    return Grid(title, headings, [[record[name] for name in headings] for record in records], words, ends_in_words)


def print_grid(grid: Grid, console: Console) -> None:
    """Print a table; one that is wider than the terminal is broken into parts, each with the columns of words."""
    console.print(f"\n{printable(grid.title)}", style="bold", highlight=False)
    for part in _parts(grid, console.width):
        table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
        for number, heading in enumerate(part.headings):
            justify = "left" if part.is_word(number) else "right"
            table.add_column(heading, justify=justify, no_wrap=number < part.words)  # type: ignore[arg-type] # two of its words
        for row in part.rows:
            table.add_row(*map(shown, row))
        console.print(table)


def _parts(grid: Grid, width: int) -> Iterator[Grid]:
    """Cut a table between columns of figures, so that no figure is broken over two lines; a sentence is wrapped."""
    widths = [
        max([*map(len, heading.split(" ")), *(len(shown(row[number])) for row in grid.rows)]) + _GAP
        for number, heading in enumerate(grid.headings)
    ]
    words, chosen = list(range(grid.words)), list[int]()
    for number in range(grid.words, len(widths)):
        size = _SENTENCE if grid.is_word(number) else widths[number]
        if chosen and sum(widths[each] for each in (*words, *chosen)) + size > width:
            yield _columns(grid, words + chosen)
            chosen = []
        chosen.append(number)
    yield _columns(grid, words + chosen)


def _columns(grid: Grid, numbers: Sequence[int]) -> Grid:
    """Return a part of a table; of one with sentences, only the rows that have one where they stand alone."""
    kept = [each for each in grid.rows if len(numbers) > grid.words + 1 or each[numbers[-1]]]
    rows = [[row[number] for number in numbers] for row in kept]
    headings = [grid.headings[number] for number in numbers]
    return replace(grid, headings=headings, rows=rows, ends_in_words=grid.is_word(numbers[-1]))


def shown(cell: Cell) -> str:
    """Return a cell as it is read: a figure with three digits and no exponent."""
    if cell is None:
        return ""
    if isinstance(cell, str):
        return printable(cell)
    if isinstance(cell, int) or abs(cell) >= 100:
        return f"{cell:,.0f}"
    return f"{cell:#.3g}".rstrip(".") if abs(cell) >= 1 else f"{cell:.3f}"


def as_markdown(grid: Grid) -> str:
    """Return a table as a section of Markdown."""
    rule = ["---" if grid.is_word(number) else "---:" for number in range(len(grid.headings))]
    lines = [_line(map(plain_markdown, grid.headings)), _line(rule)]
    lines += [_line(plain_markdown(shown(cell)) for cell in row) for row in grid.rows]
    return f"## {plain_markdown(grid.title)}\n\n" + "\n".join(lines)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def plain_markdown(text: str) -> str:
    """Return text that is no markup: neither HTML nor Markdown, and that ends no cell."""
    return re.sub(r"[\\`*<&\[|]", r"\\\g<0>", printable(text))


def as_csv(grid: Grid) -> str:
    """Return a table as CSV, one line a row; figures have all their digits, and a cell without one is empty."""
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(grid.headings)
    writer.writerows(grid.rows)
    return text.getvalue()


def machine_sentence(machine: Mapping[str, str]) -> str:
    """Return what a measurement ran on as one sentence."""
    return f"Machine: {', '.join(f'{name} {value}' for name, value in machine.items())}."


def as_json(value: object) -> str:
    """Return figures as JSON: objects of data classes by field, sets sorted, paths as text."""
    return json.dumps(value, indent=2, default=_plain) + "\n"


def _plain(value: object) -> object:
    if is_dataclass(value):
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return sorted(value) if isinstance(value, (set, frozenset)) else str(value)


def check_plots() -> None:
    """Check before hours of measuring that what was measured can be drawn.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    check_packages({"matplotlib": "matplotlib"}, "profile")


def new_figure(width: float, height: float) -> Any:
    """Return an empty figure of matplotlib, its size in hundreds of pixels; `savefig` takes a .png or .svg file.

    Raises:
        MissingExtra: matplotlib is not installed.
    """
    figures = import_extra("matplotlib.figure", "profile")
    return figures.Figure(figsize=(width, height), dpi=100, layout="constrained")


def write_files(directory: Path, texts: Mapping[str, str]) -> tuple[Path, ...]:
    """Write files into a folder; create the folder if needed, and keep files of earlier measurements under numbers.

    Args:
        directory: The folder.
        texts: Content of each file, by file name.

    Returns:
        Paths of the files.

    Raises:
        ConfigError: The folder can't be created or written.
    """
    paths = tuple(directory / name for name in texts)
    with writing(directory):
        directory.mkdir(parents=True, exist_ok=True)
        for path in paths:
            set_aside(path)
            path.write_text(texts[path.name], encoding="utf-8")
    return paths
