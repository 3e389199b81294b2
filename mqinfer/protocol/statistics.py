"""What a served model has done: the Open Inference Protocol's statistics, as Triton's statistics extension words them.

https://github.com/triton-inference-server/server/blob/main/docs/protocol/extension_statistics.md
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["BatchStatistics", "Duration", "ModelStatistics"]


@dataclass(frozen=True, slots=True)
class Duration:
    """How often something happened and how long it took in all, in nanoseconds."""

    count: int = 0
    ns: int = 0

    def __add__(self, other: Duration) -> Duration:
        return Duration(self.count + other.count, self.ns + other.ns)

    def to_record(self) -> dict[str, int]:
        """Make what stands in the JSON."""
        return {"count": self.count, "ns": self.ns}


@dataclass(frozen=True, slots=True)
class BatchStatistics:
    """The runs of one batch size: decoding and pre-processing of its requests, the engine, splitting the outputs."""

    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()

    def __add__(self, other: BatchStatistics) -> BatchStatistics:
        return BatchStatistics(
            self.compute_input + other.compute_input,
            self.compute_infer + other.compute_infer,
            self.compute_output + other.compute_output,
        )


@dataclass(frozen=True, slots=True)
class ModelStatistics:
    """One version of a model, since its processes started; those of several processes can be added.

    Attributes:
        last_inference: Of the last result, in milliseconds since the epoch; 0 where there was none.
        inference_count: Rows that were inferred: a batch of 8 counts 8.
        execution_count: Runs of the model: a batch counts 1.
        success: Requests that got a result, from receipt to reply.
        fail: Requests that got none.
        queue: Of the successful ones: waiting.
        compute_input: Decoding and pre-processing.
        compute_infer: The engine; each request of a batch counts all of the batch's time.
        compute_output: Splitting, post-processing and encoding.
        batches: By rows.
        memory_bytes: Resident memory of the processes.
    """

    last_inference: int = 0
    inference_count: int = 0
    execution_count: int = 0
    success: Duration = Duration()
    fail: Duration = Duration()
    queue: Duration = Duration()
    compute_input: Duration = Duration()
    compute_infer: Duration = Duration()
    compute_output: Duration = Duration()
    batches: Mapping[int, BatchStatistics] = field(default_factory=dict)
    memory_bytes: int = 0

    def __add__(self, other: ModelStatistics) -> ModelStatistics:
        nothing = BatchStatistics()
        sizes = sorted(self.batches.keys() | other.batches.keys())
        return ModelStatistics(
            max(self.last_inference, other.last_inference),
            self.inference_count + other.inference_count,
            self.execution_count + other.execution_count,
            self.success + other.success,
            self.fail + other.fail,
            self.queue + other.queue,
            self.compute_input + other.compute_input,
            self.compute_infer + other.compute_infer,
            self.compute_output + other.compute_output,
            {size: self.batches.get(size, nothing) + other.batches.get(size, nothing) for size in sizes},
            self.memory_bytes + other.memory_bytes,
        )

    def to_record(self, name: str, version: str) -> dict[str, Any]:
        """Make an entry of `model_stats`."""
        stages = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
        return {
            "name": name,
            "version": version,
            "last_inference": self.last_inference,
            "inference_count": self.inference_count,
            "execution_count": self.execution_count,
            "inference_stats": {stage: getattr(self, stage).to_record() for stage in stages},
            "batch_stats": [
                {"batch_size": size} | {stage: getattr(batch, stage).to_record() for stage in stages[3:]}
                for size, batch in sorted(self.batches.items())
            ],
            "memory_usage": [{"type": "CPU", "id": 0, "byte_size": self.memory_bytes}],
        }
