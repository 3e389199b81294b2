"""The effect of a fault on the path beside its target: one row each, as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

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


class Figures:
    """The figures of a run.

    Attributes:
        recorded: In their order.
    """

    def __init__(self) -> None:
        self.recorded: list[Figure] = []

    def __call__(self, row: str, what: str, value: object, target: str = "", *, passed: bool | None = None) -> None:
        """Record a figure; the arguments are those of `Figure`."""
        self.recorded.append(Figure(row, what, str(value), target, passed))

    def bound(  # noqa: PLR0913 - a row of the table
        self, row: str, what: str, value: float, most: float, form: str, *, why: str = ""
    ) -> None:
        """Record a figure beside the most that it may be.

        Args:
            row: The fault and the load.
            what: What was counted or measured.
            value: How much it was.
            most: The target.
            form: How the value is written, and its unit, such as `.2f s`.
            why: What the target is made of.
        """
        digits, _, unit = form.partition(" ")
        unit = unit and f" {unit}"
        target = f"<= {most:g}{unit}" + (why and f" ({why})")
        self(row, what, f"{value:{digits}}{unit}", target, passed=value <= most)

    def every(self, row: str, what: str, value: int, expected: int) -> None:
        """Record how many of all there were, which should be all."""
        self(row, what, f"{value}/{expected}", "all", passed=value == expected)


def as_markdown(figures: Sequence[Figure]) -> str:
    """Return the figures as a table, with each fault's name once."""
    lines = ["| fault and load | what | figure | target | |", "|---|---|---|---|---|"]
    last = ""
    for each in figures:
        row = "" if each.row == last else each.row
        lines.append(f"| {row} | {each.what} | {each.figure} | {each.target} | {_WORDS[each.passed]} |")
        last = each.row
    return "\n".join(lines) + "\n"
