"""No path at all: a loop over ONNX Runtime in this process. What any path can reach at most."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from mqinfer.bench.load import Drive, Stopwatch
from mqinfer.bench.workloads import Workload, open_session
from mqinfer.protocol.datatypes import Array

__all__ = ["Direct"]


class Direct:
    """Runs the model in the caller's own thread; ONNX Runtime uses the same threads of its own as everywhere."""

    name = "direct"

    def __init__(self, workload: Workload) -> None:
        self._workload = workload
        self._session: Any = None

    def start(self) -> None:
        """Load the model."""
        self._session = open_session(self._workload.path)
        self.infer()

    def infer(self) -> Mapping[str, Array]:
        """Ask once."""
        (output,) = self._session.run([self._workload.output], self._workload.feeds)
        return {self._workload.output: output}

    def drive(self, callers: int, seconds: float) -> Drive:  # noqa: ARG002 - the contract's
        """Run the model in a loop; one caller, however many are asked for, keeps it busy."""
        run, names, feeds = self._session.run, [self._workload.output], self._workload.feeds
        watch = Stopwatch(seconds)
        while not watch.is_over():
            since = time.perf_counter_ns()
            run(names, feeds)
            watch.lap(since)
        return watch.drive()

    def pids(self) -> Mapping[str, int]:
        """No other process takes part."""
        return {}

    def close(self) -> None:
        """Free the memory."""
        self._session = None
