"""Where the time of requests went, counted where results arrive: by powers of two, which costs one addition a time."""

from __future__ import annotations

from mqinfer.metrics.samples import Samples
from mqinfer.protocol.types import Timings

_BITS = 65
_STAGES = ("total", "client_queue", "transmission", "server_queue", "compute_input", "compute_infer", "compute_output")


class Times:
    """Times of one model's successful requests. One thread adds; any may read."""

    __slots__ = ("_counts", "_totals")

    def __init__(self) -> None:
        self._counts = [[0] * _BITS for _ in _STAGES]
        self._totals = [0] * len(_STAGES)

    def add(self, timings: Timings) -> None:
        """Count the times of a request."""
        found = (
            timings.total,
            timings.client_queue,
            timings.transmission,
            timings.server_queue,
            timings.decode + timings.preprocess,
            timings.inference,
            timings.postprocess + timings.encode,
        )
        totals = self._totals
        for index, nanoseconds in enumerate(found):
            self._counts[index][nanoseconds.bit_length()] += 1
            totals[index] += nanoseconds

    def add_to(self, samples: Samples, prefix: str, model: str) -> None:
        """Add the histograms of a scrape."""
        for stage, counts, total in zip(_STAGES, self._counts, self._totals, strict=True):
            if stage == "total":
                text = "Time of successful requests, from the gateway to the worker and back."
                samples.durations(f"{prefix}_request_duration", text, counts, total, model=model)
            else:
                text = "Time of successful requests by stage."
                samples.durations(f"{prefix}_stage_duration", text, counts, total, model=model, stage=stage)
