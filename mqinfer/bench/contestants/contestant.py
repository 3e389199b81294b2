"""The contract of a contestant: one way from a caller to one ONNX model and back."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.types import Timings

__all__ = ["Contestant", "Drive", "Stopwatch"]


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


class Contestant(Protocol):
    """One way to the model. `start`, then any number of drives, then `close`."""

    @property
    def name(self) -> str:
        """As in the tables."""

    def start(self) -> None:
        """Start the processes and connect; returns when the model answers.

        Raises:
            MqinferError: It does not start.
        """

    def infer(self) -> Mapping[str, Array]:
        """Ask once, for the check that all contestants give the same outputs."""

    def drive(self, callers: int, seconds: float) -> Drive:
        """Send requests: each caller sends the next one once it has the result of its last.

        Args:
            callers: How many at a time.
            seconds: After this time no request starts; the last results are waited for.
        """

    def pids(self) -> Mapping[str, int]:
        """Processes beside this one that take part, by role (`server`, `broker`)."""

    def close(self) -> None:
        """Stop the processes."""


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
