"""Whose request comes next: round robin over clients, by start-time fair queueing. Pure.

Each request gets a turn when it comes: that of the last one served, or one after its client's own last, whichever is
later (Goyal, Vin and Cheng, SIGCOMM 1996, with every request of length 1). Served by their turns, a client that sends
one request now and then is next in line, however many another one has sent, and each client's stay in their order.
"""

from __future__ import annotations

__all__ = ["Turns"]

_CLIENTS = 1024
"""Clients beyond this number are forgotten where that changes nothing."""


class Turns:
    """Hands out turns. Not thread-safe."""

    def __init__(self) -> None:
        self._now = 0.0  # the last turn that was served
        self._last: dict[str, float] = {}  # turn of each client's last request

    def next(self, client: str) -> float:
        """Give a client's new request its turn."""
        if len(self._last) >= _CLIENTS:
            self._last = {each: turn for each, turn in self._last.items() if turn >= self._now}
        turn = max(self._now, self._last.get(client, -1.0) + 1)
        self._last[client] = turn
        return turn

    def served(self, turn: float) -> None:
        """Note that a request is being served."""
        self._now = max(self._now, turn)

    def clear(self) -> None:
        """Begin anew, since nothing waits: who got more until now owes nothing."""
        self._now = 0.0
        self._last.clear()
