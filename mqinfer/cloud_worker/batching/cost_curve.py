"""How long a batch takes by its rows, learned from the batches that ran: pure, and bounded in memory."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass, field
from statistics import median

_FIRST = 5
"""Readings after which a size counts as known: an engine's first run of a shape chooses kernels and takes memory."""

_WEIGHT = 0.05
"""Least weight of the newest reading: about the last twenty batches of a size count."""

_OUTLIER = 4.0
"""A reading counts as `min(reading, _OUTLIER * mean)`: other programs use the machine as well."""


@dataclass(slots=True)
class _Point:
    """Batches of nearly one size: means of their rows and seconds."""

    rows: float
    seconds: float
    count: int = 0
    first: list[float] = field(default_factory=list)

    def add(self, rows: int, seconds: float) -> None:
        self.count += 1
        if self.count <= _FIRST:
            self.first.append(seconds)
            self.rows, self.seconds = rows, median(self.first)
            return
        weight = max(1 / self.count, _WEIGHT)
        self.rows += (rows - self.rows) * weight
        self.seconds += (min(seconds, self.seconds * _OUTLIER) - self.seconds) * weight


class CostCurve:
    """Smoothed seconds of a batch at each size, with straight lines between the sizes that were seen.

    Sizes up to 8 are kept apart; above, those that agree in their first three binary digits share a point, so that a
    thousand rows make about thirty points. Not thread-safe.
    """

    def __init__(self) -> None:
        self._points: dict[int, _Point] = {}
        self._order: list[int] = []
        self._known: list[int] = []

    def add(self, rows: int, seconds: float) -> None:
        """Learn from a batch.

        Args:
            rows: On its batch axis; 1 or more.
            seconds: How long it kept the model busy.
        """
        place = _place(rows)
        point = self._points.get(place)
        if point is None:
            point = self._points[place] = _Point(rows, seconds)
            insort(self._order, place)
        point.add(rows, seconds)
        if point.count == _FIRST:
            insort(self._known, place)

    def knows(self, rows: int) -> bool:
        """Whether batches of about this size were seen often enough to judge."""
        point = self._points.get(_place(rows))
        return point is not None and point.count >= _FIRST

    def sizes(self, most: int) -> list[int]:
        """List the sizes that are known, up to `most`, ascending."""
        return self._known[: bisect_right(self._known, most)]

    def seconds(self, rows: int) -> float:
        """Return how long a batch of this size takes, in seconds.

        Below the smallest size seen it is that one's time; above the largest the line through the smallest and the
        largest goes on, and one size alone promises no gain: twice the rows take twice as long. 0 before any batch.
        """
        point = self._points.get(rows)
        if point is not None and rows <= 8:
            return point.seconds
        if not self._order:
            return 0.0
        index = bisect_left(self._order, rows)
        if index == 0:
            return self._points[self._order[0]].seconds
        if index == len(self._order):
            return self._beyond(rows)
        return _line(self._points[self._order[index - 1]], self._points[self._order[index]], rows)

    def _beyond(self, rows: int) -> float:
        first, last = self._points[self._order[0]], self._points[self._order[-1]]
        if rows <= last.rows:
            return last.seconds
        if first is last:
            return last.seconds * rows / last.rows
        return max(last.seconds, _line(first, last, rows))


def _place(rows: int) -> int:
    spare = max(0, rows.bit_length() - 3) if rows > 8 else 0
    return rows >> spare << spare


def _line(low: _Point, high: _Point, rows: int) -> float:
    if high.rows <= low.rows:
        return high.seconds
    share = (rows - low.rows) / (high.rows - low.rows)
    return low.seconds + (high.seconds - low.seconds) * share
