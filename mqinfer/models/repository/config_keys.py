"""Every key of a model's configuration with the check of its value, for both kinds of files.

The keys and their meanings are Triton's (`model_config.proto`); mqinfer's own are `latency_target_microseconds`,
`highest_priority`, `image`, `points`, `classes`, `segmentation`, `classification` and `detection`. Triton's keys
without effect here are listed as ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from mqinfer.models.repository.config import (
    Accelerator,
    Accelerators,
    DynamicBatching,
    EnsembleStep,
    InstanceGroup,
    QueuePolicy,
    Size,
    TensorConfig,
    VersionPolicy,
    WarmUp,
    WarmUpInput,
    WarmUpSample,
)
from mqinfer.models.repository.output_tables import Classification, Detection, Segmentation
from mqinfer.models.repository.tables import Check, Place, array, check_of, mapping, one_or_more, table, table_of
from mqinfer.protocol.card import ClassInfo, ImageContract, Layout, PointsContract
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.types import Count, Positive, Scalar

Layer = Mapping[str, object]
"""Checked values by the name of ModelConfig's field."""


def class_colour(number: int) -> tuple[int, int, int]:
    """Return the default colour of a class, from the colour map of the Pascal VOC challenge: 256 colours, 0 is black.

    Bit 3n of the number becomes bit 7-n of red, bit 3n+1 of green, bit 3n+2 of blue
    (`VOClabelcolormap` of its development kit, http://host.robots.ox.ac.uk/pascal/VOC/).
    """
    red, green, blue = (sum((number >> 3 * bit + channel & 1) << 7 - bit for bit in range(8)) for channel in range(3))
    return red, green, blue


def _triton_datatype(value: object, place: Place) -> Datatype:
    named = "BYTES" if value == "TYPE_STRING" else value
    return Datatype(check_of(Datatype)(named, place))


def _policy(**given: VersionPolicy) -> VersionPolicy:
    if len(given) != 1:
        raise ValueError("expected exactly one of latest, all, specific")
    return next(iter(given.values()))


def _layout(value: object, place: Place) -> Layout | None:
    return None if value == "FORMAT_NONE" else Layout(check_of(Layout)(value, place))


def _group(*, name: str = "", **rest: object) -> InstanceGroup:
    del name  # Triton's own label of the group
    return InstanceGroup(**rest)  # type: ignore[arg-type] # each was converted by its check


def _levels(value: object, place: Place) -> Mapping[int, QueuePolicy]:
    policies: Mapping[str, QueuePolicy] = mapping(_QUEUE_POLICY)(value, place)
    return {check_of(Positive)(_whole(level), place): each for level, each in policies.items()}


def _whole(key: str) -> object:
    return int(key) if key.isdecimal() and len(key) < 20 else key


def _warm_up_input(
    *,
    zero_data: bool = True,
    random_data: bool = False,
    input_data_file: str | None = None,
    **rest: object,
) -> WarmUpInput:
    del zero_data  # zeros are the default, whatever its value, as in Triton
    file = None if input_data_file is None else Path(input_data_file)
    return WarmUpInput(random_data=random_data, input_data_file=file, **rest)  # type: ignore[arg-type] # as above


def _warm_up(value: object, place: Place) -> WarmUp:
    """Separate samples with inputs (Triton's) from plain counts of runs on zeros."""
    samples: tuple[WarmUpSample, ...] = one_or_more(_WARM_UP_SAMPLE)(value, place)
    plain = sum(sample.count for sample in samples if not sample.inputs)
    return WarmUp(plain, tuple(sample for sample in samples if sample.inputs))


def _image(*, input: str = "", **rest: object) -> ImageContract:  # noqa: A002 - the key's name in the file
    return ImageContract(input, **rest)  # type: ignore[arg-type] # each was converted by its check


def _colour(value: object, place: Place) -> tuple[int, ...]:
    channels: tuple[int, ...] = check_of(tuple[Annotated[int, Meta(ge=0, le=255)], ...])(value, place)
    if len(channels) != 3:
        raise place.refusal(value, "a list of three numbers (red, green, blue)")
    return channels


def _classes(value: object, place: Place) -> tuple[ClassInfo, ...]:
    given: tuple[dict[str, object], ...] = array(table(_CLASS, _class, required=("name",)))(value, place)
    return tuple(ClassInfo(**({"colour": class_colour(n)} | each)) for n, each in enumerate(given))  # type: ignore[arg-type] # as above


