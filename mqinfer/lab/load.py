"""Load for a while: one call after the other, callers that overlap, or requests at a rate."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
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


def repeat(work: Callable[[], object], seconds: float, least: int = 1) -> Drive:
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
    return Drive((now - started) / 1e9, np.array(latencies, np.int64))


def call_times(work: Callable[[], object], calls: int) -> npt.NDArray[np.float64]:
    """Return the seconds of so many calls of a function, after one that is not measured."""
    work()
    return repeat(work, 0.0, calls).latencies_ns / 1e9


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
        self._seconds = seconds
        self._started = time.perf_counter_ns()
        self._latencies_ns: list[int] = []
        self._timings: list[Timings] = []

    def callers(self, count: int) -> Drive:
        """Keep so many requests pending: the end of one starts the next."""
        for _ in range(count):
            self._start(time.perf_counter_ns())
        while count:
            self._settle(None)
            if self._is_over():
                count -= 1
            else:
                self._start(time.perf_counter_ns())
        return self._drive()

    def rate(self, rate: float) -> Drive:
        """Start so many requests a second, whatever becomes of them.

        Each counts from when it was due: one that is sent late, because others hold it up, is not faster for that.
        """
        sent = settled = 0
        while not self._is_over():
            due = self._started + int(sent / rate * 1e9)
            wait_s = min((due - time.perf_counter_ns()) / 1e9, self._seconds)
            if wait_s <= 0:
                self._start(due)
                sent += 1
            else:
                settled += self._settle(wait_s)
        while settled < sent:
            settled += self._settle(None)
        return self._drive()

    def _is_over(self) -> bool:
        return time.perf_counter_ns() - self._started >= self._seconds * 1e9

    def _drive(self) -> Drive:
        seconds = (time.perf_counter_ns() - self._started) / 1e9
        return Drive(seconds, np.array(self._latencies_ns, np.int64), tuple(self._timings))

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
            self._timings.append(future.result().timings)
            self._latencies_ns.append(until - since)
        except MqinferError as error:
            self._failed(error)
        return True
