"""Tables of words and figures, for the terminal and for a document."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich import box
from rich.console import Console
from rich.table import Table

__all__ = ["Grid", "as_markdown", "print_grid"]


@dataclass(frozen=True, slots=True)
class Grid:
    """A titled table of words that can be drawn in several ways.

    Attributes:
        title: Above it.
        headings: Of the columns.
        rows: As many cells each as there are headings.
        words: How many columns from the left hold words; the others hold figures.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int


def print_grid(grid: Grid, console: Console) -> None:
    """Print a table."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for number, heading in enumerate(grid.headings):
        is_word = number < grid.words
        table.add_column(heading, justify="left" if is_word else "right", no_wrap=is_word)
    for row in grid.rows:
        table.add_row(*row)
    console.print(f"\n{grid.title}", style="bold", highlight=False)
    console.print(table)


def as_markdown(grid: Grid) -> str:
    """Return a table as a section of Markdown."""
    rule = ["---"] * grid.words + ["---:"] * (len(grid.headings) - grid.words)
    lines = [_line(grid.headings), _line(rule), *(_line(row) for row in grid.rows)]
    return f"## {grid.title}\n\n" + "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"
