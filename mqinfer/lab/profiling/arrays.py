"""Measures the memory of a call with many rows, in a process of its own."""

from __future__ import annotations

from dataclasses import dataclass

from mqinfer.lab.model_process import load
from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.lab.profiling.memory import peak_bytes, reset_peak, resident_bytes
from mqinfer.models.repository import ModelVersion


@dataclass(frozen=True, slots=True)
class CallMemory:
    """Memory of the process that calls a model.

    Attributes:
        before_bytes: Once the model is loaded and has run, without the input.
        peak_bytes: Greatest while it ran, the input and the kept outputs included.
    """

    before_bytes: int
    peak_bytes: int

    @property
    def call_bytes(self) -> int:
        """What the call added: input, outputs and work space."""
        return self.peak_bytes - self.before_bytes


def call_memory(
    model: ModelVersion, engine: str | None, rows: int, batch: int, *, drawn_whole: bool = True
) -> CallMemory:
    """Measure the memory of a call over many rows of random numbers.

    Args:
        model: Version of a repository.
        engine: As of `load`.
        rows: Number of rows.
        batch: Rows of a run.
        drawn_whole: Whether one array holds all rows and all outputs are kept; otherwise both are of a batch.
    """
    backend, source = load(model, engine), RandomInputs()
    backend.infer(source.make(backend.inputs, batch))
    before = resident_bytes()
    reset_peak()
    whole = source.make(backend.inputs, rows) if drawn_whole else {}
    kept = []
    for start in range(0, rows, batch):
        part = {name: array[start : start + batch] for name, array in whole.items()}
        outputs = backend.infer(part or source.make(backend.inputs, batch))
        if drawn_whole:
            kept.append(outputs)
    return CallMemory(before, peak_bytes())
