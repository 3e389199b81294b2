"""Reads a model's configuration files: `config.pbtxt`, `model.toml`, and a version's own `model.toml`.

They are layers: each key of a later file takes the place of the same key of an earlier one, whole. So a repository
made for Triton is read as it is, what only mqinfer knows (`[image]`, `[[classes]]`) stands in a `model.toml` beside it,
and a version may differ from the others. Both forms pass the same checks: keys and meanings are the same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from mqinfer.models.accelerators import OPTIMIZATION
from mqinfer.models.config import (
    DynamicBatching,
    EnsembleStep,
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    QueuePolicy,
    TensorConfig,
    TimeoutAction,
    VersionPolicy,
    WarmUp,
    WarmUpInput,
    WarmUpSample,
)
from mqinfer.models.palette import class_colour
from mqinfer.models.postprocess.settings import DETECTION, SEGMENTATION
from mqinfer.models.tables import (
    Check,
    array,
    choice,
    flag,
    integer,
    mapping,
    number,
    numbers,
    one_or_more,
    read_toml,
    scalar,
    table,
    text,
)
from mqinfer.models.triton_text import read_triton_text
from mqinfer.protocol.card import ClassInfo, ColourOrder, ImageContract, Layout
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError

__all__ = ["CONFIG_FILE", "CONFIG_FILES", "TRITON_FILE", "combine", "read_layer"]

log = logging.getLogger("mqinfer.models")

TRITON_FILE = "config.pbtxt"
CONFIG_FILE = "model.toml"
CONFIG_FILES = (TRITON_FILE, CONFIG_FILE)
"""In the order of their layers."""

Layer = Mapping[str, object]
"""Checked values by the name of ModelConfig's field."""

_NAMES = mapping(text)


def _triton_datatype(value: object, where: str) -> Datatype:
    named = "BYTES" if value == "TYPE_STRING" else value
    return Datatype(choice(Datatype, "TYPE_")(named, where))


def _policy(**given: VersionPolicy) -> VersionPolicy:
    if len(given) != 1:
        raise ValueError("give exactly one of latest, all, specific")
    return next(iter(given.values()))


def _layout(value: object, where: str) -> Layout | None:
    return None if value == "FORMAT_NONE" else Layout(choice(Layout, "FORMAT_")(value, where))


def _tensor(*, format: Layout | None = None, **rest: object) -> TensorConfig:  # noqa: A002 - the key's name in the file
    return TensorConfig(layout=format, **rest)  # type: ignore[arg-type] # each was converted by its check


def _group(*, name: str = "", **rest: object) -> InstanceGroup:
    del name  # changes nothing
    return InstanceGroup(**rest)  # type: ignore[arg-type] # as above


def _levels(value: object, where: str) -> Mapping[int, QueuePolicy]:
    policies: Mapping[str, QueuePolicy] = mapping(_QUEUE_POLICY)(value, where)
    return {integer(1)(_whole(level), where): each for level, each in policies.items()}


def _whole(key: str) -> object:
    return int(key) if key.isdecimal() and len(key) < 20 else key


def _warm_up_input(
    *,
    zero_data: bool = True,
    random_data: bool = False,
    input_data_file: str | None = None,
    **rest: object,
) -> WarmUpInput:
    del zero_data  # its value is not looked at, in Triton either: zeros are what is left
    file = None if input_data_file is None else Path(input_data_file)
    return WarmUpInput(random_data=random_data, input_data_file=file, **rest)  # type: ignore[arg-type] # as above


def _warm_up(value: object, where: str) -> WarmUp:
    """Tell samples with inputs (Triton's) from plain counts of runs on zeros."""
    samples: tuple[WarmUpSample, ...] = one_or_more(_WARM_UP_SAMPLE)(value, where)
    plain = sum(sample.count for sample in samples if not sample.inputs)
    return WarmUp(plain, tuple(sample for sample in samples if sample.inputs))


def _image(*, input: str = "", **rest: object) -> ImageContract:  # noqa: A002 - the key's name in the file
    return ImageContract(input, **rest)  # type: ignore[arg-type] # each was converted by its check


def _colour(value: object, where: str) -> tuple[int, ...]:
    channels: tuple[int, ...] = array(integer(0, 255))(value, where)
    if len(channels) != 3:
        raise ConfigError(f"{where} = {value!r}: must be a list of three numbers (red, green, blue)")
    return channels


