"""Runs a model before the first request does: engines choose kernels and take memory on their first runs."""

from __future__ import annotations

import logging

import numpy as np

from mqinfer.models.backend import Backend
from mqinfer.models.postprocess.stage import network_of
from mqinfer.protocol.card import ImageContract, ModelCard
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.errors import ModelNotLoadable, MqinferError
from mqinfer.protocol.types import TensorSpec

__all__ = ["warm_up", "zeros"]

log = logging.getLogger("mqinfer.models")

_OPEN_SIDE = 256
"""Height or width, in pixels, of a picture whose size the model leaves open."""


def warm_up(backend: Backend, card: ModelCard, count: int = 1) -> None:
    """Run the model on zeros, `count` times at batch 1 and at the largest batch.

    A model whose shapes are open may rightly refuse the sizes that are tried here; that is logged and no error.

    Raises:
        ModelNotLoadable: The model can't run, or does not keep the batch axis that its card states.
    """
    network = network_of(backend)
    for batch in sorted({1, max(card.max_batch_size, 1)}):
        inputs = zeros(card, batch)
        for _ in range(count):
            try:
                outputs = network.infer(inputs)
            except MqinferError as error:
                if not _has_open_axes(card):
                    raise ModelNotLoadable(
                        f"model {card.name} version {card.version}: warm-up with batch {batch} failed: {error}"
                    ) from error
                log.warning("model %s: open shapes, warm-up with zeros left out: %s", card.name, error)
                return
            _check_batch(card, outputs, batch)


def zeros(card: ModelCard, batch: int) -> dict[str, Array]:
    """Make inputs of zeros (empty strings for BYTES); open axes beyond the batch are 1, a picture's sides 256."""
    return {spec.name: _zeros(spec, _sizes(spec, card, batch)) for spec in card.inputs}


def _sizes(spec: TensorSpec, card: ModelCard, batch: int) -> tuple[int, ...]:
    side = _OPEN_SIDE if _is_image(spec, card.image) else 1
    sizes = [side if size == -1 else size for size in spec.shape]
    if sizes and spec.shape[0] == -1:
        sizes[0] = batch
    return tuple(sizes)


def _is_image(spec: TensorSpec, image: ImageContract | None) -> bool:
    return image is not None and image.input == spec.name


def _zeros(spec: TensorSpec, sizes: tuple[int, ...]) -> Array:
    if spec.datatype is Datatype.BYTES:
        return np.full(sizes, b"", np.object_)
    return np.zeros(sizes, dtype_of(spec.datatype))


def _has_open_axes(card: ModelCard) -> bool:
    return any(-1 in spec.shape[int(card.max_batch_size > 0) :] for spec in card.inputs)


def _check_batch(card: ModelCard, outputs: dict[str, Array], batch: int) -> None:
    if card.max_batch_size < 2:
        return
    for name, array in outputs.items():
        if array.shape[:1] != (batch,):
            raise ModelNotLoadable(
                f"model {card.name} version {card.version}: output {name!r} has the shape {list(array.shape)} for a "
                f"batch of {batch}: requests can't share a run; set max_batch_size = 0 in model.toml"
            )
