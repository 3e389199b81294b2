"""Runs a model on samples in a separate process, so that its engine's memory and threads end with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mqinfer.lab.model_process import in_process
from mqinfer.lab.optimize.parity import Outputs
from mqinfer.lab.optimize.samples import Sample, feeds
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.datatypes import Array


def run_samples(model: ModelVersion, samples: Sequence[Sample], argmax: Mapping[str, int], folder: Path) -> Outputs:
    """Run a model on samples and return its outputs, memory-mapped.

    Args:
        model: Version to load.
        samples: Samples, one run each.
        argmax: Class axis of each output that is reduced to the best class, so that large logits are not written.
        folder: Existing folder for the outputs; needed as long as they are.

    Raises:
        ModelNotLoadable: As `load_model`.
        ModelFailed: The engine raised, or the process crashed.
    """
    written = in_process(_run, model, samples, argmax, folder)
    return [{name: np.load(path, mmap_mode="r") for name, path in each.items()} for each in written]


def _run(
    model: ModelVersion, samples: Sequence[Sample], argmax: Mapping[str, int], folder: Path
) -> list[dict[str, Path]]:
    loaded = load_model(model, device="cpu")
    written = []
    for number, sample in enumerate(samples):
        outputs = loaded.backend.infer(feeds(sample, loaded.backend.inputs, loaded.card.image))
        written.append(
            {
                name: _write(folder, number, n, _kept(array, argmax.get(name)))
                for n, (name, array) in enumerate(outputs.items())
            }
        )
    loaded.backend.close()
    return written


def _kept(array: Array, axis: int | None) -> Array:
    return array if axis is None else np.asarray(array.argmax(axis), np.uint8)


def _write(folder: Path, number: int, output: int, array: Array) -> Path:
    path = folder / f"{number}-{output}.npy"
    np.save(path, array)
    return path
