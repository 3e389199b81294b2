"""What an edge states of its streams: counters that are kept anyway, and from them the frames a second."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from mqinfer.edge_agent.model_run import ModelRun
from mqinfer.protocol.states import StreamState

_LEAST_S = 1.0
"""A rate is counted over at least this time: states also come at each connection, one right behind the other."""


class EdgeStreams:
    """Reads the streams of all models of an edge. Thread-safe."""

    def __init__(self, runs: Sequence[ModelRun], clock: Callable[[], float] = time.monotonic) -> None:
        """Start without a stream.

        Args:
            runs: The runs of its models, once there are any.
            clock: In seconds.
        """
        self._runs = runs
        self._clock = clock
        self._lock = threading.Lock()
        self._since = clock()
        self._read: dict[tuple[str, str], int] = {}
        self._rates: dict[tuple[str, str], float] = {}

    def read(self) -> list[StreamState]:
        """Return the state of each stream of each model."""
        found = [each for run in list(self._runs) for each in run.streams()]
        with self._lock:
            now = self._clock()
            seconds = now - self._since
            if seconds >= _LEAST_S:
                read = {(state.model, counts.source): counts.frames_read for counts, state in found}
                self._rates = {key: max(0, count - self._read.get(key, 0)) / seconds for key, count in read.items()}
                self._since, self._read = now, read
            return [
                replace(
                    state,
                    source=_sendable(counts.source),
                    rate=round(self._rates.get((state.model, counts.source), 0.0), 2),
                )
                for counts, state in found
            ]


def _sendable(source: str) -> str:
    """Return a stream's name as a state can hold it: names of files may have bytes that are no text."""
    return source.encode(errors="replace").decode()
