"""What may be said of a model: Triton's key names and meanings, each of them optional.

The names are those of Triton's model configuration (`config.pbtxt`,
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md); `image` and
`classes` are mqinfer's own. `config_files` reads them; without any file everything is read from the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path

from mqinfer.protocol.card import ClassInfo, ImageContract, Layout
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.types import Scalar

__all__ = [
    "Accelerator",
    "Accelerators",
    "BoxFormat",
    "Detection",
    "DynamicBatching",
    "EnsembleStep",
    "InstanceGroup",
    "InstanceKind",
    "ModelConfig",
    "QueuePolicy",
    "Segmentation",
    "TensorConfig",
    "TimeoutAction",
    "VersionPolicy",
    "WarmUp",
    "WarmUpInput",
    "WarmUpSample",
]


class InstanceKind(StrEnum):
    """Where a model's instances run."""

    CPU = "KIND_CPU"
    GPU = "KIND_GPU"
    AUTO = "KIND_AUTO"
    MODEL = "KIND_MODEL"


class TimeoutAction(StrEnum):
    """What becomes of a request that waited too long."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Bounds on waiting, of one priority level.

    Attributes:
        timeout_action: Refuse what waited too long, or run it after everything else.
        default_timeout_microseconds: How long a request may wait; 0: any time.
        allow_timeout_override: Whether a request may ask for less.
        max_queue_size: How many may wait; 0: as many as the worker takes.
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: int = 0
    allow_timeout_override: bool = False
    max_queue_size: int = 0


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """How waiting requests are put together; without preferred sizes and delay the worker finds out what pays.

    Attributes:
        preferred_batch_size: Sizes that are run at once when reached; empty: as many as wait.
        max_queue_delay_microseconds: How long the oldest request may wait for company; None: not stated.
        latency_target_microseconds: mqinfer's own key. Where the worker finds out what pays: the time from a request's
            arrival to its result that batching may not exceed.
        preserve_ordering: Answer in the order of arrival.
        priority_levels: How many there are, 1 being the highest; 0: no priorities.
        default_priority_level: Of a request that states none.
        default_queue_policy: Of levels without one of their own.
        priority_queue_policy: By level.
    """

    preferred_batch_size: tuple[int, ...] = ()
    max_queue_delay_microseconds: int | None = None
    latency_target_microseconds: int | None = None
    preserve_ordering: bool = False
    priority_levels: int = 0
    default_priority_level: int = 0
    default_queue_policy: QueuePolicy = field(default_factory=QueuePolicy)
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)


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

    def devices(self) -> tuple[str, ...]:
        """Give the device of every instance: `cpu`, `cuda:N`, or `auto`."""
        if self.kind is InstanceKind.CPU:
            return ("cpu",) * self.count
        if self.kind is InstanceKind.GPU:
            return tuple(f"cuda:{gpu}" for gpu in self.gpus or (0,) for _ in range(self.count))
        return ("auto",) * self.count


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
class WarmUpInput:
    """One input of a warm-up sample: zeros, unless it says otherwise.

    Attributes:
        data_type: Must be the model's.
        dims: Without the batch axis where the model has one.
        random_data: Random numbers.
        input_data_file: Raw bytes in row-major order, in the folder `warmup` of the model.
    """

    data_type: Datatype
    dims: tuple[int, ...]
    random_data: bool = False
    input_data_file: Path | None = None


@dataclass(frozen=True, slots=True)
class WarmUpSample:
    """A request that the model answers before it serves: `count` times `batch_size` rows of the same inputs."""

    inputs: Mapping[str, WarmUpInput] = field(default_factory=dict)
    batch_size: int = 1
    count: int = 1
    name: str = ""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Inferences before a worker says `ready`.

    Attributes:
        count: On zeros, so many times at each batch size; 0 for none.
        samples: And these, where given.
    """

    count: int = 1
    samples: tuple[WarmUpSample, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """What the operator knows of an input or output better than the model file does.

    Attributes:
        name: As in the model file.
        dims: The shape that requests have, -1 for any size; without the batch axis where `max_batch_size` is above 0
            (Triton's rule).
        data_type: Checked against the file where given.
        reshape: The shape that the model has in place of `dims`, as many elements; None: the same.
        layout: Triton's `format` of a picture.
        label_filename: Of a classification: a file in the model's folder, one class a line.
    """

    name: str
    dims: tuple[int, ...] | None = None
    data_type: Datatype | None = None
    reshape: tuple[int, ...] | None = None
    layout: Layout | None = None
    label_filename: str | None = None

    @property
    def model_dims(self) -> tuple[int, ...] | None:
        """The shape that the model has, in the terms of `dims`."""
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble, and the tensors that it takes and gives.

    Attributes:
        model_name: A model of the same repository.
        model_version: Its version; -1: the one that the model's policy prefers.
        input_map: Every input of the model to the tensor of the ensemble that feeds it.
        output_map: Outputs of the model to the tensors that they become; what is left out is not kept.
    """

    model_name: str
    model_version: int = -1
    input_map: Mapping[str, str] = field(default_factory=dict)
    output_map: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One of them: `tensorrt`, `cuda`, `openvino`, with its parameters as the file has them."""

    name: str
    parameters: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accelerators:
    """Those of a model, in order of preference.

    Attributes:
        gpu: Tried where the model may run on a GPU.
        cpu: Tried on the CPU.
    """

    gpu: tuple[Accelerator, ...] = ()
    cpu: tuple[Accelerator, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Of all that are asked for."""
        return tuple(each.name for each in self.gpu + self.cpu)


class BoxFormat(StrEnum):
    """The four numbers of a box that a model gives, in pixels of its input."""

    CORNERS = "xyxy"
    CENTRE = "cxcywh"
    TOP_LEFT = "xywh"


@dataclass(frozen=True, slots=True)
class Segmentation:
    """Take the class with the largest logit for each pixel, as UINT8.

    Attributes:
        output: Name of the output with the logits; the mask keeps it.
        layout: `NHWC`, classes last, or `NCHW`.
    """

    output: str
    layout: Layout = Layout.NHWC

    def __post_init__(self) -> None:
        if self.layout is Layout.NHW:
            raise ValueError("layout must be NHWC or NCHW: logits have an axis of classes")


@dataclass(frozen=True, slots=True)
class Detection:
    """Keep the best boxes of a model's raw candidates: score threshold, then non-maximum suppression by class.

    Attributes:
        boxes: Name of the output with four numbers for each candidate `[1, K, 4]`; where `scores` is not given, with
            the scores of all classes behind them `[1, K, 4 + C]`, or `[1, 4 + C, K]` (the longer axis is K).
        scores: Name of the output with the scores `[1, K, C]`, or `[1, K]`.
        classes: Name of the output with the class numbers `[1, K]` where the scores are those of one class each.
        box_format: Of the four numbers.
        score_threshold: Candidates below it are dropped.
        iou_threshold: Of two boxes of one class that overlap by more (intersection over union), the better one stays.
        max_detections: At most so many boxes are kept.
    """

    boxes: str
    scores: str | None = None
    classes: str | None = None
    box_format: BoxFormat = BoxFormat.CORNERS
    score_threshold: float = 0.25
    iou_threshold: float = 0.45
    max_detections: int = 100

    def __post_init__(self) -> None:
        if not (0 <= self.score_threshold <= 1 and 0 <= self.iou_threshold <= 1):
            raise ValueError("score_threshold and iou_threshold must be from 0 to 1")
        if self.classes and not self.scores:
            raise ValueError("classes needs scores")


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model's configuration; every field has a value that means "read it from the model".

    Attributes:
        name: Must equal the folder's name where given.
        backend: Triton's `backend` or `platform`; None: by the file's name.
        max_batch_size: 0 for a model without a batch axis; None: discovered.
        dynamic_batching: None: the worker finds out what pays.
        instance_group: Processes and devices.
        version_policy: Which versions are served.
        model_warmup: Runs before `ready`.
        default_model_filename: File or folder within the version's folder; None: the usual names.
        parameters: `signature` (SavedModel), `intra_op_thread_count`, `precision` (stated in the card).
        input: Shapes of inputs that the file leaves open.
        output: For a frozen graph: the nodes to give back. Otherwise shapes.
        optimization: Accelerators of the engine.
        ensemble_scheduling: The steps of an ensemble; empty: this is a model by itself.
        image: How a picture becomes an input; None: discovered.
        classes: Of the mask or the classifier, in the order of their numbers.
        segmentation: How logits become a mask in the worker; None: outputs stay as they are.
        detection: How raw candidates become boxes in the worker; None: likewise.
    """

    name: str | None = None
    backend: str | None = None
    max_batch_size: int | None = None
    dynamic_batching: DynamicBatching | None = None
    instance_group: tuple[InstanceGroup, ...] = (InstanceGroup(),)
    version_policy: VersionPolicy = field(default_factory=VersionPolicy)
    model_warmup: WarmUp = field(default_factory=WarmUp)
    default_model_filename: str | None = None
    parameters: Mapping[str, Scalar] = field(default_factory=dict)
    input: tuple[TensorConfig, ...] = ()
    output: tuple[TensorConfig, ...] = ()
    optimization: Accelerators = field(default_factory=Accelerators)
    ensemble_scheduling: tuple[EnsembleStep, ...] = ()
    image: ImageContract | None = None
    classes: tuple[ClassInfo, ...] = ()
    segmentation: Segmentation | None = None
    detection: Detection | None = None

    def devices(self, wanted: str = "auto", instances: int | None = None) -> tuple[str, ...]:
        """Give the device of every instance, group by group.

        Args:
            wanted: The operator's choice for all of them; `auto` for what the groups say.
            instances: So many in place of what the groups say.
        """
        own = tuple(device for group in self.instance_group for device in group.devices())
        if instances:
            own = tuple(islice(cycle(own), instances))
        return own if wanted == "auto" else (wanted,) * len(own)
