"""Warm a model up before its first request: engines choose kernels and allocate memory on their first runs.

The inputs are zeros, and the samples of Triton's `model_warmup`: zeros, random numbers, or the content of a file. One
row is made and repeated for the batch, as in Triton. Where `dims` are as many as the model has axes, the batch axis is
one of them: so it is in Triton without `max_batch_size`.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np

from mqinfer.models.backend import Backend, batch_sizes
from mqinfer.models.postprocess.stage import network_of
from mqinfer.models.repository.config import WarmUpInput, WarmUpSample
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of, from_raw, nbytes
from mqinfer.protocol.errors import BadTensor, ConfigError, ModelNotLoadable, MqinferError
from mqinfer.protocol.types import TensorSpec

_PREPARING_RUNS = 3
"""Runs at least with each size that a back end prepares: PyTorch compiles in the second what it saw in the first."""
_OPEN_SIDE = 256
"""Height and width, in pixels, of a picture whose size the model leaves open."""
_WAY_OUT = (
    "; if the model can't run on zeros, use a sample of its own in model.toml ([[model_warmup]] with inputs), "
    "or leave the warm-up out ([model_warmup] with count = 0)"
)
_SEED = 1
"""Seed of the random inputs: every start uses the same."""


@dataclass(frozen=True, slots=True)
class WarmedUp:
    """What the warm-up found.

    Attributes:
        run_s: Duration of the last run of one row on zeros, in seconds; 0 if there was none.
        untried: Why no run has succeeded; empty if one has, or if the configuration wants none.
    """

    run_s: float = 0.0
    untried: str = ""


def warm_up(backend: Backend, card: ModelCard, count: int = 1, samples: Sequence[WarmUpSample] = ()) -> WarmedUp:
    """Run the model on zeros and on the configured samples.

    It runs `count` times on zeros with 1 row, with the largest batch, and with each size that the back end prepares. A
    model with open shapes may refuse the sizes that are tried here, and one that takes strings the empty ones; that is
    no error, but unless a sample runs nothing shows that a request can succeed. Samples must run.

    Raises:
        ModelNotLoadable: The model can't run, or its outputs lack the batch axis of its card.
        ConfigError: A sample doesn't fit the model.
    """
    network = network_of(backend)
    most = max(card.max_batch_size, 1)
    prepared = batch_sizes(network)
    sizes = sorted({1, most, *(size for size in prepared if size < most)})
    times = max(count, _PREPARING_RUNS) if prepared else count
    refused, took = "", {1: 0.0}
    try:
        for batch in sizes if count else ():
            _run_zeros(network, card, batch, times, took)
    except _ZerosRefused as error:
        refused = (
            f"no request was tried: the model takes open shapes or strings, and refused zeros ({error}); add a "
            "sample that it takes to model.toml, [[model_warmup]]"
        )
    for sample in samples:
        _run_sample(network, card, sample)
    return WarmedUp(took[1], "" if samples or took[1] else refused)


class _ZerosRefused(Exception):
    """A model that may refuse zeros has done so."""


def _run_zeros(network: Backend, card: ModelCard, batch: int, count: int, took: dict[int, float]) -> None:
    """Run rows of zeros, and record by batch what the last run that succeeded took, in seconds."""
    try:
        inputs = zeros(card, batch)
        for _ in range(count):
            started = time.perf_counter()
            _check_batch(card, network.infer(inputs), batch)
            took[batch] = time.perf_counter() - started
    except ModelNotLoadable:
        raise
    except (MemoryError, ValueError) as error:  # the latter: more than can be addressed
        raise _not_ready(card, f"no memory for the warm-up with batch {batch}", error) from error
    except MqinferError as error:
        if _may_refuse_zeros(card):
            raise _ZerosRefused(error) from error
        raise _not_ready(card, f"warm-up on zeros with batch {batch} failed", error, _WAY_OUT) from error


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


def _not_ready(card: ModelCard, what: str, error: Exception, way_out: str = "") -> ModelNotLoadable:
    return ModelNotLoadable(f"model {card.name} version {card.version}: {what}: {error}{way_out}")


def zeros(card: ModelCard, batch: int) -> dict[str, Array]:
    """Make inputs of zeros (empty strings for BYTES); open axes but the batch are 1, those of a picture 256."""
    return {spec.name: _zeros(spec, _sizes(spec, card, batch)) for spec in card.inputs}


def _sizes(spec: TensorSpec, card: ModelCard, batch: int) -> tuple[int, ...]:
    side = _OPEN_SIDE if any(image.input == spec.name for image in card.pictures) else 1
    sizes = [side if size == -1 else size for size in spec.shape]
    if sizes and spec.shape[0] == -1:
        sizes[0] = batch
    return tuple(sizes)


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


def sample_inputs(card: ModelCard, sample: WarmUpSample) -> dict[str, Array]:
    """Make the inputs of one run.

    Raises:
        ConfigError: The sample doesn't fit the model: a name, datatype, shape or batch size.
        ModelNotLoadable: A file can't be read, or is too short for its `dims`.
    """
    where = f"model_warmup {sample.name!r}" if sample.name else "model_warmup"
    specs = {spec.name: spec for spec in card.inputs}
    if specs.keys() != sample.inputs.keys():
        raise ConfigError(f"{where}: has the inputs {sorted(sample.inputs)}, the model has {sorted(specs)}")
    if sample.batch_size > max(1, card.max_batch_size):
        raise ConfigError(f"{where}: batch_size = {sample.batch_size}: expected at most {max(1, card.max_batch_size)}")
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
        return np.full(each.dims, b"", np.object_)  # Triton has no random strings either
    return _random(each.data_type, each.dims) if each.random_data else np.zeros(each.dims, dtype_of(each.data_type))


def _random(datatype: Datatype, shape: tuple[int, ...]) -> Array:
    """Return floats from 0 to 1 (random bits would include NaNs), or integers over the whole range of their type."""
    random, dtype = np.random.default_rng(_SEED), dtype_of(datatype)
    if dtype.kind == "f":
        return random.random(shape).astype(dtype)
    if dtype.kind == "b":
        return random.integers(0, 2, shape).astype(dtype)
    bounds = np.iinfo(dtype.name)
    return random.integers(bounds.min, bounds.max, shape, dtype.name, endpoint=True).astype(dtype)


def _from_file(name: str, each: WarmUpInput, path: Path) -> Array:
    datatype = each.data_type
    size = -1 if datatype is Datatype.BYTES else nbytes(datatype, each.dims)  # Triton, too, ignores what follows
    try:
        with path.open("rb") as file:
            return from_raw(name, datatype, each.dims, file.read(size))
    except OSError as error:
        raise ModelNotLoadable(f"{path}: can't be read: {error}") from error
    except BadTensor as error:
        raise ModelNotLoadable(f"{path}: expected {prod(each.dims)} elements of {datatype}: {error}") from error
