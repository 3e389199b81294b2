"""What `model.toml` may say of a model: Triton's key names, in TOML, each of them optional.

The names and meanings are those of Triton's model configuration (`config.pbtxt`,
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md); the tables
`[image]` and `[[classes]]` are mqinfer's own. Without a `model.toml` everything is read from the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from mqinfer.models.tables import (
    Check,
    array,
    choice,
    integer,
    number,
    numbers,
    one_or_list,
    read_toml,
    scalar,
    table,
    text,
)
from mqinfer.protocol.card import ClassInfo, ColourOrder, ImageContract, Layout
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.types import Scalar

__all__ = [
    "CONFIG_FILE",
    "DynamicBatching",
    "InstanceGroup",
    "InstanceKind",
    "ModelConfig",
    "TensorConfig",
    "VersionPolicy",
    "WarmUp",
    "read_config",
]

CONFIG_FILE = "model.toml"


class InstanceKind(StrEnum):
    """Where a model's instances run."""

    CPU = "KIND_CPU"
    GPU = "KIND_GPU"
    AUTO = "KIND_AUTO"


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """How waiting requests are put together.

    Attributes:
        preferred_batch_size: Sizes that are run at once when reached; empty: as many as wait.
        max_queue_delay_microseconds: How long the oldest request may wait for company.
    """

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int = 0


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """How many instances (processes) of the model run, and on what.

    Attributes:
        count: Instances; on GPUs, on each of them.
        kind: CPU, GPU, or whichever there is.
        gpus: Numbers of the GPUs; empty: the first.
    """

    count: int = 1
    kind: InstanceKind = InstanceKind.AUTO
    gpus: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which of a model's versions are served: the latest `latest`, or all, or those named.

    Attributes:
        latest: How many of the highest numbers; Triton's default is 1.
        all: Every version there is.
        specific: These versions; others are left alone.
    """

    latest: int = 1
    all: bool = False
    specific: tuple[int, ...] = ()

    def select(self, versions: tuple[int, ...]) -> tuple[int, ...]:
        """Pick from the versions that there are; ascending order."""
        present = sorted(versions)
        if self.specific:
            return tuple(version for version in present if version in self.specific)
        return tuple(present if self.all else present[-self.latest :])


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Inferences on zeros before a worker says `ready`: `count` at each batch size; 0 for none."""

    count: int = 1


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """What the operator knows of an input or output better than the model file does.

    Attributes:
        name: As in the model file.
        dims: The shape, -1 for any size; without the batch axis where `max_batch_size` is above 0 (Triton's rule).
        data_type: Checked against the file where given.
    """

    name: str
    dims: tuple[int, ...] | None = None
    data_type: Datatype | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model's configuration; every field has a value that means "read it from the model".

    Attributes:
        name: Must equal the folder's name where given.
        backend: Triton's `backend` or `platform`; None: by the file's name.
        max_batch_size: 0 for a model without a batch axis; None: discovered.
        dynamic_batching: None: every request runs alone.
        instance_group: Processes and devices.
        version_policy: Which versions are served.
        model_warmup: Runs before `ready`.
        default_model_filename: File or folder within the version's folder; None: the usual names.
        parameters: `signature` (SavedModel), `intra_op_thread_count`, `precision` (stated in the card).
        input: Shapes of inputs that the file leaves open.
        output: For a frozen graph: the nodes to give back. Otherwise shapes.
        image: How a picture becomes an input; None: discovered.
        classes: Of the mask or the classifier, in the order of their numbers.
    """

    name: str | None = None
    backend: str | None = None
    max_batch_size: int | None = None
    dynamic_batching: DynamicBatching | None = None
    instance_group: InstanceGroup = field(default_factory=InstanceGroup)
    version_policy: VersionPolicy = field(default_factory=VersionPolicy)
    model_warmup: WarmUp = field(default_factory=WarmUp)
    default_model_filename: str | None = None
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    input: tuple[TensorConfig, ...] = ()
    output: tuple[TensorConfig, ...] = ()
    image: ImageContract | None = None
    classes: tuple[ClassInfo, ...] = ()


def _triton_datatype(value: object, where: str) -> Datatype:
    named = "BYTES" if value == "TYPE_STRING" else value
    return Datatype(choice(Datatype, "TYPE_")(named, where))


def _policy(**given: VersionPolicy) -> VersionPolicy:
    if len(given) != 1:
        raise ValueError("give exactly one of latest, all, specific")
    return next(iter(given.values()))


def _parameters(value: object, where: str) -> Mapping[str, Scalar]:
    if not isinstance(value, dict):
        raise ConfigError(f"{where} = {value!r}: must be a table of names and values")
    return {key: scalar(each, f"{where}.{key}") for key, each in value.items()}


def _image(*, input: str = "", **rest: object) -> ImageContract:  # noqa: A002 - the key's name in the file
    return ImageContract(input, **rest)  # type: ignore[arg-type] # each was converted by its check


def _colour(value: object, where: str) -> tuple[int, ...]:
    channels: tuple[int, ...] = array(integer(0, 255))(value, where)
    if len(channels) != 3:
        raise ConfigError(f"{where} = {value!r}: must be a list of three numbers (red, green, blue)")
    return channels


_VERSIONS: dict[str, Check] = {
    "latest": table({"num_versions": integer(1)}, lambda num_versions=1: VersionPolicy(latest=num_versions)),
    "all": table({}, lambda: VersionPolicy(all=True)),
    "specific": table(
        {"versions": array(integer(0))}, lambda versions: VersionPolicy(specific=versions), required=("versions",)
    ),
}
_TENSOR = table(
    {"name": text, "dims": array(integer(-1)), "data_type": _triton_datatype},
    TensorConfig,
    required=("name",),
    ignored=("format", "reshape", "optional", "label_filename", "is_shape_tensor", "allow_ragged_batch"),
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
_MODEL: dict[str, Check] = {
    "name": text,
    "backend": text,
    "platform": text,
    "max_batch_size": integer(0),
    "dynamic_batching": table(
        {"preferred_batch_size": array(integer(1)), "max_queue_delay_microseconds": integer(0)},
        DynamicBatching,
        ignored=(
            "preserve_ordering",
            "priority_levels",
            "default_priority_level",
            "default_queue_policy",
            "priority_queue_policy",
        ),
    ),
    "instance_group": one_or_list(
        table(
            {"count": integer(1), "kind": choice(InstanceKind), "gpus": array(integer(0))},
            InstanceGroup,
            ignored=("name", "rate_limiter"),
        )
    ),
    "version_policy": table(_VERSIONS, _policy),
    "model_warmup": one_or_list(table({"count": integer(0)}, WarmUp, ignored=("name", "batch_size", "inputs"))),
    "default_model_filename": text,
    "parameters": _parameters,
    "input": array(_TENSOR),
    "output": array(_TENSOR),
    "image": table(_IMAGE, _image),
    "classes": array(table({"name": text, "colour": _colour}, ClassInfo, required=("name", "colour"))),
}


def _model(*, platform: str | None = None, backend: str | None = None, **rest: object) -> ModelConfig:
    return ModelConfig(backend=backend or platform, **rest)  # type: ignore[arg-type] # converted by the checks


_DESCRIPTION = table(
    _MODEL,
    _model,
    ignored=("optimization", "response_cache", "model_transaction_policy", "sequence_batching", "cc_model_filenames"),
)


def read_config(path: Path) -> ModelConfig:
    """Read a `model.toml`.

    Args:
        path: The file; where there is none the result says "read everything from the model".

    Raises:
        ConfigError: Names the file, the key, its value and what is allowed.
    """
    if not path.exists():
        return ModelConfig()
    config: ModelConfig = read_toml(path, _DESCRIPTION)
    _check_image(config, path)
    return config


def _check_image(config: ModelConfig, path: Path) -> None:
    image = config.image
    if image is None:
        return
    channels = 1 if image.colour is ColourOrder.MONO else 3
    for key, values in (("mean", image.mean), ("std", image.std)):
        if len(values) not in {1, channels}:
            raise ConfigError(f"{path}: image.{key} = {list(values)}: must be one number or {channels}")
    if 0.0 in image.std:
        raise ConfigError(f"{path}: image.std = {list(image.std)}: must not hold 0, the pixels are divided by it")
