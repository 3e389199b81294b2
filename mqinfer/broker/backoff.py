"""How long to wait before the next attempt to connect."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable

__all__ = ["Backoff"]

# Of what was waited so far a wait adds this at most: who was away for two seconds is found within another one. The
# usual doubling with each attempt may wait for as long as that again, or longer where the first draws were short.
_SHARE = 0.5
# So many connections that ended within so many seconds are a loop. A link that is cut every second is none.
_LOOP, _LOOP_S = 10, 5.0


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
        self._waited = 0.0
        self._ends: deque[float] = deque(maxlen=_LOOP)

    def next(self) -> float:
        """Seconds to wait now; the ceiling grows with what was waited so far."""
        ceiling = min(self._shortest + _SHARE * self._waited, self._longest)
        wait = self._shortest + (ceiling - self._shortest) * self._draw()
        self._waited += wait
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
        self._waited = 0.0
