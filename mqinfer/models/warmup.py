"""Runs a model before the first request does: engines choose kernels and take memory on their first runs."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np

from mqinfer.models.backend import Backend
from mqinfer.models.postprocess.stage import network_of
from mqinfer.models.repository.config import WarmUpSample
from mqinfer.models.warmup_samples import sample_inputs
from mqinfer.protocol.card import ImageContract, ModelCard
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.errors import ModelNotLoadable, MqinferError
from mqinfer.protocol.types import TensorSpec

__all__ = ["warm_up", "zeros"]

log = logging.getLogger("mqinfer.models")

_OPEN_SIDE = 256
"""Height or width, in pixels, of a picture whose size the model leaves open."""


def warm_up(backend: Backend, card: ModelCard, count: int = 1, samples: Sequence[WarmUpSample] = ()) -> float:
    """Run the model on zeros, `count` times at batch 1 and at the largest batch, and on the samples of its own.

    A model whose shapes are open may rightly refuse the sizes that are tried here, and one that reads strings the empty
    ones; that is logged and no error. Samples must run.

    Returns:
        Seconds that the last run of one row took; 0 where none was run.

    Raises:
        ModelNotLoadable: The model can't run, or does not keep the batch axis that its card states.
        ConfigError: A sample doesn't fit the model.
    """
    network = network_of(backend)
    single = 0.0
    for batch in sorted({1, max(card.max_batch_size, 1)}) if count else ():
        inputs = zeros(card, batch)
        try:
            for _ in range(count):
                started = time.perf_counter()
                _check_batch(card, network.infer(inputs), batch)
                single = time.perf_counter() - started if batch == 1 else single
        except ModelNotLoadable:
            raise
        except MqinferError as error:
            if not _may_refuse_zeros(card):
                raise _not_ready(card, f"warm-up with batch {batch} failed", error) from error
            log.warning("model %s: open shapes or strings, warm-up with zeros left out: %s", card.name, error)
            break
    for sample in samples:
        _run_sample(network, card, sample)
    return single


def _run_sample(network: Backend, card: ModelCard, sample: WarmUpSample) -> None:
    inputs = sample_inputs(card, sample)
    rows = next(iter(inputs.values())).shape[0] if card.max_batch_size else 1
    try:
        for _ in range(max(1, sample.count)):  # Triton: 0 means once
            _check_batch(card, network.infer(inputs), rows)
    except ModelNotLoadable:
        raise
    except MqinferError as error:
        raise _not_ready(card, f"warm-up sample {sample.name!r} failed", error) from error


def _not_ready(card: ModelCard, what: str, error: MqinferError) -> ModelNotLoadable:
    return ModelNotLoadable(f"model {card.name} version {card.version}: {what}: {error}")


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


def _may_refuse_zeros(card: ModelCard) -> bool:
    first = int(card.max_batch_size > 0)
    return any(-1 in spec.shape[first:] or spec.datatype is Datatype.BYTES for spec in card.inputs)


def _check_batch(card: ModelCard, outputs: dict[str, Array], batch: int) -> None:
    if card.max_batch_size < 2:
        return
    for name, array in outputs.items():
        if array.shape[:1] != (batch,):
            raise ModelNotLoadable(
                f"model {card.name} version {card.version}: output {name!r} has the shape {list(array.shape)} for a "
                f"batch of {batch}: requests can't share a run; set max_batch_size = 0 in model.toml"
            )
