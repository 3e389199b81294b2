"""Read a model's configuration: `config.pbtxt`, `model.toml`, a version's own `model.toml`, and the files they name.

The files are layers: a key of a later file replaces the whole value of the same key of an earlier one. So a repository
made for Triton is read as it is, mqinfer's own keys (`[image]`, `[[classes]]`) stand in a `model.toml` beside it, and a
version may differ from the others. Both forms have the same keys and pass the same checks.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from pathlib import Path

from mqinfer.logs import log_once
from mqinfer.models.repository.config import ModelConfig, PictureConfig, WarmUp, WarmUpInput, WarmUpSample
from mqinfer.models.repository.config_keys import DESCRIPTION, Layer, class_colour
from mqinfer.models.repository.files import named_file
from mqinfer.models.repository.tables import Place, read_toml
from mqinfer.models.repository.triton_text import read_triton_text
from mqinfer.protocol.card import ClassInfo, ColourOrder, ImageContract, Layout, Resize
from mqinfer.protocol.errors import ConfigError, ModelNotLoadable

log = logging.getLogger("mqinfer.models")

TRITON_FILE = "config.pbtxt"
CONFIG_FILE = "model.toml"
CONFIG_FILES = (TRITON_FILE, CONFIG_FILE)
"""In the order of their layers."""

_LARGEST_LABELS = 1 << 20  # bytes: class names travel in the card
_MOST_INSTANCES = 1024  # processes
_WARM_UP_FOLDER = "warmup"


def read_layer(path: Path) -> Layer:
    """Read one file: Triton's text format if it is called `config.pbtxt`, otherwise TOML.

    Args:
        path: The file; if it does not exist the layer is empty.

    Raises:
        ConfigError: The message has the file, the key, its value and what is expected.
        MissingExtra: A `config.pbtxt` needs tritonclient, which is not installed.
    """
    if not path.exists():
        return {}
    if path.name == TRITON_FILE:
        place = Place(path, names_checked=True)
        layer: Layer = DESCRIPTION(read_triton_text(place), place)
        place.warn_of_unused()
    else:
        layer = read_toml(path, DESCRIPTION)
    _check_image(layer, path)
    return layer


def combine(layers: Iterable[Layer]) -> ModelConfig:
    """Return the configuration of all layers; a later one replaces the keys of earlier ones.

    Raises:
        ConfigError: It asks for more instances than a server starts.
    """
    whole: dict[str, object] = {}
    for layer in layers:
        whole |= layer
    pictures = {each.name: whole.pop(each.name) for each in fields(PictureConfig) if each.name in whole}
    own = PictureConfig(**pictures)  # type: ignore[arg-type] # each value was converted by its check
    config = ModelConfig(**whole, pictures=own)  # type: ignore[arg-type] # so was each of these
    instances = sum(group.count * max(1, len(group.gpus)) for group in config.instance_group)
    if instances > _MOST_INSTANCES:
        raise ConfigError(f"instance_group: {instances} instances; expected at most {_MOST_INSTANCES}")
    return config if own.image else replace(config, pictures=replace(own, image=_image_by_format(config)))


def _image_by_format(config: ModelConfig) -> ImageContract | None:
    """Return an image contract from Triton's `format`, if one input has it and its channels determine the colour."""
    pictures = [each for each in config.input if each.format and each.dims and len(each.dims) >= 3]
    if len(pictures) != 1 or pictures[0].format is None or pictures[0].dims is None:
        return None
    channels = pictures[0].dims[-1 if pictures[0].format is Layout.NHWC else -3]
    colours = {1: ColourOrder.MONO, 3: ColourOrder.RGB}
    if channels not in colours:
        return None
    return ImageContract(pictures[0].name, colour=colours[channels], layout=pictures[0].format)


def _check_image(layer: Layer, path: Path) -> None:
    found = layer.get("images") or (layer.get("image"),)
    for image in found if isinstance(found, tuple) else ():
        if isinstance(image, ImageContract):
            _check_contract(image, path)


def _check_contract(image: ImageContract, path: Path) -> None:
    for key, values in (("mean", image.mean), ("std", image.std)):
        if len(values) not in {1, image.channels}:
            raise ConfigError(f"{path}: image.{key} = {list(values)}: expected one number or {image.channels}")
    if image.fill != ImageContract("").fill and image.resize is not Resize.LETTERBOX:
        raise ConfigError(f'{path}: image.fill = {image.fill}: has no effect without resize = "letterbox"; add it')
    if image.fill != ImageContract("").fill and image.colour is ColourOrder.DEPTH:
        raise ConfigError(f"{path}: image.fill = {image.fill}: the margins of depth pictures are 0; remove it")
    if 0.0 in image.std:
        raise ConfigError(f"{path}: image.std = {list(image.std)}: expected no 0, since the pixels are divided by it")


def with_named_files(config: ModelConfig, folder: Path) -> ModelConfig:
    """Read the label file into the classes, and find the warm-up files, both where Triton has them.

    Args:
        config: As read; classes in it are kept.
        folder: The model's folder.

    Raises:
        ModelNotLoadable: A file is missing, is a link, is no text, or is too long.
    """
    samples = tuple(_found(sample, folder / _WARM_UP_FOLDER) for sample in config.model_warmup.samples)
    return replace(
        config,
        pictures=replace(config.pictures, classes=config.pictures.classes or _labels(config, folder)),
        model_warmup=WarmUp(config.model_warmup.count, samples),
    )


def _labels(config: ModelConfig, folder: Path) -> tuple[ClassInfo, ...]:
    names = list(dict.fromkeys(tensor.label_filename for tensor in config.output if tensor.label_filename))
    if len(names) > 1:
        log_once(log, logging.WARNING, "%s: several label files (%s); the card has the first", folder, ", ".join(names))
    if not names:
        return ()
    path = named_file(folder, names[0], "label_filename")
    if path.stat().st_size > _LARGEST_LABELS:
        raise ModelNotLoadable(f"{path}: longer than {_LARGEST_LABELS} bytes; expected one class a line")
    try:
        text = path.read_text("utf-8-sig").rstrip()  # empty lines at the end are no classes
    except UnicodeDecodeError as error:
        raise ModelNotLoadable(f"{path}: named by label_filename, but it is not text: {error}") from error
    lines = text.split("\n") if text else ()  # a name may have other ends of lines of Unicode
    return tuple(ClassInfo(line.strip(), class_colour(number)) for number, line in enumerate(lines))


def _found(sample: WarmUpSample, folder: Path) -> WarmUpSample:
    inputs: Mapping[str, WarmUpInput] = {
        name: replace(each, input_data_file=named_file(folder, str(each.input_data_file), "input_data_file"))
        if each.input_data_file
        else each
        for name, each in sample.inputs.items()
    }
    return replace(sample, inputs=inputs)
