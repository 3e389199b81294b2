"""Back ends for requests of another shape than the model's: Triton's `reshape`, and batches that are filled up.

`reshape`: `dims` of an input or output is what requests have, `reshape` what the model has; the batch axis stays in
front where there is one. An open axis (-1) of the one stands for the open axis of the other in the same order
(https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md#reshape).

Filled batches: a model file may fix the batch at N rows. If `max_batch_size` is that N, the first axis is a batch
axis and requests of fewer rows share a run. If it is not configured, a request brings all N rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np
from msgspec.structs import replace

from mqinfer.models.backend import Backend
from mqinfer.models.repository.config import ModelConfig, TensorConfig
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, ModelFailed
from mqinfer.protocol.types import TensorSpec


@dataclass(frozen=True, slots=True)
class _Change:
    """A change from one shape to another, batch axes included."""

    old: tuple[int, ...]
    new: tuple[int, ...]

    def __call__(self, array: Array) -> Array:
        sizes = iter([size for size, configured in zip(array.shape, self.old, strict=True) if configured == -1])
        return array.reshape([next(sizes) if size == -1 else size for size in self.new])


class AdaptedBackend:
    """A back end whose requests have other shapes than its model.

    Args:
        backend: The model.
        inputs: What requests have.
        outputs: What they get.
        infer: Runs the model for a request, as `Backend.infer` does.
    """

    def __init__(
        self,
        backend: Backend,
        inputs: tuple[TensorSpec, ...],
        outputs: tuple[TensorSpec, ...],
        infer: Callable[..., dict[str, Array]],
    ) -> None:
        self.platform, self.engine, self.device = backend.platform, backend.engine, backend.device
        self.precision, self.concurrency = backend.precision, backend.concurrency
        self.inputs, self.outputs, self.infer, self.close = inputs, outputs, infer, backend.close


def reshaped(backend: Backend, config: ModelConfig) -> Backend:
    """Return a back end with its configuration's `reshape`; the same one if there is none.

    A run raises ModelFailed also where an output does not fit the configured shape.

    Raises:
        ConfigError: `dims` and `reshape` differ in elements or open axes.
    """
    axis = (-1,) if config.max_batch_size else ()
    before = {each.name: _change(each, axis, of_input=True) for each in config.input if each.reshape is not None}
    after = {each.name: _change(each, axis, of_input=False) for each in config.output if each.reshape is not None}
    if not before and not after:
        return backend

    def infer(inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        feeds = {name: before[name](each) if name in before else each for name, each in inputs.items()}
        results = backend.infer(feeds, outputs)
        try:
            return {name: after[name](each) if name in after else each for name, each in results.items()}
        except ValueError as error:
            raise ModelFailed(f"an output does not fit the configured reshape: {error}") from error

    sent = _specs(backend.inputs, {name: change.old for name, change in before.items()})
    return AdaptedBackend(
        backend, sent, _specs(backend.outputs, {name: each.new for name, each in after.items()}), infer
    )


def _change(tensor: TensorConfig, axis: tuple[int, ...], *, of_input: bool) -> _Change:
    sent, model = tensor.dims, tensor.reshape
    if sent is None or model is None or sent.count(-1) != model.count(-1) or prod(sent) != prod(model):
        raise ConfigError(
            f"{tensor.name}: reshape to {list(model or ())}: expected dims of as many elements and open axes, "
            f"not {None if sent is None else list(sent)}"
        )
    return _Change(axis + sent, axis + model) if of_input else _Change(axis + model, axis + sent)


def _specs(specs: Sequence[TensorSpec], shapes: Mapping[str, tuple[int, ...]]) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec(spec.name, spec.datatype, shapes.get(spec.name, spec.shape)) for spec in specs)


def with_filled_batches(network: Backend, configured: int | None) -> Backend:
    """Return a back end that fills batches up, if `max_batch_size` is the batch fixed in the file; else `network`.

    A batch is filled up with copies of its last row; a run raises ModelFailed also where there are no rows, or more
    than the model takes.
    """
    firsts = {spec.shape[:1] for spec in (*network.inputs, *network.outputs)}
    if configured is None or configured < 2 or not network.inputs or firsts != {(configured,)}:
        return network
    most = configured

    def infer(inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        rows = len(next(iter(inputs.values())))
        if not 1 <= rows <= most:
            raise ModelFailed(f"a batch of {rows} rows; the model's file fixes it at {most}")
        if rows == most:
            return network.infer(inputs, outputs)
        filled = {name: _filled(array, most) for name, array in inputs.items()}
        return {name: array[:rows] for name, array in network.infer(filled, outputs).items()}

    return AdaptedBackend(network, tuple(map(_opened, network.inputs)), tuple(map(_opened, network.outputs)), infer)


def _opened(spec: TensorSpec) -> TensorSpec:
    return replace(spec, shape=(-1, *spec.shape[1:]))


def _filled(array: Array, rows: int) -> Array:
    return np.concatenate([array, np.repeat(array[-1:], rows - len(array), axis=0)])
