"""The metrics of inference, from the statistics that the processes of a worker keep."""

from __future__ import annotations

from collections.abc import Mapping

from mqinfer.metrics.samples import Samples
from mqinfer.protocol.control import ModelStatistics
from mqinfer.protocol.shadow import is_of_shadow, read_shadows
from mqinfer.protocol.types import Outcome, Timings

_STAGES = {
    "success": ("request", "Time of successful requests, from receipt to reply."),
    "queue": ("queue", "Time that successful requests waited."),
    "compute_input": ("compute_input", "Time of decoding and pre-processing of successful requests."),
    "compute_infer": ("compute_infer", "Time in the engine; each request of a batch counts that of the batch."),
    "compute_output": ("compute_output", "Time of post-processing and encoding of successful requests."),
}
_Labels = Mapping[str, str]
_FAILED = tuple(outcome for outcome in Outcome if outcome is not Outcome.OK)
_DROPPED, _SKIPPED = "dropped_", "skipped_"
"""What precedes a reason in the name of a counter; what was cancelled before it ran is skipped, and gets no reply."""
_LARGEST_BATCH = 10
"""Power of two of the last bound of batch sizes."""
_BITS = 65
_PARTS = ("call", "client_queue", "transmission", "server_queue", "compute_input", "compute_infer", "compute_output")


def add_inference(samples: Samples, models: Mapping[tuple[str, str], ModelStatistics], *, triton: bool = False) -> None:
    """Add requests by outcome and their time split, batches, and what workers have accepted and dropped.

    Args:
        samples: Receives them.
        models: Statistics by model and version; their `counters` hold replies by outcome, and `failed_…` by error code
            where these are known.
        triton: Whether to add the same under the names of Triton Inference Server.
    """
    for (model, version), found in models.items():
        for add in (_add_requests, _add_batches, _add_load, _add_shadows, *((add_triton,) if triton else ())):
            add(samples, found, {"model": model, "version": version})


def _add_requests(samples: Samples, found: ModelStatistics, labels: _Labels) -> None:
    text, count = "Requests that got a result.", found.counters.get(Outcome.OK, 0)
    samples.count("inference_request_success", text, count, **labels)
    for outcome in _FAILED:
        count = _failed(found, outcome)
        samples.count("inference_request_failure", "Requests without a result.", count, **labels, reason=outcome)
    for stage, (name, text) in _STAGES.items():
        counts = found.histograms.get(stage)
        if counts:
            samples.durations(f"inference_{name}_duration", text, counts, getattr(found.stages, stage).ns, **labels)


def _failed(found: ModelStatistics, outcome: Outcome) -> int:
    return found.counters.get(outcome, 0) + found.counters.get(f"{_SKIPPED}{outcome}", 0)


def _add_batches(samples: Samples, found: ModelStatistics, labels: _Labels) -> None:
    rows = found.inference_count
    samples.count("inference_count", "Rows that the model inferred: a batch of 8 counts 8.", rows, **labels)
    samples.count("inference_exec_count", "Runs: a batch counts 1.", found.execution_count, **labels)
    runs = {size: batch.compute_infer.count for size, batch in found.batches.items()}
    bounds = {
        2**power: sum(count for size, count in runs.items() if size <= 2**power) for power in range(_LARGEST_BATCH + 1)
    }
    samples.histogram("inference_batch_rows", "Rows of a run.", bounds, found.execution_count, rows, **labels)


def _add_load(samples: Samples, found: ModelStatistics, labels: _Labels) -> None:
    samples.gauge("inference_pending_requests", "Requests accepted and not answered.", found.depth, **labels)
    samples.gauge("inference_capacity_requests", "Requests accepted at a time.", found.capacity, **labels)
    oldest = found.oldest_ns / 1e9
    samples.gauge("inference_oldest_request_seconds", "Age of the oldest request that waits.", oldest, **labels)
    samples.gauge("worker_resident_memory_bytes", "Memory of the processes.", found.memory_bytes, **labels)
    for what, count in found.counters.items():
        if what.startswith(_DROPPED):
            reason = what.removeprefix(_DROPPED)
            samples.count("inference_dropped", "Messages that were dropped.", count, **labels, reason=reason)
        elif what.removeprefix(_SKIPPED) not in set(Outcome) and not is_of_shadow(what):
            samples.count("inference_events", "What else a worker counts.", count, **labels, event=what)


