"""Functions that load a model, in a process of their own: its engine's memory and threads end with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Concatenate, ParamSpec, TypeVar

import numpy as np

from mqinfer.models.backend import Backend
from mqinfer.models.engines import choose_loader
from mqinfer.models.loading import load_model, load_options
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelFailed

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


def card_of(model: ModelVersion) -> ModelCard:
    """Load a model in a separate process and return the card that a worker would publish.

    Raises:
        ModelNotLoadable: As `load_model`.
        ModelFailed: The process crashed.
    """
    return in_process(_card, model)


def in_process(
    work: Callable[Concatenate[ModelVersion, _Args], _Result],
    model: ModelVersion,
    *args: _Args.args,
    **kwargs: _Args.kwargs,
) -> _Result:
    """Return what a function of a model returns in a process of its own; it and its arguments are pickled.

    Raises:
        ModelFailed: The process crashed.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:  # a fork would share TensorFlow's locks
        try:
            return pool.submit(work, model, *args, **kwargs).result()
        except BrokenProcessPool as error:
            raise ModelFailed(f"{model.path}: the process crashed; check the free memory") from error


def _card(model: ModelVersion) -> ModelCard:
    loaded = load_model(model, device="cpu")
    loaded.backend.close()
    return loaded.card


def load(model: ModelVersion, engine: str | None = None, device: str = "cpu") -> Backend:
    """Load a model in this process.

    Args:
        model: Version of a repository.
        engine: A name in `engines.BACKENDS`; None for the default engine.
        device: As of `load_options`.

    Raises:
        ModelNotLoadable: The engine can't load it.
    """
    return choose_loader(model.path, engine)(model.path, load_options(model.config, device))


def run_rows(
    model: ModelVersion, engine: str | None, inputs: Mapping[str, Array], names: tuple[str, ...], batch: int = 256
) -> dict[str, Array]:
    """Return some outputs of all rows.

    Args:
        model: Version of a repository.
        engine: As of `load`.
        inputs: Arrays by name, the rows along the first axis.
        names: Outputs to return.
        batch: Rows of a run.
    """
    backend = load(model, engine)
    count = len(next(iter(inputs.values())))
    runs = [
        backend.infer({name: array[start : start + batch] for name, array in inputs.items()})
        for start in range(0, count, batch)
    ]
    return {name: np.concatenate([run[name] for run in runs]) for name in names}
