"""The figures of a run of the faults."""

from __future__ import annotations

from benchmarks.faults.soak import Figure


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

    def bound(self, row: str, what: str, value: float, most: float, form: str, *, why: str = "") -> None:
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
