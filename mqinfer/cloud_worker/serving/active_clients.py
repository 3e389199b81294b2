"""Which clients a worker serves at present: pure, bounded."""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["ActiveClients"]

_MOST = 4096
"""Clients remembered at most; the one that was heard longest ago goes first."""


class ActiveClients:
    """Clients that asked lately. Not thread-safe: its owner holds a lock."""

    def __init__(self, forget_after: float = 2.0) -> None:
        """Begin with none.

        Args:
            forget_after: Seconds without a request after which a client counts no more.
        """
        self._forget_after = forget_after
        self._heard: OrderedDict[str, float] = OrderedDict()

    def __len__(self) -> int:
        """Count them."""
        return len(self._heard)

    def heard(self, client: str, now: float) -> None:
        """Note a request."""
        self._heard[client] = now
        self._heard.move_to_end(client)
        while self._heard and (len(self._heard) > _MOST or self._oldest() < now - self._forget_after):
            self._heard.popitem(last=False)

    def _oldest(self) -> float:
        return next(iter(self._heard.values()))
