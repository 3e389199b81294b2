"""What an edge tells operators: the frames that wait, what became of the others, and where their time went."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from mqinfer.client.requester import Requester
from mqinfer.edge_agent.model_run import ModelRun
from mqinfer.edge_agent.reporting.report import Reading
from mqinfer.edge_agent.reporting.statistics import Snapshot
from mqinfer.logs import encodable
from mqinfer.metrics.client import add_client
from mqinfer.metrics.samples import Samples
from mqinfer.protocol.states import PendingRequests, StreamState

_LEAST_S = 1.0
"""A rate is counted over at least this time: states also come at each connection, one right behind the other."""


class EdgeStreams:
    """Reads the streams of all models of an edge. Thread-safe.

    Args:
        runs: The runs of its models, once there are any.
        clock: In seconds.
    """

    def __init__(self, runs: Sequence[ModelRun], clock: Callable[[], float] = time.monotonic) -> None:
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
                    source=encodable(counts.source),
                    rate=round(self._rates.get((state.model, counts.source), 0.0), 2),
                )
                for counts, state in found
            ]


def pending_frames(requester: Requester, runs: Sequence[ModelRun]) -> list[PendingRequests]:
    """Return what waits for each model: the frames that were read and have no outcome, those in spools included."""
    in_flight = {each.model: each.in_flight for each in requester.pending()}
    found = []
    for run in runs:
        model, (count, oldest_s) = run.settings.options.model, run.waiting()
        sent = min(count, in_flight.get(model, 0))
        if count:
            found.append(PendingRequests(model, count - sent, sent, round(oldest_s * 1e3)))
    return found


def add_edge(requester: Requester, runs: Sequence[ModelRun], samples: Samples) -> None:
    """Add the metrics of an edge: of its connection, and of the runs of its models, once there are any."""
    add_client(samples, requester)
    for run in list(runs):
        model = run.name
        count, oldest_s = run.waiting()
        samples.gauge("edge_pending_frames", "Frames that were read and have no outcome.", count, model=model)
        text = "Age of the oldest of these frames."
        samples.gauge("edge_oldest_frame_seconds", text, oldest_s, model=model)
        samples.gauge("edge_spool_frames", "Frames in the spool.", run.spooled, model=model)
        _add_frames(samples, model, run.statistics.snapshot())
        _add_durations(samples, model, run)
    if runs:  # all models of the edge share it
        _add_reading(samples, runs[0].reading)


def _add_frames(samples: Samples, model: str, found: Snapshot) -> None:
    for stream in found.streams:
        labels = {"model": model, "stream": stream.source}
        samples.count("edge_frames_read", "Frames that were read from the source.", stream.frames_read, **labels)
        for outcome, count in stream.outcomes.items():
            samples.count("edge_frames", "Frames by outcome.", count, **labels, outcome=outcome)
        samples.count("edge_retries", "Attempts beyond each request's first.", stream.retries, **labels)
        samples.count("edge_raw_bytes", "Size of the pixels of finished frames.", stream.bytes_raw, **labels)
        samples.count("edge_sent_bytes", "Size of the messages of finished frames.", stream.bytes_sent, **labels)
    for failure in found.failures:
        samples.count("edge_failures", "Frames that failed.", failure.count, model=model, code=failure.code)


def _add_reading(samples: Samples, found: Reading) -> None:
    for (source, why), count in (found.missed or {}).items():
        text = "Frames that were left out before any request."
        samples.count("edge_frames_missed", text, count, stream=source, reason=why)
    if found.collected is None:
        return
    for why, count in found.collected.kept.items():
        text = "Frames that were kept on this machine, by why they matter: one may for several reasons."
        samples.count("edge_frames_collected", text, count, reason=why)
    for drop, count in found.collected.dropped.items():
        samples.count("edge_collect_dropped", "Frames that matter and were not kept.", count, reason=drop)


def _add_durations(samples: Samples, model: str, run: ModelRun) -> None:
    for stage, histogram in run.statistics.durations().items():
        if not histogram.count:
            continue
        counts, total = histogram.lengths(), histogram.total
        if stage == "total":
            text = "Time of frames from submission to result."
            samples.durations("edge_frame_duration", text, counts, total, model=model)
        else:
            samples.durations("edge_stage_duration", "Time by stage.", counts, total, model=model, stage=stage)
