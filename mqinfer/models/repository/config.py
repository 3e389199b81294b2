"""A model's configuration: Triton's key names and meanings, each of them optional.

The names are those of Triton's model configuration (`config.pbtxt`,
https://github.com/triton-inference-server/server/blob/main/docs/user_guide/model_configuration.md); those of
`PictureConfig` are mqinfer's own. `config_files` reads them; without a file everything is discovered from the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import cycle, islice
from pathlib import Path
from typing import Annotated

from msgspec import Meta

from mqinfer.models.repository.output_tables import Classification, Detection, Segmentation
from mqinfer.protocol.card import ClassInfo, ImageContract, Layout, PointsContract
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.types import Count, Positive, Scalar

Size = Annotated[int, Meta(ge=-1)]


class InstanceKind(StrEnum):
    """The kind of device that a model's instances run on."""

    CPU = "KIND_CPU"
    GPU = "KIND_GPU"
    AUTO = "KIND_AUTO"
    MODEL = "KIND_MODEL"


class TimeoutAction(StrEnum):
    """What happens to a request that waited too long."""

    REJECT = "REJECT"
    DELAY = "DELAY"


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Limits on queued requests of one priority level.

    Attributes:
        timeout_action: Reject a request that waited too long, or run it after everything else.
        default_timeout_microseconds: How long a request may wait, which may set a shorter one; 0: no limit.
        max_queue_size: How many may wait; 0: as many as the worker accepts.
    """

    timeout_action: TimeoutAction = TimeoutAction.REJECT
    default_timeout_microseconds: Count = 0
    max_queue_size: Count = 0


@dataclass(frozen=True, slots=True)
class DynamicBatching:
    """How queued requests become batches; without preferred sizes and delay the worker adapts by measuring.

    Attributes:
        preferred_batch_size: Sizes that run as soon as they are reached; empty: all queued requests.
        max_queue_delay_microseconds: How long the oldest request may wait for others; None: not configured.
        latency_target_microseconds: mqinfer's own key. Upper limit of the time from a request's arrival to its result
            for batches that the worker chooses by measuring.
        preserve_ordering: Whether replies keep the order of arrival.
        priority_levels: Number of levels, 1 being the highest; 0: no priorities.
        default_priority_level: Level of a request without one.
        highest_priority: mqinfer's own key. The highest level that requests of a client get, by its name or a pattern
            such as `bus-*`; the first that matches counts.
        default_queue_policy: Policy of levels without one of their own.
        priority_queue_policy: Policies by level.
    """

    preferred_batch_size: tuple[Positive, ...] = ()
    max_queue_delay_microseconds: Count | None = None
    latency_target_microseconds: Positive | None = None
    preserve_ordering: bool = False
    priority_levels: Count = 0
    default_priority_level: Count = 0
    highest_priority: Mapping[str, Positive] = field(default_factory=dict)
    default_queue_policy: QueuePolicy = field(default_factory=QueuePolicy)
    priority_queue_policy: Mapping[int, QueuePolicy] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InstanceGroup:
    """How many instances (processes) of the model run, and on which devices.

    Attributes:
        count: Number of instances; with GPUs, on each of them.
        kind: CPU, GPU, or whichever the machine has.
        gpus: Numbers of the GPUs; empty: the first.
    """

    count: Positive = 1
    kind: InstanceKind = InstanceKind.AUTO
    gpus: tuple[Count, ...] = ()

    def devices(self) -> tuple[str, ...]:
        """Return the device of every instance: `cpu`, `cuda:N`, or `auto`."""
        if self.kind is InstanceKind.CPU:
            return ("cpu",) * self.count
        if self.kind is InstanceKind.GPU:
            return tuple(f"cuda:{gpu}" for gpu in self.gpus or (0,) for _ in range(self.count))
        return ("auto",) * self.count


@dataclass(frozen=True, slots=True)
class VersionPolicy:
    """Which of a model's versions are served: the latest ones, all, or those listed.

    Attributes:
        latest: How many of the highest numbers; Triton's default is 1.
        all: Whether every version is served.
        specific: The only versions to serve; empty: the other two fields decide.
    """

    latest: int = 1
    all: bool = False
    specific: tuple[int, ...] = ()

    def select(self, versions: tuple[int, ...]) -> tuple[int, ...]:
        """Return the selected ones of the existing versions, in ascending order."""
        present = sorted(versions)
        if self.specific:
            return tuple(version for version in present if version in self.specific)
        return tuple(present if self.all else present[-self.latest :])


@dataclass(frozen=True, slots=True)
class WarmUpInput:
    """One input of a warm-up sample: zeros by default.

    Attributes:
        data_type: The model's datatype.
        dims: Shape, without the batch axis where the model has one.
        random_data: Whether the input is random numbers.
        input_data_file: File in the model's folder `warmup` with raw bytes in row-major order.
    """

    data_type: Datatype
    dims: tuple[Count, ...]
    random_data: bool = False
    input_data_file: Path | None = None


@dataclass(frozen=True, slots=True)
class WarmUpSample:
    """A request that the model runs before it serves: `count` times `batch_size` rows of the same inputs."""

    inputs: Mapping[str, WarmUpInput] = field(default_factory=dict)
    batch_size: Positive = 1
    count: Count = 1
    name: str = ""


@dataclass(frozen=True, slots=True)
class WarmUp:
    """Inferences before a worker reports `ready`.

    Attributes:
        count: Runs on zeros at each batch size; 0 for none.
        samples: Further requests to run.
    """

    count: int = 1
    samples: tuple[WarmUpSample, ...] = ()


@dataclass(frozen=True, slots=True)
class TensorConfig:
    """Configuration of an input or output, for what the model file leaves open.

    Attributes:
        name: Its name in the model file.
        dims: The shape that requests have, -1 for any size; without the batch axis where `max_batch_size` is above 0
            (Triton's rule).
        data_type: Must match the file's.
        reshape: The shape that the model has in place of `dims`, with as many elements; None: the same.
        format: Order of a picture's axes.
        label_filename: A file in the model's folder with the labels of the output's classes, one a line.
    """

    name: str
    dims: tuple[Size, ...] | None = None
    data_type: Datatype | None = None
    reshape: tuple[int, ...] | None = None
    format: Layout | None = None
    label_filename: str | None = None

    @property
    def model_dims(self) -> tuple[int, ...] | None:
        """The shape that the model has, without a batch axis as `dims` is."""
        return self.dims if self.reshape is None else self.reshape


@dataclass(frozen=True, slots=True)
class EnsembleStep:
    """One model of an ensemble, with the tensors that it takes and makes.

    Attributes:
        model_name: A model of the same repository.
        model_version: Its version; -1: the default version by the model's policy.
        input_map: Every input of the model to the tensor of the ensemble that feeds it.
        output_map: Outputs of the model to the tensors that they become; other outputs are not kept.
    """

    model_name: str
    model_version: Size = -1
    input_map: Mapping[str, str] = field(default_factory=dict)
    output_map: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accelerator:
    """An execution accelerator (`tensorrt`, `cuda`, `openvino`) with its parameters as in the file."""

    name: str
    parameters: Mapping[str, Scalar] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Accelerators:
    """Triton's `optimization.execution_accelerators`, each tuple in order of preference.

    Names and parameters are those of Triton's ONNX Runtime back end
    (https://github.com/triton-inference-server/onnxruntime_backend#onnx-runtime-with-tensorrt-optimization).

    Attributes:
        gpu: Tried if the model may run on a GPU.
        cpu: Tried on the CPU.
    """

    gpu: tuple[Accelerator, ...] = ()
    cpu: tuple[Accelerator, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all accelerators."""
        return tuple(each.name for each in self.gpu + self.cpu)


@dataclass(frozen=True, slots=True)
class PictureConfig:
    """mqinfer's own keys: how pictures and points become inputs, and what outputs mean.

    Attributes:
        image: How a picture becomes an input; None: discovered.
        images: Contracts of each of several inputs, the first among them.
        points: Contracts of the inputs that take points.
        classes: Classes of the mask or the classifier, in the order of their numbers.
        segmentation: How logits become a mask in the worker; None: outputs stay as they are.
        classification: How logits become probabilities in the worker; None: outputs stay as they are.
        detection: How raw boxes are reduced to the best ones in the worker; None: outputs stay as they are.
    """

    image: ImageContract | None = None
    images: tuple[ImageContract, ...] = ()
    points: tuple[PointsContract, ...] = ()
    classes: tuple[ClassInfo, ...] = ()
    segmentation: Segmentation | None = None
    classification: Classification | None = None
    detection: Detection | None = None


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """One model's configuration; the default of every field means "discover it from the model".

    Attributes:
        name: The folder's name, which it must equal.
        backend: Triton's `backend` or `platform`; None: by the file's name.
        max_batch_size: 0 for a model without a batch axis; None: discovered.
        dynamic_batching: None: the worker adapts by measuring.
        instance_group: Processes and devices.
        version_policy: Which versions are served.
        model_warmup: Runs before `ready`.
        default_model_filename: File or folder within the version's folder; None: the usual names.
        parameters: `signature` (SavedModel), `intra_op_thread_count`, `precision` (for the card), those of engines.
        input: Shapes of inputs that the file leaves open.
        output: The outputs of a frozen graph; of other models shapes that the file leaves open.
        optimization: Accelerators of the engine.
        ensemble_scheduling: The steps of an ensemble; empty: the model is none.
        pictures: Tables of mqinfer's own: how pictures and points become inputs, and what outputs mean.
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
    pictures: PictureConfig = field(default_factory=PictureConfig)

    def devices(self, requested: str = "auto", instances: int | None = None) -> tuple[str, ...]:
        """Return the device of every instance, group by group.

        Args:
            requested: The operator's device for all of them; `auto`: those of the groups.
            instances: Number of instances in place of that of the groups.
        """
        own = tuple(device for group in self.instance_group for device in group.devices())
        if instances:
            own = tuple(islice(cycle(own), instances))
        return own if requested == "auto" else (requested,) * len(own)
