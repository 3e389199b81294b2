"""Inputs for measurements: seeded random numbers that fit a model's inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec

_INTEGERS = 128
"""Integers are 0 to 127, which fits every datatype; uint8 is 0 to 255, as in a picture."""


class InputSource(Protocol):
    """Source of inputs. It is pickled for another process, so its class must be at module level and hold plain data."""

    def make(self, specs: Sequence[TensorSpec], batch: int) -> dict[str, Array]:
        """Return every input by name, batch axis included.

        Raises:
            ConfigError: The model does not accept the batch size.
        """


@dataclass(frozen=True, slots=True)
class RandomInputs:
    """Random floats (standard normal), integers, booleans and short strings.

    Attributes:
        shapes: Shapes of inputs with dynamic axes, by name, batch axis included (it may be -1). Axes that are still
            dynamic have length 1.
        seed: Seed of the random numbers.
    """

    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    seed: int = 0

    def make(self, specs: Sequence[TensorSpec], batch: int) -> dict[str, Array]:
        """Return every input by name.

        Raises:
            ConfigError: A shape has no input or does not fit it, or the model does not accept the batch size.
        """
        unknown = sorted(self.shapes.keys() - {spec.name for spec in specs})
        if unknown:
            names = ", ".join(spec.name for spec in specs)
            raise ConfigError(f"shape for unknown input {unknown[0]!r}; the model's inputs are {names}")
        rng = np.random.default_rng(self.seed)
        return {spec.name: _random(rng, spec.datatype, self._sizes(spec, batch)) for spec in specs}

    def _sizes(self, spec: TensorSpec, batch: int) -> tuple[int, ...]:
        stated = self.shapes.get(spec.name, spec.shape)
        if len(stated) != len(spec.shape) or any(
            own not in {-1, size} for own, size in zip(spec.shape[1:], stated[1:], strict=True)
        ):
            raise ConfigError(f"shape {list(stated)} does not fit the input {spec.name!r} {list(spec.shape)}")
        if not spec.shape:
            return ()
        first = batch if spec.shape[0] == -1 else spec.shape[0]
        if first != batch:
            raise ConfigError(
                f"input {spec.name!r} has the shape {list(spec.shape)}: a batch of {batch} is not possible"
            )
        return (first, *(1 if size == -1 else size for size in stated[1:]))


def _random(rng: np.random.Generator, datatype: Datatype, sizes: tuple[int, ...]) -> Array:
    dtype = dtype_of(datatype)
    if dtype.kind == "f":
        return rng.standard_normal(sizes, np.float32).astype(dtype)
    if datatype is Datatype.BYTES:
        return np.full(sizes, b"mqinfer", np.object_)
    return rng.integers(0, {Datatype.BOOL: 2, Datatype.UINT8: 256}.get(datatype, _INTEGERS), sizes).astype(dtype)
