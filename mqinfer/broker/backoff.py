"""How long to wait before the next attempt to connect."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

__all__ = ["Backoff"]

# With 1.5 the mean wait is about half of the time that has passed so far; with the usual 2 it is nearly all of it.
_GROWTH = 1.5
# So many connections that ended within so many seconds are a loop. A link that is cut every three seconds is none.
_LOOP, _LOOP_S = 8, 20.0


class Backoff:
    """Exponential back-off with full jitter, so that a fleet doesn't come back in step.

    Source: Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015; here with a floor.

    Args:
        shortest: Seconds, the least that is ever waited.
        longest: Seconds, the most that is ever waited.
        draw: Gives numbers in [0, 1).
    """

    def __init__(self, shortest: float = 0.1, longest: float = 5.0, draw: Callable[[], float] = random.random) -> None:
        self._shortest = shortest
        self._longest = longest
        self._draw = draw
        self._ceiling = shortest
        self._ends: deque[float] = deque(maxlen=_LOOP)

    def next(self) -> float:
        """Seconds to wait now; the ceiling grows by half with each call."""
        wait = self._shortest + (self._ceiling - self._shortest) * self._draw()
        self._ceiling = min(self._ceiling * _GROWTH, self._longest)
        return wait

    def lost(self, now: float) -> bool:
        """Note the end of a connection that stood, and start anew unless such ends come so fast that it is a loop.

        Returns:
            Whether it is one.
        """
        self._ends.append(now)
        is_loop = len(self._ends) == _LOOP and now - self._ends[0] < _LOOP_S
        if not is_loop:
            self.reset()
        return is_loop

    def reset(self) -> None:
        """Start anew."""
        self._ceiling = self._shortest
