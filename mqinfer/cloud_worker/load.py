"""What a worker counts about itself."""

from __future__ import annotations

import threading
from collections import Counter

from mqinfer.protocol.types import WorkerLoad

__all__ = ["LoadMeter"]

_WEIGHT = 0.2
"""Weight of the newest reading in the smoothed service time: about the last five batches count."""


class LoadMeter:
    """Smoothed service time, and counters by outcome and reason. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counters: Counter[str] = Counter()
        self._service_us = 0.0

    def count(self, what: str) -> None:
        """Add one to a counter."""
        with self._lock:
            self._counters[what] += 1

    def served(self, seconds: float, requests: int) -> None:
        """Note a batch: the seconds that it took, for how many requests."""
        reading = seconds * 1e6 / requests
        with self._lock:
            self._service_us += (reading - self._service_us) * (_WEIGHT if self._service_us else 1.0)

    def load(self, depth: int) -> WorkerLoad:
        """Say what a reply says."""
        return WorkerLoad(depth, round(self._service_us))

    def counters(self) -> dict[str, int]:
        """Copy the counters."""
        with self._lock:
            return dict(self._counters)
