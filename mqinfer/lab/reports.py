"""The forms of a report: tables for the terminal and for a document, JSON, plots, and the files that hold them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from mqinfer.edge_agent.output_files import set_aside
from mqinfer.extras import check_packages, import_extra
from mqinfer.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Grid:
    """A titled table of words and figures that can be drawn in several ways.

    Attributes:
        title: Text above it.
        headings: Names of the columns.
        rows: As many cells each as there are headings.
        words: Columns from the left that hold words; the others hold figures.
        ends_in_words: Whether the last column holds words too, such as a verdict.
    """

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int
    ends_in_words: bool = False

    def is_word(self, number: int) -> bool:
        """Return whether a column holds words."""
        return number < self.words or (self.ends_in_words and number == len(self.headings) - 1)


def print_grid(grid: Grid, console: Console) -> None:
    """Print a table."""
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for number, heading in enumerate(grid.headings):
        justify = "left" if grid.is_word(number) else "right"
        table.add_column(heading, justify=justify, no_wrap=number < grid.words)  # type: ignore[arg-type] # two of its words
    for row in grid.rows:
        table.add_row(*row)
    console.print(f"\n{grid.title}", style="bold", highlight=False)
    console.print(table)


def as_markdown(grid: Grid) -> str:
    """Return a table as a section of Markdown."""
    rule = ["---" if grid.is_word(number) else "---:" for number in range(len(grid.headings))]
    lines = [_line(grid.headings), _line(rule), *(_line(row) for row in grid.rows)]
    return f"## {grid.title}\n\n" + "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


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
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for path in paths:
            set_aside(path)
            path.write_text(texts[path.name], encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"cannot write to {directory}: {error.strerror or error}; choose another folder") from error
    return paths