def _class(
    keypoints: tuple[str, ...] = (), skeleton: tuple[tuple[str, ...], ...] = (), **rest: object
) -> dict[str, object]:
    if len(set(keypoints)) < len(keypoints):
        raise ValueError("keypoints: expected each name once")
    if wrong := next((line for line in skeleton if len(line) != 2 or not {*line} <= {*keypoints}), None):
        raise ValueError(f"skeleton: {list(wrong)}: expected two of the names in keypoints")
    return {**rest, "keypoints": keypoints, "skeleton": skeleton}


_FLAG, _TEXT, _TEXTS = check_of(bool), check_of(str), check_of(tuple[str, ...])
_VERSIONS: dict[str, Check] = {
    "latest": table({"num_versions": check_of(Positive)}, lambda num_versions=1: VersionPolicy(latest=num_versions)),
    "all": table({}, lambda: VersionPolicy(all=True)),
    "specific": table(
        {"versions": check_of(tuple[Count, ...])},
        lambda versions: VersionPolicy(specific=versions),
        required=("versions",),
    ),
}
_TENSOR = table_of(
    TensorConfig,
    data_type=_triton_datatype,
    reshape=table({"shape": check_of(tuple[Size, ...])}, lambda shape=(): shape),
    format=_layout,
    ignored=("optional", "is_shape_tensor", "allow_ragged_batch", "is_non_linear_format_io"),
)
_QUEUE_POLICY = table_of(QueuePolicy, ignored=("allow_timeout_override",))
_INSTANCE_GROUP = table_of(
    InstanceGroup,
    _group,
    name=_TEXT,
    ignored=("rate_limiter", "secondary_devices", "profile", "passive", "host_policy"),
)
_WARM_UP_INPUT = table_of(
    WarmUpInput, _warm_up_input, data_type=_triton_datatype, zero_data=_FLAG, input_data_file=_TEXT
)
_WARM_UP_SAMPLE = table_of(WarmUpSample, inputs=mapping(_WARM_UP_INPUT))
_STEP = table_of(EnsembleStep, required=("model_name", "input_map", "output_map"))
_CLASS: dict[str, Check] = {"name": _TEXT, "colour": _colour, "keypoints": _TEXTS, "skeleton": array(_TEXTS)}


def _accelerators(
    gpu_execution_accelerator: tuple[Accelerator, ...] = (), cpu_execution_accelerator: tuple[Accelerator, ...] = ()
) -> Accelerators:
    return Accelerators(gpu_execution_accelerator, cpu_execution_accelerator)


_LIST = array(table_of(Accelerator))

OPTIMIZATION = table(
    {
        "execution_accelerators": table(
            {"gpu_execution_accelerator": _LIST, "cpu_execution_accelerator": _LIST}, _accelerators
        )
    },
    lambda execution_accelerators=None: execution_accelerators or Accelerators(),
    ignored=(
        "graph",
        "cuda",
        "priority",
        "input_pinned_memory",
        "output_pinned_memory",
        "gather_kernel_buffer_threshold",
        "eager_batching",
    ),
)
"""The check of `optimization`."""

_MODEL: dict[str, Check] = {
    "name": _TEXT,
    "backend": _TEXT,
    "platform": _TEXT,
    "max_batch_size": check_of(Count),
    "dynamic_batching": table_of(DynamicBatching, default_queue_policy=_QUEUE_POLICY, priority_queue_policy=_levels),
    "instance_group": one_or_more(_INSTANCE_GROUP),
    "version_policy": table(_VERSIONS, _policy),
    "model_warmup": _warm_up,
    "default_model_filename": _TEXT,
    "parameters": check_of(Mapping[str, Scalar]),
    "input": array(_TENSOR),
    "output": array(_TENSOR),
    "optimization": OPTIMIZATION,
    "ensemble_scheduling": table({"step": array(_STEP)}, lambda step: step, required=("step",)),
    "image": one_or_more(table_of(ImageContract, _image, required=())),
    "points": one_or_more(table_of(PointsContract, fields=_TEXTS)),
    "classes": _classes,
    "segmentation": table_of(Segmentation),
    "classification": table_of(Classification),
    "detection": table_of(Detection),
}


def _layer(*, platform: str | None = None, image: tuple[ImageContract, ...] = (), **given: object) -> Layer:
    if image:
        given |= {"image": image[0], "images": image if len(image) > 1 else ()}
    return given if platform is None else {"backend": platform} | given


DESCRIPTION = table(
    _MODEL,
    _layer,
    ignored=(
        "model_transaction_policy",
        "sequence_batching",
        "response_cache",
        "cc_model_filenames",
        "metric_tags",
        "model_operations",
        "model_repository_agents",
        "model_metrics",
        "batch_input",
        "batch_output",
        "runtime",
    ),
)
