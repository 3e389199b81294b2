"""Reads a model's configuration files: `config.pbtxt`, `model.toml`, and a version's own `model.toml`.

They are layers: each key of a later file takes the place of the same key of an earlier one, whole. So a repository
made for Triton is read as it is, what only mqinfer knows (`[image]`, `[[classes]]`) stands in a `model.toml` beside it,
and a version may differ from the others. Both forms pass the same checks: keys and meanings are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from mqinfer.models.repository.config import ModelConfig
from mqinfer.models.repository.config_keys import DESCRIPTION, Layer
from mqinfer.models.repository.tables import read_toml
from mqinfer.models.repository.triton_text import read_triton_text
from mqinfer.protocol.card import ColourOrder, ImageContract, Layout
from mqinfer.protocol.errors import ConfigError

__all__ = ["CONFIG_FILE", "CONFIG_FILES", "TRITON_FILE", "combine", "read_layer"]

TRITON_FILE = "config.pbtxt"
CONFIG_FILE = "model.toml"
CONFIG_FILES = (TRITON_FILE, CONFIG_FILE)
"""In the order of their layers."""


def read_layer(path: Path) -> Layer:
    """Read one file, by its name: a `config.pbtxt`, otherwise TOML.

    Args:
        path: The file; where there is none the layer is empty.

    Raises:
        ConfigError: Names the file, the key, its value and what is allowed.
        MissingExtra: A `config.pbtxt` needs protobuf, which is not installed.
    """
    if not path.exists():
        return {}
    if path.name == TRITON_FILE:
        layer: Layer = DESCRIPTION(read_triton_text(path), f"{path}:")
    else:
        layer = read_toml(path, DESCRIPTION)
    _check_image(layer, path)
    return layer


def combine(layers: Iterable[Layer]) -> ModelConfig:
    """Lay later layers over earlier ones, key by key."""
    whole: dict[str, object] = {}
    for layer in layers:
        whole |= layer
    config = ModelConfig(**whole)  # type: ignore[arg-type] # each value was converted by its check
    return config if config.image else replace(config, image=_image_by_format(config))


def _image_by_format(config: ModelConfig) -> ImageContract | None:
    """Make an image contract of Triton's `format`, where one input has it and its channels tell the colour."""
    pictures = [each for each in config.input if each.layout and each.dims and len(each.dims) >= 3]
    if len(pictures) != 1 or pictures[0].layout is None or pictures[0].dims is None:
        return None
    channels = pictures[0].dims[-1 if pictures[0].layout is Layout.NHWC else -3]
    colours = {1: ColourOrder.MONO, 3: ColourOrder.RGB}
    if channels not in colours:
        return None
    return ImageContract(pictures[0].name, colour=colours[channels], layout=pictures[0].layout)


def _check_image(layer: Layer, path: Path) -> None:
    image = layer.get("image")
    if not isinstance(image, ImageContract):
        return
    channels = 1 if image.colour is ColourOrder.MONO else 3
    for key, values in (("mean", image.mean), ("std", image.std)):
        if len(values) not in {1, channels}:
            raise ConfigError(f"{path}: image.{key} = {list(values)}: must be one number or {channels}")
    if 0.0 in image.std:
        raise ConfigError(f"{path}: image.std = {list(image.std)}: must not hold 0, the pixels are divided by it")
