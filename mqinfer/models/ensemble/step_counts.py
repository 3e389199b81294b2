"""Counts the runs of an ensemble's steps, for the statistics of their models."""

from __future__ import annotations

import threading
import time

from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import BatchStatistics, Duration, ModelStatistics, StageTimes

_NO_TIME = Duration(1)


class StepCounts:
    """What one model has run as a step; each run is one request. Thread-safe.

    Args:
        card: Of the model.

    Attributes:
        card: The same.
        sums: What was counted.
    """

    def __init__(self, card: ModelCard) -> None:
        self.card, self.sums = card, ModelStatistics()
        self._lock = threading.Lock()

    def ran(self, rows: int, ns: int) -> None:
        """Count a run of so many rows and nanoseconds."""
        run, now = Duration(1, ns), time.time_ns() // 1_000_000
        stages = StageTimes(run, Duration(), _NO_TIME, _NO_TIME, run, _NO_TIME)
        self._add(ModelStatistics(now, rows, 1, stages, {rows: BatchStatistics(_NO_TIME, run, _NO_TIME)}))

    def failed(self, ns: int) -> None:
        """Count a run that failed after so many nanoseconds."""
        self._add(ModelStatistics(stages=StageTimes(fail=Duration(1, ns))))

    def _add(self, run: ModelStatistics) -> None:
        with self._lock:
            self.sums += run