def _add_shadows(samples: Samples, found: ModelStatistics, labels: _Labels) -> None:
    """Add what became of the copies that shadow versions got of this version's requests."""
    for shadow, counts in read_shadows(found.counters).items():
        own = {**labels, "shadow": shadow}
        outcomes = {"agreed": counts.agreed, "differed": counts.differed, **counts.failed}
        for outcome, count in outcomes.items():
            text = "Copies of requests that a shadow version answered or failed."
            samples.count("shadow_requests", text, count, **own, outcome=outcome)
        for reason, count in counts.dropped.items():
            samples.count("shadow_dropped", "Copies that were dropped.", count, **own, reason=reason)
        for of, ns in (("shadow", counts.own_ns), ("beside", counts.beside_ns)):
            text = "Time of the answers that were compared, from receipt to reply, of either version."
            samples.count("shadow_answer_seconds", text, ns / 1e9, **own, of=of)


def add_triton(samples: Samples, found: ModelStatistics, labels: _Labels) -> None:
    """Add the figures of a version of a model under Triton's names; failures without a known reason are OTHER."""
    for name, (text, value) in _triton(found).items():
        samples.foreign(f"nv_inference_{name}", text, value, **labels)
    failed = dict.fromkeys(("REJECTED", "CANCELED", "BACKEND", "OTHER"), 0)
    for outcome in _FAILED:
        failed[_REASONS.get(outcome, "OTHER")] += _failed(found, outcome)
    failed["OTHER"] += max(0, found.stages.fail.count - sum(failed.values()))
    for reason, count in failed.items():
        text = "Number of failed inference requests, all batch sizes"
        samples.foreign("nv_inference_request_failure", text, count, **labels, reason=reason)


_REASONS = {Outcome.REJECTED: "REJECTED", Outcome.CANCELLED: "CANCELED", Outcome.ERROR: "BACKEND"}


def _triton(found: ModelStatistics) -> dict[str, tuple[str, int]]:
    """Return help and value by Triton's name, without `nv_inference_`."""
    durations = {
        f"{'request' if stage == 'success' else stage}_duration_us": getattr(found.stages, stage).ns // 1000
        for stage in _STAGES
    }
    rows, runs = found.inference_count, found.execution_count
    return {
        "request_success": ("Number of successful inference requests, all batch sizes", found.stages.success.count),
        "count": ("Number of inferences performed (does not include cached requests)", rows),
        "exec_count": ("Number of model executions performed (does not include cached requests)", runs),
        "pending_request_count": ("Instantaneous number of pending requests awaiting execution", found.depth),
        **{name: (f"Cumulative inference {name}, in microseconds", value) for name, value in durations.items()},
    }


class Times:
    """Times of one model's successful calls and their requests, by powers of two, which costs one addition a time.

    One thread adds; any may read.
    """

    __slots__ = ("_counts", "_totals")

    def __init__(self) -> None:
        self._counts = [[0] * _BITS for _ in _PARTS]
        self._totals = [0] * len(_PARTS)

    def add(self, timings: Timings) -> None:
        """Count the times of a request, of which a call may have several."""
        found = (
            timings.client_queue,
            timings.transmission,
            timings.server_queue,
            timings.decode + timings.preprocess,
            timings.inference,
            timings.postprocess + timings.encode,
        )
        totals = self._totals
        for index, nanoseconds in enumerate(found, 1):
            self._counts[index][nanoseconds.bit_length()] += 1
            totals[index] += nanoseconds

    def add_call(self, seconds: float) -> None:
        """Count how long a call took."""
        nanoseconds = round(seconds * 1e9)
        self._counts[0][nanoseconds.bit_length()] += 1
        self._totals[0] += nanoseconds

    def add_to(self, samples: Samples, model: str) -> None:
        """Add the histograms of a scrape."""
        for stage, counts, total in zip(_PARTS, self._counts, self._totals, strict=True):
            if stage == "call":
                text = "Time of successful calls, from the gateway to the workers and back."
                samples.durations("gateway_request_duration", text, counts, total, model=model)
            else:
                text = "Time of successful requests by stage."
                samples.durations("gateway_stage_duration", text, counts, total, model=model, stage=stage)
