"""The inputs of a warm-up sample: zeros, random numbers, or what lies in a file; Triton's `model_warmup.inputs`.

One row is made, and repeated for the batch, as Triton does. Where `dims` are as many as the model has axes, the batch
axis is one of them: so it is in Triton without `max_batch_size`.
"""

from __future__ import annotations

from math import prod
from pathlib import Path

import numpy as np

from mqinfer.models.repository.config import WarmUpInput, WarmUpSample
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of, nbytes
from mqinfer.protocol.errors import BadTensor, ConfigError, ModelNotLoadable
from mqinfer.protocol.raw_form import from_raw
from mqinfer.protocol.types import TensorSpec

__all__ = ["sample_inputs"]

_SEED = 1
"""Every start runs on the same random numbers."""


def sample_inputs(card: ModelCard, sample: WarmUpSample) -> dict[str, Array]:
    """Make the inputs of one run.

    Raises:
        ConfigError: The sample doesn't fit the model: a name, datatype, shape or batch size.
        ModelNotLoadable: A file can't be read, or doesn't hold what is said of it.
    """
    where = f"model_warmup {sample.name!r}" if sample.name else "model_warmup"
    specs = {spec.name: spec for spec in card.inputs}
    if specs.keys() != sample.inputs.keys():
        raise ConfigError(f"{where}: names the inputs {sorted(sample.inputs)}, the model has {sorted(specs)}")
    if sample.batch_size > max(1, card.max_batch_size):
        raise ConfigError(f"{where}: batch_size = {sample.batch_size}: the model takes {max(1, card.max_batch_size)}")
    inputs: dict[str, Array] = {}
    for name, each in sample.inputs.items():
        batched = card.max_batch_size and len(each.dims) < len(specs[name].shape)
        rows = (sample.batch_size,) if batched else ()
        _check(specs[name], each, (*rows, *each.dims), f"{where}: inputs.{name}")
        inputs[name] = _repeat(_row(name, each), rows)
    return inputs


def _check(spec: TensorSpec, each: WarmUpInput, shape: tuple[int, ...], where: str) -> None:
    if each.data_type is not spec.datatype:
        raise ConfigError(f"{where}: data_type {each.data_type}, the model has {spec.datatype}")
    fits = len(shape) == len(spec.shape) and all(
        size in {-1, given} for size, given in zip(spec.shape, shape, strict=True)
    )
    if not fits:
        raise ConfigError(
            f"{where}: dims {list(each.dims)} make the shape {list(shape)}, the model has {list(spec.shape)} "
            "(dims leave the batch axis out where there is one)"
        )


def _repeat(row: Array, rows: tuple[int, ...]) -> Array:
    return np.repeat(row[np.newaxis], rows[0], axis=0) if rows else row


def _row(name: str, each: WarmUpInput) -> Array:
    if each.input_data_file is not None:
        return _from_file(name, each, each.input_data_file)
    if each.data_type is Datatype.BYTES:
        return np.full(each.dims, b"", np.object_)  # of random strings Triton knows nothing either
    return _random(each.data_type, each.dims) if each.random_data else np.zeros(each.dims, dtype_of(each.data_type))


def _random(datatype: Datatype, shape: tuple[int, ...]) -> Array:
    """Floats from 0 to 1 (random bits would be NaNs too); whole numbers over all that their type holds."""
    random, dtype = np.random.default_rng(_SEED), dtype_of(datatype)
    if dtype.kind == "f":
        return random.random(shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    bounds = np.iinfo(dtype.name)
    return random.integers(bounds.min, bounds.max, shape, dtype.name, endpoint=True).astype(dtype)


def _from_file(name: str, each: WarmUpInput, path: Path) -> Array:
    datatype = each.data_type
    size = -1 if datatype is Datatype.BYTES else nbytes(datatype, each.dims)  # Triton, too, leaves what follows alone
    try:
        with path.open("rb") as file:
            return from_raw(name, datatype, each.dims, file.read(size))
    except OSError as error:
        raise ModelNotLoadable(f"{path}: can't be read: {error}") from error
    except BadTensor as error:
        raise ModelNotLoadable(f"{path}: no {prod(each.dims)} elements of {datatype}: {error}") from error
