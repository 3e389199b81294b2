"""Who is let in: bounds by count and by bytes, an equal share of the capacity for each client, requests taken back."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable

from mqinfer.cloud_worker.serving.active_clients import ActiveClients
from mqinfer.cloud_worker.serving.cancelled import TakenBack
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.protocol.types import Outcome

__all__ = ["Admission"]

_WORK_S = 0.25
"""Work that clients together may hold at a worker, so that it does not run dry while replies and requests travel."""
_BATCHES = 2
"""The same in batches: one that runs and one that gathers."""


class Admission:
    """The worker's door. Thread-safe."""

    def __init__(self, options: WorkerOptions, rows: int) -> None:
        """Begin with nobody.

        Args:
            options: With the bounds.
            rows: That the model runs at a time: of a batch, times the batches that run together.
        """
        self._options = options
        self._rows = rows
        self._lock = threading.Lock()
        self._clients = ActiveClients()
        self._bytes = 0
        self._taken_back = TakenBack()

    def enter(self, client: str, size: int, now: float) -> bool:
        """Note a request of so many bytes; False where they are too many, and nothing is noted then."""
        with self._lock:
            self._clients.heard(client, now)
            if self._bytes and self._bytes + size > self._options.capacity_bytes:
                return False
            self._bytes += size
            return True

    def leave(self, size: int) -> None:
        """Note that a request is out of the worker's hands."""
        with self._lock:
            self._bytes -= size

    def window(self, service_s: float) -> int:
        """Tell how many requests each client may have unanswered here, by the time that one takes, in seconds."""
        wanted = max(_BATCHES * self._rows, math.ceil(_WORK_S / service_s) if service_s else 0)
        with self._lock:
            return max(1, min(self._options.capacity, wanted) // max(1, len(self._clients)))

    def take_back(self, client: str, ids: Iterable[str], outcome: Outcome) -> None:
        """Note requests of a client that nobody waits for any more."""
        with self._lock:
            self._taken_back.add(((client, each) for each in ids), outcome)

    def was_taken_back(self, key: tuple[str, str] | None) -> Outcome | None:
        """Tell whether a request, by client and id, was taken back, and how."""
        if key is None or not self._taken_back:  # mostly there are none: no lock for that
            return None
        with self._lock:
            return self._taken_back.pop(key)
