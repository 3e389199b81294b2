"""Runs many rows of arrays through a model in a process of its own: all of its outputs, or the memory of the call."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.lab.profiling.memory import peak_bytes, reset_peak, resident_bytes
from mqinfer.models.backend import Backend
from mqinfer.models.engines import choose_loader
from mqinfer.models.loading import load_options
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.datatypes import Array


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


def run_rows(
    model: ModelVersion, engine: str | None, inputs: Mapping[str, Array], names: tuple[str, ...], batch: int = 256
) -> dict[str, Array]:
    """Return some outputs of all rows.

    Args:
        model: Version of a repository.
        engine: A name in `engines.BACKENDS`; None for the default engine.
        inputs: Arrays by name, the rows along the first axis.
        names: Outputs to return.
        batch: Rows of a run.
    """
    backend = _load(model, engine)
    count = len(next(iter(inputs.values())))
    runs = [
        backend.infer({name: array[start : start + batch] for name, array in inputs.items()})
        for start in range(0, count, batch)
    ]
    return {name: np.concatenate([run[name] for run in runs]) for name in names}


def call_memory(
    model: ModelVersion, engine: str | None, rows: int, batch: int, *, drawn_whole: bool = True
) -> CallMemory:
    """Measure the memory of a call over many rows of random numbers.

    Args:
        model: Version of a repository.
        engine: As of `run_rows`.
        rows: Number of rows.
        batch: Rows of a run.
        drawn_whole: Whether one array holds all rows and all outputs are kept; otherwise both are of a batch.
    """
    backend, source = _load(model, engine), RandomInputs()
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


def _load(model: ModelVersion, engine: str | None) -> Backend:
    return choose_loader(model.path, engine)(model.path, load_options(model.config, "cpu"))
