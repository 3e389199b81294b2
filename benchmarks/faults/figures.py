"""The effect of a fault on the path beside its target: one row each, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Figure", "as_markdown"]

_WORDS = {True: "pass", False: "**miss**", None: "stated"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        row: The fault and the load.
        what: What was counted or measured.
        figure: As text.
        target: As text; empty where the figure is only stated.
        passed: None where there is no target.
    """

    row: str
    what: str
    figure: str
    target: str = ""
    passed: bool | None = None


def as_markdown(figures: Sequence[Figure]) -> str:
    """Return the figures as a table, with each fault's name once."""
    lines = ["| fault and load | what | figure | target | |", "|---|---|---|---|---|"]
    last = ""
    for each in figures:
        row = "" if each.row == last else each.row
        lines.append(f"| {row} | {each.what} | {each.figure} | {each.target} | {_WORDS[each.passed]} |")
        last = each.row
    return "\n".join(lines) + "\n"