def _classes(value: object, where: str) -> tuple[ClassInfo, ...]:
    given: tuple[dict[str, object], ...] = array(_CLASS)(value, where)
    return tuple(ClassInfo(**({"colour": class_colour(n)} | each)) for n, each in enumerate(given))  # type: ignore[arg-type] # as above


_VERSIONS: dict[str, Check] = {
    "latest": table({"num_versions": integer(1)}, lambda num_versions=1: VersionPolicy(latest=num_versions)),
    "all": table({}, lambda: VersionPolicy(all=True)),
    "specific": table(
        {"versions": array(integer(0))}, lambda versions: VersionPolicy(specific=versions), required=("versions",)
    ),
}
_TENSOR = table(
    {
        "name": text,
        "dims": array(integer(-1)),
        "data_type": _triton_datatype,
        "reshape": table({"shape": array(integer(-1))}, lambda shape=(): shape),
        "format": _layout,
        "label_filename": text,
    },
    _tensor,
    required=("name",),
    ignored=("optional", "is_shape_tensor", "allow_ragged_batch", "is_non_linear_format_io"),
)
_QUEUE_POLICY = table(
    {
        "timeout_action": choice(TimeoutAction),
        "default_timeout_microseconds": integer(0),
        "allow_timeout_override": flag,
        "max_queue_size": integer(0),
    },
    QueuePolicy,
)
_DYNAMIC_BATCHING = table(
    {
        "preferred_batch_size": array(integer(1)),
        "max_queue_delay_microseconds": integer(0),
        "latency_target_microseconds": integer(1),
        "preserve_ordering": flag,
        "priority_levels": integer(0),
        "default_priority_level": integer(0),
        "default_queue_policy": _QUEUE_POLICY,
        "priority_queue_policy": _levels,
    },
    DynamicBatching,
)
_INSTANCE_GROUP = table(
    {"name": text, "count": integer(1), "kind": choice(InstanceKind), "gpus": array(integer(0))},
    _group,
    ignored=("rate_limiter", "secondary_devices", "profile", "passive", "host_policy"),
)
_WARM_UP_SAMPLE = table(
    {
        "name": text,
        "batch_size": integer(1),
        "count": integer(0),
        "inputs": mapping(
            table(
                {
                    "data_type": _triton_datatype,
                    "dims": array(integer(0)),
                    "zero_data": flag,
                    "random_data": flag,
                    "input_data_file": text,
                },
                _warm_up_input,
                required=("data_type", "dims"),
            )
        ),
    },
    WarmUpSample,
)
_STEP = table(
    {"model_name": text, "model_version": integer(-1), "input_map": _NAMES, "output_map": _NAMES},
    EnsembleStep,
    required=("model_name", "input_map", "output_map"),
)
_IMAGE: dict[str, Check] = {
    "input": text,
    "width": integer(1),
    "height": integer(1),
    "colour": choice(ColourOrder),
    "layout": choice(Layout, "FORMAT_"),
    "scale": number,
    "mean": numbers,
    "std": numbers,
}
_CLASS = table({"name": text, "colour": _colour}, dict, required=("name",))
_MODEL: dict[str, Check] = {
    "name": text,
    "backend": text,
    "platform": text,
    "max_batch_size": integer(0),
    "dynamic_batching": _DYNAMIC_BATCHING,
    "instance_group": one_or_more(_INSTANCE_GROUP),
    "version_policy": table(_VERSIONS, _policy),
    "model_warmup": _warm_up,
    "default_model_filename": text,
    "parameters": mapping(scalar),
    "input": array(_TENSOR),
    "output": array(_TENSOR),
    "optimization": OPTIMIZATION,
    "ensemble_scheduling": table({"step": array(_STEP)}, lambda step: step, required=("step",)),
    "image": table(_IMAGE, _image),
    "classes": _classes,
    "segmentation": SEGMENTATION,
    "detection": DETECTION,
}


def _layer(*, platform: str | None = None, **given: object) -> Layer:
    return given if platform is None else {"backend": platform} | given


_DESCRIPTION = table(
    _MODEL,
    _layer,
    ignored=(
        "model_transaction_policy",
        "sequence_batching",
        "response_cache",
        "cc_model_filenames",
        "metric_tags",
        "model_operations",
    ),
)


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
        layer: Layer = _DESCRIPTION(read_triton_text(path), f"{path}:")
    else:
        layer = read_toml(path, _DESCRIPTION)
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
