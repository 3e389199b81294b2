"""The files beside a model that its configuration names: labels of classes, and data to warm up with."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from mqinfer.models.postprocess.palette import class_colour
from mqinfer.models.repository.config import ModelConfig, WarmUp, WarmUpInput, WarmUpSample
from mqinfer.models.repository.containment import named_file
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import ModelNotLoadable

__all__ = ["with_named_files"]

log = logging.getLogger("mqinfer.models")

_LARGEST_LABELS = 1 << 20  # bytes: class names travel in the card
_WARM_UP_FOLDER = "warmup"


def with_named_files(config: ModelConfig, folder: Path) -> ModelConfig:
    """Read the label file into the classes, and find the warm-up files, both as Triton places them.

    Args:
        config: As read. Classes that it states itself are kept.
        folder: The model's folder.

    Raises:
        ModelNotLoadable: A file is not there, is a link, or is no text of a reasonable size.
    """
    samples = tuple(_found(sample, folder / _WARM_UP_FOLDER) for sample in config.model_warmup.samples)
    return replace(
        config,
        classes=config.classes or _labels(config, folder),
        model_warmup=WarmUp(config.model_warmup.count, samples),
    )


def _labels(config: ModelConfig, folder: Path) -> tuple[ClassInfo, ...]:
    names = list(dict.fromkeys(tensor.label_filename for tensor in config.output if tensor.label_filename))
    if len(names) > 1:
        log.warning("%s: several label files (%s): the card has the first", folder, ", ".join(names))
    if not names:
        return ()
    path = named_file(folder, names[0], "label_filename")
    if path.stat().st_size > _LARGEST_LABELS:
        raise ModelNotLoadable(f"{path}: longer than {_LARGEST_LABELS} bytes; a label file has one class a line")
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ModelNotLoadable(f"{path}: label_filename names it, and it is no text: {error}") from error
    return tuple(ClassInfo(line.strip(), class_colour(number)) for number, line in enumerate(lines))


def _found(sample: WarmUpSample, folder: Path) -> WarmUpSample:
    inputs: Mapping[str, WarmUpInput] = {
        name: replace(each, input_data_file=named_file(folder, str(each.input_data_file), "input_data_file"))
        if each.input_data_file
        else each
        for name, each in sample.inputs.items()
    }
    return replace(sample, inputs=inputs)
