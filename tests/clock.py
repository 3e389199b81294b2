"""A clock that a test sets."""

from __future__ import annotations


class Clock:
    """Stands still until a test moves it; called, it returns the time in seconds."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """Return the time."""
        return self.now
