"""Runs a model on samples in a process of its own: its engine's memory and threads end with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from mqinfer.lab.optimize.parity import Answers
from mqinfer.lab.optimize.samples import Sample, feeds
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelFailed

__all__ = ["answers", "card_of"]

_Given = ParamSpec("_Given")
_Done = TypeVar("_Done")


def card_of(model: ModelVersion) -> ModelCard:
    """Load a model elsewhere, and give the card that a worker would publish of it.

    Raises:
        ModelNotLoadable: As `load_model`.
        ModelFailed: Its process died.
    """
    return _elsewhere(_card, model)


def answers(model: ModelVersion, samples: Sequence[Sample], argmax: Mapping[str, int], folder: Path) -> Answers:
    """Run a model on samples.

    Args:
        model: To load.
        samples: One run each.
        argmax: Outputs of which only the number of the best class along an axis is kept: large logits stay where
            they are.
        folder: Exists, and holds the answers as long as they are needed.

    Raises:
        ModelNotLoadable: As `load_model`.
        ModelFailed: The engine raised, or its process died.
    """
    written = _elsewhere(_answer, model, samples, argmax, folder)
    return [{name: np.load(path, mmap_mode="r") for name, path in each.items()} for each in written]


def _elsewhere(
    work: Callable[Concatenate[ModelVersion, _Given], _Done],
    model: ModelVersion,
    *given: _Given.args,
    **named: _Given.kwargs,
) -> _Done:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # a fork would share TensorFlow's locks
        try:
            return pool.submit(work, model, *given, **named).result()
        except BrokenProcessPool as error:
            raise ModelFailed(f"{model.path}: its process died; is there memory enough?") from error


def _card(model: ModelVersion) -> ModelCard:
    loaded = load_model(model, device="cpu")
    loaded.backend.close()
    return loaded.card


def _answer(
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
