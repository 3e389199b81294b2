"""Load for a while: one call after the other, callers that overlap, or requests at a rate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue

import numpy as np
import numpy.typing as npt

from mqinfer.client.result import InferResult
from mqinfer.protocol.errors import MqinferError
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

    def lap(self, since: int, timings: Iterable[Timings] = (), until: int = 0) -> None:
        """Record a request that started at `since` and ended at `until`, or ends now."""
        self.latencies_ns.append((until or time.perf_counter_ns()) - since)
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


class Overlapping:
    """Sends requests that overlap for a while, each measured until its future is done.

    Args:
        send: Sends a request.
        seconds: After this time no request starts.
        failed: Called with the error of each request that fails, which is not in the drive. What it raises ends this.
    """

    def __init__(
        self, send: Callable[[], Future[InferResult]], seconds: float, failed: Callable[[MqinferError], None]
    ) -> None:
        self._send = send
        self._failed = failed
        self._ended: SimpleQueue[tuple[int, int, Future[InferResult]]] = SimpleQueue()
        self._watch = Stopwatch(seconds)

    def callers(self, count: int) -> Drive:
        """Keep so many requests pending: the end of one starts the next."""
        for _ in range(count):
            self._start(time.perf_counter_ns())
        while count:
            self._settle(None)
            if self._watch.is_over():
                count -= 1
            else:
                self._start(time.perf_counter_ns())
        return self._watch.drive()

    def rate(self, rate: float) -> Drive:
        """Start so many requests a second, whatever becomes of them.

        Each counts from when it was due: one that is sent late, because others hold it up, is not faster for that.
        """
        sent = settled = 0
        while not self._watch.is_over():
            due = self._watch.started + int(sent / rate * 1e9)
            wait_s = min((due - time.perf_counter_ns()) / 1e9, self._watch.seconds)
            if wait_s <= 0:
                self._start(due)
                sent += 1
            else:
                settled += self._settle(wait_s)
        while settled < sent:
            settled += self._settle(None)
        return self._watch.drive()

    def _start(self, since: int) -> None:
        future = self._send()
        future.add_done_callback(lambda done: self._ended.put((since, time.perf_counter_ns(), done)))

    def _settle(self, wait_s: float | None) -> bool:
        """Return whether a request ended within a time."""
        try:
            since, until, future = self._ended.get(timeout=wait_s)
        except Empty:
            return False
        try:
            self._watch.lap(since, [future.result().timings], until)
        except MqinferError as error:
            self._failed(error)
        return True
