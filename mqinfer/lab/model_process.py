"""Functions that load a model, in a process of their own: its engine's memory and threads end with it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from typing import Concatenate, ParamSpec, TypeVar

from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion
from mqinfer.protocol.card import ModelCard
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
