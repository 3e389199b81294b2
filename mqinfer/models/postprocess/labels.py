"""Compare the number of labels with the number of classes that a model has, where its file says it."""

from __future__ import annotations

from collections.abc import Sequence

from mqinfer.models.repository.config import ModelConfig
from mqinfer.models.repository.output_tables import Segmentation
from mqinfer.protocol.card import Layout
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import TensorSpec

_FLOATS = (Datatype.FP16, Datatype.FP32, Datatype.FP64)


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
    is_meant = spec.name in labelled if labelled else is_only and spec.datatype in _FLOATS
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
