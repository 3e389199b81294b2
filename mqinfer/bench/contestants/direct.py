"""No path at all: a loop over ONNX Runtime in this process. What any path can reach at most."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mqinfer.bench.workloads import Workload, open_session
from mqinfer.lab.load import Drive, repeat
from mqinfer.protocol.datatypes import Array


class Direct:
    """Runs the model in the caller's own thread; ONNX Runtime uses the same threads of its own as everywhere."""

    name = "direct"

    def __init__(self, workload: Workload) -> None:
        self._session: Any = open_session(workload.path)
        self._names, self._feeds = [workload.output], workload.feeds
        self._run()

    def infer(self) -> Mapping[str, Array]:
        """Ask once."""
        return dict(zip(self._names, self._session.run(self._names, self._feeds), strict=True))

    def drive(self, callers: int, seconds: float) -> Drive:  # noqa: ARG002 - the contract's
        """Run the model in a loop; one caller, however many are asked for, keeps it busy."""
        return repeat(self._run, seconds)

    def pids(self) -> Mapping[str, int]:
        """No other process takes part."""
        return {}

    def close(self) -> None:
        """Free the memory."""
        self._session = None

    def _run(self) -> None:
        self._session.run(self._names, self._feeds)
