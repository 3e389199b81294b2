"""How many rows are about, and how soon after a batch they are all back: callers that were answered ask again. Pure."""

from __future__ import annotations

__all__ = ["Arrivals"]

_WEIGHT = 0.1
"""Weight of the newest reading in times and shares."""

_SURE = 0.75
"""So many rows are expected again as were in hand after so large a share of the last batches."""


class Arrivals:
    """Smoothed time from the end of a batch until so many rows are in hand, waiting or running. Not thread-safe.

    With callers that each wait for their own reply the rows in hand come back to the number of callers after each
    batch, however the rows were divided among batches.
    """

    def __init__(self, most: int) -> None:
        """Begin knowing nothing.

        Args:
            most: Rows that are counted at most.
        """
        self._most = most
        self._times: list[float] = []  # until 1, 2, … rows are in hand
        self._shares: list[float] = []  # of batches after which they were
        self._ended = 0.0
        self._peak = 0

    def ended(self, in_hand: int, now: float) -> None:
        """Note that a batch has ended, and how many rows are in hand without it."""
        for index in range(len(self._shares)):
            self._shares[index] += ((index < self._peak) - self._shares[index]) * _WEIGHT
        self._ended, self._peak = now, 0
        self._reach(in_hand, 0.0)

    def came(self, in_hand: int, now: float) -> None:
        """Note that now so many rows are in hand."""
        if in_hand > self._peak:
            self._reach(in_hand, now - self._ended)

    def expects(self, rows: int) -> bool:
        """Tell whether so many rows are likely to be in hand before the next batch ends."""
        return rows <= self._peak or (rows <= len(self._shares) and self._shares[rows - 1] >= _SURE)

    def expected(self) -> int:
        """Tell how many rows are likely to be in hand before the next batch ends."""
        level = self._peak
        while level < len(self._shares) and self._shares[level] >= _SURE:
            level += 1
        return level

    def due(self, rows: int, times: float = 1.0) -> float:
        """Tell when so many rows are likely to be in hand, by the clock.

        Args:
            rows: At most `expected()`.
            times: So many times as long after the last batch as it usually takes.
        """
        return self._ended + self._times[rows - 1] * times

    def missed(self) -> None:
        """Note that what was expected did not come; twice in a row, and it is expected no more."""
        for index in range(self._peak, len(self._shares)):
            self._shares[index] *= _SURE

    def _reach(self, in_hand: int, since: float) -> None:
        end = min(in_hand, self._most)
        for index in range(self._peak, end):
            if index == len(self._times):
                self._times.append(since)
                self._shares.append(0.0)
            elif since:
                self._times[index] += (since - self._times[index]) * _WEIGHT
        self._peak = max(self._peak, end)
