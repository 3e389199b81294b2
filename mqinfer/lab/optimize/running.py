"""Runs a model on samples in a separate process, so that its engine's memory and threads end with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from mqinfer.lab.optimize.parity import Outputs
from mqinfer.lab.optimize.samples import Sample, feeds
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelFailed

__all__ = ["card_of", "run_samples"]

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def card_of(model: ModelVersion) -> ModelCard:
    """Load a model in a separate process and return the card that a worker would publish.

    Raises:
        ModelNotLoadable: As `load_model`.
        ModelFailed: The process crashed.
    """
    return _in_process(_card, model)


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
    written = _in_process(_run, model, samples, argmax, folder)
    return [{name: np.load(path, mmap_mode="r") for name, path in each.items()} for each in written]


def _in_process(
    work: Callable[Concatenate[ModelVersion, _Args], _Result],
    model: ModelVersion,
    *args: _Args.args,
    **kwargs: _Args.kwargs,
) -> _Result:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # a fork would share TensorFlow's locks
        try:
            return pool.submit(work, model, *args, **kwargs).result()
        except BrokenProcessPool as error:
            raise ModelFailed(f"{model.path}: the process crashed; check the free memory") from error


def _card(model: ModelVersion) -> ModelCard:
    loaded = load_model(model, device="cpu")
    loaded.backend.close()
    return loaded.card


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
