"""Add post-processing to a back end: the result is a back end whose outputs are the finished ones.

The number of labels is compared with the number of classes that the model has, where its file says it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from mqinfer.answers.keypoints import COCO_NAMES
from mqinfer.models.backend import Backend
from mqinfer.models.postprocess.boxes import KeptBoxes
from mqinfer.models.postprocess.probabilities import Probabilities, floats_named
from mqinfer.models.repository.config import ModelConfig, PictureConfig
from mqinfer.models.repository.output_tables import Segmentation
from mqinfer.protocol.card import ImageContract, Layout
from mqinfer.protocol.datatypes import FLOATS, Array, Datatype
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec


def check_labels(outputs: Sequence[TensorSpec], config: ModelConfig) -> None:
    """Raise if the labels are not as many as the classes of a classifier or of the logits of a segmentation network.

    A classifier's output is the one of `[classification]` or of `label_filename`, or the only one, of floats. The
    labels of `[detection]` are checked with its rows, and those of a mask can't be: it does not say how many there are.

    Args:
        outputs: The network's, before post-processing.
        config: The model's configuration.

    Raises:
        ConfigError: The message has both numbers.
    """
    if not config.pictures.classes or config.pictures.detection:
        return
    for spec in outputs:
        count = _count(spec, config, is_only=len(outputs) == 1)
        labels = len(config.pictures.classes)
        if count is not None and count != labels:
            raise ConfigError(
                f"model.toml: {labels} label{'s' * (labels != 1)} (from [[classes]] or label_filename), and output "
                f"{spec.name!r} {list(spec.shape)} has {count} classes: expected one label for each class"
                f"{_offset(count - labels)}"
            )


def _count(spec: TensorSpec, config: ModelConfig, *, is_only: bool) -> int | None:
    """Return how many classes an output has; None if it has none, or does not say."""
    if config.pictures.segmentation:
        return _count_of_logits(spec, config.pictures.segmentation)
    labelled = _labelled(config)
    is_meant = spec.name in labelled if labelled else is_only and spec.datatype in FLOATS
    sizes = [size for size in spec.shape[1:] or spec.shape if size != 1]
    return sizes[0] if is_meant and len(sizes) == 1 and sizes != [-1] else None


def _labelled(config: ModelConfig) -> set[str]:
    if config.pictures.classification:
        return {config.pictures.classification.output}
    return {each.name for each in config.output if each.label_filename}


def _count_of_logits(spec: TensorSpec, segmentation: Segmentation) -> int | None:
    if spec.name != segmentation.output or len(spec.shape) != 4:
        return None
    size = spec.shape[1 if segmentation.layout is Layout.NCHW else -1]
    return None if size == -1 else size


def _offset(missing: int) -> str:
    if abs(missing) != 1:
        return ""
    change = "put a label for it first" if missing == 1 else "remove its label"
    return (
        "; some networks have a background class before the others (ImageNet's 1001 classes in place of 1000): "
        f"if that is the difference, {change}"
    )


_MOST_CLASSES = 256
_MASK_AXES = 3


def is_mask(settings: Segmentation, outputs: Sequence[TensorSpec]) -> bool:
    """Return whether the output is a mask already, as in a version of the model with the argmax in its graph."""
    return any(
        spec.name == settings.output and spec.datatype is Datatype.UINT8 and len(spec.shape) == _MASK_AXES
        for spec in outputs
    )


class ClassMask:
    """A step that makes a mask of logits: the class of the largest one, of equal ones the first (NumPy's argmax).

    It is for models that can't be changed: it reads all logits once more (measured: a quarter of a second network's
    time at 2048x1024 and 19 classes). `mqinfer models optimize` puts the argmax into the graph, and then the logits are
    never written.

    Args:
        settings: The table `[segmentation]`.
        outputs: The model's outputs.

    Raises:
        ConfigError: The model has no such output, or it is no logits of at most 256 classes.
    """

    def __init__(self, settings: Segmentation, outputs: Sequence[TensorSpec]) -> None:
        logits = floats_named(settings.output, outputs, "segmentation", axes=4)
        self._name, self._axis = settings.output, 1 if settings.layout is Layout.NCHW else -1
        if logits.shape[self._axis] > _MOST_CLASSES:
            raise ConfigError(
                f"model.toml: segmentation.layout = {settings.layout}: means {logits.shape[self._axis]} classes; "
                f"a mask holds at most {_MOST_CLASSES}"
            )
        shape = tuple(size for axis, size in enumerate(logits.shape) if axis != self._axis % 4)
        self.needs = (settings.output,)
        self.makes = (TensorSpec(settings.output, Datatype.UINT8, shape),)

    def __call__(self, outputs: Mapping[str, Array]) -> dict[str, Array]:
        """Make the mask of `outputs`."""
        return {self._name: np.argmax(outputs[self._name], axis=self._axis).astype(np.uint8)}


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


def with_postprocessing(
    network: Backend, config: ModelConfig, image: ImageContract | None = None, *, strict: bool = False
) -> Backend:
    """Return a back end with the configured post-processing; `network` if there is none, or if its graph does it.

    Args:
        network: The back end without it.
        config: The model's configuration.
        image: How a picture becomes the model's input; None if it takes none.
        strict: Whether a likely candidate of a detector that is lost is a failure.

    Raises:
        ConfigError: The configuration does not fit the model's outputs, or has several tables.
        MissingExtra: OpenCV is needed and not installed.
    """
    own = config.pictures
    tables = {"segmentation": own.segmentation, "classification": own.classification, "detection": own.detection}
    if len(given := [f"[{name}]" for name, table in tables.items() if table]) > 1:
        raise ConfigError(f"model.toml: expected only one of {' and '.join(given)}")
    step = _step(network, own, (image.width, image.height) if image else (None, None), strict=strict)
    return Postprocessed(network, step) if step else network


def _step(network: Backend, own: PictureConfig, picture: tuple[int | None, int | None], *, strict: bool) -> Step | None:
    if own.segmentation and not is_mask(own.segmentation, network.outputs):
        return ClassMask(own.segmentation, network.outputs)
    if own.classification:
        return Probabilities(own.classification, network.outputs)
    points = max((len(each.keypoints) for each in own.classes), default=0) or len(COCO_NAMES)
    if own.detection is None:
        return None
    return KeptBoxes(own.detection, network.outputs, len(own.classes), picture, points, strict=strict)


def network_of(backend: Backend) -> Backend:
    """Return the back end without its post-processing."""
    return backend.network if isinstance(backend, Postprocessed) else backend
