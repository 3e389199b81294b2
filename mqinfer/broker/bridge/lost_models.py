"""The models of workers that were lost a short while ago, and may be back before anybody can state that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

RETURN_S = 15.0
"""How long they may take: a cluster that elects a leader, 4 to 6 s or more, keeps no state, and takes a worker for lost
after as long a silence."""
_MOST = 1000


class LostModels:
    """At most 1000 names, each for 15 s. Not thread-safe.

    Args:
        clock: Returns a time in seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._until: dict[str, float] = {}

    def add(self, names: Iterable[str]) -> None:
        """Begin the time of models whose worker is lost; what is above the bound is left out."""
        until = self._clock() + RETURN_S
        for name in names:
            if name in self._until or len(self._until) < _MOST:
                self._until[name] = until

    def names(self) -> set[str]:
        """Return those whose time has not ended."""
        now = self._clock()
        self._until = {name: until for name, until in self._until.items() if until > now}
        return set(self._until)

    @property
    def ends_at(self) -> float:
        """When the next one's time ends; infinite where there is none."""
        return min(self._until.values(), default=math.inf)
