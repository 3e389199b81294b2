"""Make probabilities of a model's numbers, for networks that end before their sigmoid or softmax."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.models.repository.output_tables import Activation, Classification
from mqinfer.protocol.datatypes import FLOATS, Array
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec


def probabilities(numbers: npt.NDArray[Any], activation: Activation) -> npt.NDArray[Any]:
    """Return probabilities, of the last axis's numbers where they depend on each other (softmax)."""
    if activation is Activation.NONE:
        return numbers
    with np.errstate(invalid="ignore"):  # infinities less each other are no number, and no error
        if activation is Activation.SIGMOID:
            return 0.5 * (1 + np.tanh(0.5 * numbers))  # 1 / (1 + exp(-x)) without its overflow
        powers = np.exp(numbers - numbers.max(axis=-1, keepdims=True, initial=-np.inf))
        shares: npt.NDArray[Any] = powers / powers.sum(axis=-1, keepdims=True)
    return shares


def floats_named(name: str, outputs: Sequence[TensorSpec], table: str, axes: int | None = None) -> TensorSpec:
    """Return an output of floats by its name.

    Args:
        name: As a table of `model.toml` has it.
        outputs: The model's outputs.
        table: The table's name.
        axes: How many axes the output must have; None for any number.

    Raises:
        ConfigError: There is no such output, or it is of another kind.
    """
    found = next((spec for spec in outputs if spec.name == name), None)
    if found is None or found.datatype not in FLOATS or axes not in {None, len(found.shape)}:
        shown = ", ".join(f"{spec.name} {spec.datatype}{list(spec.shape)}" for spec in outputs)
        raise ConfigError(
            f"model.toml: {table}.output = {name!r}: expected an output of floats{' with four axes' if axes else ''}; "
            f"the outputs are {shown}"
        )
    return found


class Probabilities:
    """A step that makes probabilities of a classifier's logits; all axes but the first are taken as one.

    Args:
        settings: The table `[classification]`.
        outputs: The model's outputs.

    Raises:
        ConfigError: The model has no such output, or it holds no floats.
    """

    def __init__(self, settings: Classification, outputs: Sequence[TensorSpec]) -> None:
        logits = floats_named(settings.output, outputs, "classification")
        self._name, self._activation = settings.output, settings.activation
        self.needs = (settings.output,)
        self.makes = (logits,)

    def __call__(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Make the probabilities of `outputs`."""
        logits = outputs[self._name]
        rows = logits.reshape(len(logits), -1) if logits.ndim > 1 else logits
        return {self._name: probabilities(rows, self._activation).reshape(logits.shape).astype(logits.dtype)}
