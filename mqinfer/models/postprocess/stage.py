"""Add post-processing to a back end: the result is a back end whose outputs are the finished ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from mqinfer.models.backend import Backend
from mqinfer.models.postprocess.boxes import KeptBoxes
from mqinfer.models.postprocess.masks import ClassMask, is_mask
from mqinfer.models.postprocess.probabilities import Probabilities
from mqinfer.models.repository.config import ModelConfig, PictureConfig
from mqinfer.protocol.card import ImageContract
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec


class Step(Protocol):
    """A computation of outputs from outputs, for one request. It is stateless: any thread may use it."""

    @property
    def needs(self) -> tuple[str, ...]:
        """The model's outputs that it takes; they are not returned."""

    @property
    def makes(self) -> tuple[TensorSpec, ...]:
        """The outputs that it returns in their place."""

    def __call__(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Return the outputs that it makes."""


class Postprocessed:
    """A `Backend` that runs a network and a step of post-processing.

    A worker runs the two separately: `network` for a whole batch, and `finish` for each request on another thread,
    while the network runs the next batch.

    Attributes:
        network: The back end without post-processing.
        outputs: The network's outputs that the step does not take, and those that it makes.
    """

    def __init__(self, network: Backend, step: Step) -> None:
        self.network = network
        self._step = step
        self._made = {spec.name for spec in step.makes}
        left = tuple(spec for spec in network.outputs if spec.name not in step.needs)
        if clash := sorted(self._made & {spec.name for spec in left}):
            raise ConfigError(
                f"model.toml: the model has an output {clash[0]!r} beside the one that post-processing makes"
            )
        self.outputs = left + step.makes
        self.platform, self.engine, self.device = network.platform, network.engine, network.device
        self.precision, self.concurrency, self.inputs = network.precision, network.concurrency, network.inputs

    def needed(self, outputs: Sequence[str]) -> tuple[str, ...]:
        """Return the names of the network's outputs that the requested ones are made of; empty (all) for empty."""
        if self._made.isdisjoint(outputs):
            return tuple(outputs)
        return (*self._step.needs, *(name for name in outputs if name not in self._made))

    def finish(self, found: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Return the requested outputs, made of the network's, in the order in which they are requested.

        Raises:
            MqinferError: They can't be made.
        """
        if outputs and self._made.isdisjoint(outputs):
            return dict(found)
        left = {name: array for name, array in found.items() if name not in self._step.needs}
        every = left | self._step(found)
        return {name: every[name] for name in outputs} if outputs else every

    def infer(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> dict[str, Array]:
        """Run the network and finish its outputs.

        Raises:
            MqinferError: The engine raised, or the outputs can't be made.
        """
        return self.finish(self.network.infer(inputs, self.needed(outputs)), outputs)

    def close(self) -> None:
        """Close the network."""
        self.network.close()


def with_postprocessing(network: Backend, config: ModelConfig, image: ImageContract | None = None) -> Backend:
    """Return a back end with the configured post-processing; `network` if there is none, or if its graph does it.

    Args:
        network: The back end without it.
        config: The model's configuration.
        image: How a picture becomes the model's input; None if it takes none.

    Raises:
        ConfigError: The configuration does not fit the model's outputs, or has several tables.
        MissingExtra: OpenCV is needed and not installed.
    """
    own = config.pictures
    tables = {"segmentation": own.segmentation, "classification": own.classification, "detection": own.detection}
    if len(given := [f"[{name}]" for name, table in tables.items() if table]) > 1:
        raise ConfigError(f"model.toml: expected only one of {' and '.join(given)}")
    step = _step(network, own, (image.width, image.height) if image else (None, None))
    return Postprocessed(network, step) if step else network


def _step(network: Backend, own: PictureConfig, picture: tuple[int | None, int | None]) -> Step | None:
    if own.segmentation and not is_mask(own.segmentation, network.outputs):
        return ClassMask(own.segmentation, network.outputs)
    if own.classification:
        return Probabilities(own.classification, network.outputs)
    return KeptBoxes(own.detection, network.outputs, len(own.classes), picture) if own.detection else None


def network_of(backend: Backend) -> Backend:
    """Return the back end without its post-processing."""
    return backend.network if isinstance(backend, Postprocessed) else backend
