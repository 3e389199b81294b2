"""Samples for calibration and comparison: pictures or arrays, with the truth if it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mqinfer.images.placement import to_model_input
from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.models.card import image_contract
from mqinfer.protocol.card import ColourOrder, ImageContract, ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One input of a model.

    Attributes:
        picture: RGB, uint8 [H,W,3]; None if the sample consists of arrays.
        inputs: Arrays by input name, with a batch axis of 1 if the model has one.
        truth: Class numbers, [H,W] for a mask or [] for a classifier; None if unknown.
    """

    picture: npt.NDArray[np.uint8] | None = None
    inputs: Mapping[str, Array] = field(default_factory=dict)
    truth: npt.NDArray[np.integer] | None = None


def feeds(sample: Sample, inputs: Sequence[TensorSpec], image: ImageContract | None) -> dict[str, Array]:
    """Return a model's inputs for a sample; a picture is converted by the model's image contract.

    Args:
        sample: A picture or arrays.
        inputs: Inputs of the model.
        image: Complete image contract of the model.

    Raises:
        ConfigError: The model does not take exactly one picture, or an array is missing.
    """
    if sample.picture is not None:
        if image is None or image.colour is ColourOrder.DEPTH or len(inputs) != 1:
            names = ", ".join(spec.name for spec in inputs)
            raise ConfigError(f"the model takes {names}, not one colour picture; pass arrays with --samples FILE.npz")
        return {image.input: to_model_input(sample.picture, "rgb8", image, inputs[0].datatype)}
    missing = [spec.name for spec in inputs if spec.name not in sample.inputs]
    if missing:
        raise ConfigError(f"samples hold {', '.join(sample.inputs)}; the model also needs {missing[0]!r}")
    return {spec.name: sample.inputs[spec.name] for spec in inputs}


def random_samples(card: ModelCard, count: int) -> tuple[Sample, ...]:
    """Return samples of noise, which serve for comparison and not for calibration."""
    rng = np.random.default_rng(0)
    if card.image is not None and card.image.colour is not ColourOrder.DEPTH and len(card.inputs) == 1:
        sides = (card.image.height or 256, card.image.width or 256, 3)
        return tuple(Sample(rng.integers(0, 256, sides, np.uint8)) for _ in range(count))
    return tuple(Sample(inputs=RandomInputs(seed=n).make(card.inputs, 1)) for n in range(count))


@dataclass(frozen=True, slots=True)
class SampleInputs:
    """An `InputSource` that repeats one sample along the batch axis.

    Attributes:
        sample: A picture or arrays.
        image: Image contract in the model's configuration.
    """

    sample: Sample
    image: ImageContract | None

    def make(self, specs: Sequence[TensorSpec], batch: int) -> dict[str, Array]:
        """Return every input by name.

        Raises:
            ConfigError: The model does not accept the batch size or the sample.
        """
        if batch > 1 and any(spec.shape[:1] not in {(-1,), (batch,)} for spec in specs):
            raise ConfigError(f"the model does not accept a batch of {batch}")
        arrays = feeds(self.sample, specs, image_contract(specs, self.image))
        return arrays if batch == 1 else {name: np.repeat(array, batch, axis=0) for name, array in arrays.items()}
