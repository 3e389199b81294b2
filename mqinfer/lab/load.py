"""Calls of a function, one after the other, each with its time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls of a while.

    Attributes:
        seconds: From the first one's start to the last one's end.
        latencies_ns: Of each call.
    """

    seconds: float
    latencies_ns: npt.NDArray[np.int64]

    @property
    def rate(self) -> float:
        """Calls a second."""
        return len(self.latencies_ns) / self.seconds


def repeat(work: Callable[[], object], seconds: float, least: int = 1) -> Calls:
    """Call a function again and again, each call measured from the end of the one before.

    Args:
        work: The function.
        seconds: After this time no call starts.
        least: Smallest number of calls, however long they take.
    """
    latencies: list[int] = []
    started = now = time.perf_counter_ns()
    end = started + seconds * 1e9
    while now < end or len(latencies) < least:
        work()
        since, now = now, time.perf_counter_ns()
        latencies.append(now - since)
    return Calls((now - started) / 1e9, np.array(latencies, np.int64))


def call_times(work: Callable[[], object], calls: int) -> npt.NDArray[np.float64]:
    """Return the seconds of so many calls of a function, after one that is not measured."""
    work()
    return repeat(work, 0.0, calls).latencies_ns / 1e9
