"""Load for a while: one call after the other, or a stopwatch for callers that overlap."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mqinfer.protocol.types import Timings


@dataclass(frozen=True, slots=True)
class Drive:
    """The results of sending requests for a while.

    Attributes:
        seconds: From the first request's start to the last one's end.
        latencies_ns: Of each request, from the caller's call until it has the array.
        timings: Where each request's time went, for contestants that report it.
    """

    seconds: float
    latencies_ns: npt.NDArray[np.int64]
    timings: tuple[Timings, ...] = ()

    @property
    def rate(self) -> float:
        """Requests a second."""
        return len(self.latencies_ns) / self.seconds


@dataclass(slots=True)
class Stopwatch:
    """Collects the requests of one drive."""

    seconds: float
    started: int = field(default_factory=time.perf_counter_ns)
    latencies_ns: list[int] = field(default_factory=list)
    timings: list[Timings] = field(default_factory=list)

    def is_over(self) -> bool:
        """Whether no request may start any more."""
        return time.perf_counter_ns() - self.started >= self.seconds * 1e9

    def lap(self, since: int, timings: Iterable[Timings] = ()) -> None:
        """Record a request that started at `since` and ends now."""
        self.latencies_ns.append(time.perf_counter_ns() - since)
        self.timings.extend(timings)

    def drive(self) -> Drive:
        """Stop the watch."""
        seconds = (time.perf_counter_ns() - self.started) / 1e9
        return Drive(seconds, np.array(self.latencies_ns, np.int64), tuple(self.timings))


def repeat(work: Callable[[], Timings | None], seconds: float, least: int = 1) -> Drive:
    """Call a function again and again, each call measured from the end of the one before.

    Args:
        work: Returns where its time went, where it knows.
        seconds: After this time no call starts.
        least: Smallest number of calls, however long they take.
    """
    latencies: list[int] = []
    timings: list[Timings] = []
    started = now = time.perf_counter_ns()
    end = started + seconds * 1e9
    while now < end or len(latencies) < least:
        found = work()
        since, now = now, time.perf_counter_ns()
        latencies.append(now - since)
        if found is not None:
            timings.append(found)
    return Drive((now - started) / 1e9, np.array(latencies, np.int64), tuple(timings))
