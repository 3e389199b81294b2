"""Counts the runs of an ensemble's steps, for the statistics of their models."""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable

from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.control import BatchStatistics, Duration, ModelStatistics, StageTimes


class StepCounts:
    """What one model has run as a step. Thread-safe.

    Args:
        card: Of the model.

    Attributes:
        card: The same.
    """

    def __init__(self, card: ModelCard) -> None:
        self.card = card
        self._lock = threading.Lock()
        self._runs: Counter[int] = Counter()  # by rows
        self._ns: defaultdict[int, int] = defaultdict(int)  # nanoseconds, likewise
        self._failed = Duration()
        self._last = 0

    def clear(self) -> None:
        """Begin at zero: the runs of the warm-up are nobody's."""
        with self._lock:
            self._runs.clear()
            self._ns.clear()
            self._failed, self._last = Duration(), 0

    def ran(self, rows: int, ns: int) -> None:
        """Count a run of so many rows and nanoseconds."""
        with self._lock:
            self._runs[rows] += 1
            self._ns[rows] += ns
            self._last = time.time_ns() // 1_000_000

    def failed(self, ns: int) -> None:
        """Count a run that failed after so many nanoseconds."""
        with self._lock:
            self._failed += Duration(1, ns)

    def statistics(self) -> ModelStatistics:
        """Return what was counted; each run is one request."""
        nothing = Duration()
        with self._lock:
            runs = {rows: Duration(count, self._ns[rows]) for rows, count in sorted(self._runs.items())}
            total, idle = sum(runs.values(), nothing), Duration(self._runs.total())
            return ModelStatistics(
                last_inference=self._last,
                inference_count=sum(rows * each.count for rows, each in runs.items()),
                execution_count=total.count,
                stages=StageTimes(total, self._failed, idle, idle, total, idle),
                batches={
                    rows: BatchStatistics(Duration(each.count), each, Duration(each.count))
                    for rows, each in runs.items()
                },
            )


def step_statistics(steps: Iterable[StepCounts]) -> dict[tuple[str, int], ModelStatistics]:
    """Return the sums of models that may be several steps, by name and version."""
    found: dict[tuple[str, int], ModelStatistics] = {}
    for counts in steps:
        key = counts.card.name, int(counts.card.version)
        found[key] = found.get(key, ModelStatistics()) + counts.statistics()
    return found
