"""How long something that may be over in a moment is tried again."""

from __future__ import annotations

import math
import time

__all__ = ["PAUSE_S", "Patience"]

PAUSE_S = 0.2
"""How long to wait before another try."""


class Patience:
    """Lasts so many seconds from the first failure after a success."""

    def __init__(self, seconds: float) -> None:
        """Set the seconds; they run from the first question on."""
        self._seconds = seconds
        self._until = math.inf

    def is_over(self) -> bool:
        """Return whether the time has run out; it starts to run with the first failure."""
        if self._until == math.inf:
            self._until = time.monotonic() + self._seconds
        return time.monotonic() >= self._until

    def pause(self) -> bool:
        """Wait before another try; return False where the time has run out."""
        if self.is_over():
            return False
        time.sleep(PAUSE_S)
        return True

    def renew(self) -> None:
        """Start anew with the next failure."""
        self._until = math.inf
