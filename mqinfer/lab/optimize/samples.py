"""What products are calibrated and judged on: pictures or arrays, with the truth where it is known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mqinfer.images.resize import to_model_input
from mqinfer.lab.profiling import RandomInputs
from mqinfer.models.card import image_contract
from mqinfer.protocol.card import ImageContract, ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec

__all__ = ["Sample", "SampleInputs", "feeds", "random_samples"]


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One input of a model.

    Attributes:
        picture: RGB, uint8 [H,W,3]; None where there are arrays.
        inputs: Arrays by input, each with a batch axis of 1 where the model has one.
        truth: Class numbers, [H,W] of a mask or [] of a classifier; None where it is not known.
    """

    picture: npt.NDArray[np.uint8] | None = None
    inputs: Mapping[str, Array] = field(default_factory=dict)
    truth: npt.NDArray[np.integer] | None = None


def feeds(sample: Sample, inputs: Sequence[TensorSpec], image: ImageContract | None) -> dict[str, Array]:
    """Make a model's inputs of a sample; a picture by the model's own image contract, so that it suits any version.

    Args:
        sample: A picture or arrays.
        inputs: Of the model.
        image: Its contract, complete.

    Raises:
        ConfigError: A picture for a model that takes more than a picture, or arrays that are not the model's.
    """
    if sample.picture is not None:
        if image is None or len(inputs) != 1:
            names = ", ".join(spec.name for spec in inputs)
            raise ConfigError(f"the model takes {names}, not one picture; give arrays: --samples FILE.npz")
        return {image.input: to_model_input(sample.picture, "rgb8", image, inputs[0].datatype)}
    missing = [spec.name for spec in inputs if spec.name not in sample.inputs]
    if missing:
        raise ConfigError(f"samples hold {', '.join(sample.inputs)}; the model also wants {missing[0]!r}")
    return {spec.name: sample.inputs[spec.name] for spec in inputs}


def random_samples(card: ModelCard, count: int, seed: int = 0) -> tuple[Sample, ...]:
    """Make samples of noise: better than none for parity, useless for calibration."""
    rng = np.random.default_rng(seed)
    if card.image is not None and len(card.inputs) == 1:
        sides = (card.image.height or 256, card.image.width or 256, 3)
        return tuple(Sample(rng.integers(0, 256, sides, np.uint8)) for _ in range(count))
    return tuple(Sample(inputs=RandomInputs(seed=seed + n).make(card.inputs, 1)) for n in range(count))


@dataclass(frozen=True, slots=True)
class SampleInputs:
    """Gives a measurement the same sample each time, repeated along the batch axis (an `InputSource`).

    Attributes:
        sample: A picture or arrays.
        image: What the model's configuration says of its image contract.
    """

    sample: Sample
    image: ImageContract | None

    def make(self, specs: Sequence[TensorSpec], batch: int) -> dict[str, Array]:
        """Make every input by name.

        Raises:
            ConfigError: The model can't take such a batch, or such a sample.
        """
        if batch > 1 and any(spec.shape[:1] not in {(-1,), (batch,)} for spec in specs):
            raise ConfigError(f"no batch of {batch}")
        arrays = feeds(self.sample, specs, image_contract(specs, self.image))
        return arrays if batch == 1 else {name: np.repeat(array, batch, axis=0) for name, array in arrays.items()}
