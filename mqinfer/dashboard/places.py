"""How many browsers are connected, in all and from one address."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from mqinfer.dashboard.settings import is_loopback


class Full(Exception):
    """There is no place left; the text says which bound was met."""


class Places:
    """Places for connections.

    Args:
        most: Connections at a time.
        most_of_one: Those of one address. Loopback is not bounded by it: there a proxy may speak for many.
    """

    def __init__(self, most: int, most_of_one: int) -> None:
        self._most, self._most_of_one = most, most_of_one
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """Connections at the moment."""
        return self._taken.total()

    @contextmanager
    def take(self, address: str) -> Iterator[None]:
        """Hold a place for a connection of an address.

        Raises:
            Full: There is none.
        """
        if self.taken >= self._most:
            raise Full("max_connections")
        if self._taken[address] >= self._most_of_one and not is_loopback(address):
            raise Full("max_connections_per_address")
        self._taken[address] += 1
        try:
            yield
        finally:
            self._taken[address] -= 1
            if not self._taken[address]:
                del self._taken[address]
