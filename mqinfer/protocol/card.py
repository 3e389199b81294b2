"""Model cards: the metadata of a model, which its workers publish retained, as JSON.

The JSON is the Open Inference Protocol's model metadata, with everything else under `parameters`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct

from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.decoding import prepare, read_json, write_json
from mqinfer.protocol.errors import LimitExceeded
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.topics import Topics, check_same
from mqinfer.protocol.types import Buffer, Count, Finite, Positive, TensorSpec

__all__ = [
    "BAYER",
    "ClassInfo",
    "ColourOrder",
    "ImageContract",
    "Layout",
    "ModelCard",
    "Resize",
    "Signature",
    "SignatureTensor",
    "card_from_json",
    "card_to_json",
    "read_card",
]

MAX_CARD_BYTES = 1 << 20
BAYER = "bayer"
"""Among the encodings of a card: the worker demosaics as a picture's parameters `demosaic` and `bit_depth` say."""
_Channels = Annotated[tuple[Finite, ...], Meta(min_length=1)]
_Level = Annotated[int, Meta(ge=0, le=255)]


class ColourOrder(StrEnum):
    """What the channels are that a model expects, in their order."""

    RGB = "rgb"
    BGR = "bgr"
    MONO = "mono"
    DEPTH = "depth"
    """One channel: distances in metres."""


class Layout(StrEnum):
    """Order of the axes that a model expects (Triton: FORMAT_NHWC, FORMAT_NCHW)."""

    NHWC = "NHWC"
    NCHW = "NCHW"
    NHW = "NHW"


class Resize(StrEnum):
    """How a picture gets the size of the model's input."""

    STRETCH = "stretch"
    """Each axis by its own factor."""
    LETTERBOX = "letterbox"
    """Both axes by the same factor, centred, with a margin on two sides."""
    CROP = "crop"
    """Both axes by the same factor, centred, with two sides cut off."""


@dataclass(frozen=True, slots=True)
class ImageContract:
    """How a picture becomes one of the model's inputs.

    The model gets `(pixel * scale - mean) / std`, with `pixel` from 0 to 255, or in metres for depth. The sender
    resizes and the worker does the rest, so that uint8 travels, or depth as it was recorded.

    Attributes:
        input: Name of the input.
        width: In pixels; None where the model takes any.
        height: In pixels; None where the model takes any.
        colour: Order of the channels, or depth.
        layout: Order of the axes.
        scale: Factor on the pixel.
        mean: Subtracted after scaling: one number a channel, or one for all.
        std: Divisor after that: one number a channel, or one for all.
        resize: How a picture of another size fits in.
        fill: Grey level of a letterbox's margins, before scaling; those of depth are 0.
    """

    input: str
    width: Positive | None = None
    height: Positive | None = None
    colour: ColourOrder = ColourOrder.RGB
    layout: Layout = Layout.NHWC
    scale: Finite = 1.0
    mean: _Channels = (0.0,)
    std: _Channels = (1.0,)
    resize: Resize = Resize.STRETCH
    fill: _Level = 114

    @property
    def channels(self) -> int:
        """Number of channels."""
        return 1 if self.colour in {ColourOrder.MONO, ColourOrder.DEPTH} else 3

    @property
    def takes_depth(self) -> bool:
        """Whether the pictures are distances."""
        return self.colour is ColourOrder.DEPTH


@dataclass(frozen=True, slots=True)
class ClassInfo:
    """A class of a classifier or of a segmentation mask: its name, and the RGB colour to draw it in."""

    name: str
    colour: tuple[_Level, _Level, _Level]


@dataclass(frozen=True, slots=True)
class SignatureTensor:
    """An input or output of a signature, as the model's file states it.

    Attributes:
        name: By which requests and replies name it.
        datatype: Open Inference Protocol datatype.
        shape: -1 where any size will do; None where the file leaves the number of axes open.
        tensor: Its name in the model's graph, such as `x:0`.
    """

    name: str
    datatype: Datatype
    shape: tuple[Annotated[int, Meta(ge=-1)], ...] | None
    tensor: str = ""


@dataclass(frozen=True, slots=True)
class Signature:
    """One of the functions of a SavedModel; the request parameter `signature_name` chooses it.

    Attributes:
        name: Such as `serving_default`.
        method: Its `method_name`, such as `tensorflow/serving/predict`.
        inputs: What it takes.
        outputs: What it returns.
        max_batch_size: The most rows that a request may have; 0 where it has no batch axis.
    """

    name: str
    method: str = ""
    inputs: tuple[SignatureTensor, ...] = ()
    outputs: tuple[SignatureTensor, ...] = ()
    max_batch_size: Count = 0


@dataclass(frozen=True, slots=True)
class ModelCard:
    """The Open Inference Protocol's model metadata, and what else a sender needs.

    Attributes:
        name: The model.
        version: The version that this card describes.
        versions: All versions that are served.
        platform: `tensorflow_graphdef`, `tensorflow_savedmodel`, `onnx_onnxv1`, …
        inputs: With their batch axis, -1 where any size will do.
        outputs: Likewise.
        max_batch_size: 0 where the model has no batch axis (Triton's meaning).
        encodings: Codecs that the worker can decode, and `bayer` among them where it takes mosaics with their
            parameters.
        image: How a picture becomes an input, or None where the model has no input for pictures.
        images: Where it has several, those of all in the order of a request's pictures; the first is `image`.
        classes: Classes of the mask or of the classifier, in the order of their numbers.
        model_hash: Content hash of the model's files, `sha256:` and 64 hex digits.
        precision: Of the computation, such as `fp32`.
        backend: The engine that runs it, with its version.
        device: The device that it runs on, such as `cpu` or `cuda:0`.
        signatures: Of a SavedModel, those that can be asked for; first the one that runs without `signature_name`.
        labels: Versions by label: `stable`, `canary`.
        traffic: Per cent of the requests that name no version by version; empty where all go to the default one.
    """

    name: str
    version: str
    versions: tuple[str, ...]
    platform: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    max_batch_size: int = 0
    encodings: tuple[str, ...] = ("raw",)
    image: ImageContract | None = None
    classes: tuple[ClassInfo, ...] = field(default=())
    model_hash: str = ""
    precision: str = "fp32"
    backend: str = ""
    device: str = "cpu"
    signatures: tuple[Signature, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    traffic: Mapping[str, int] = field(default_factory=dict)
    images: tuple[ImageContract, ...] = ()

    @property
    def pictures(self) -> tuple[ImageContract, ...]:
        """The contracts of all inputs that take pictures."""
        return self.images or ((self.image,) if self.image is not None else ())


class _Parameters(Struct, frozen=True):
    """The fields of a card beyond the Open Inference Protocol's metadata."""

    version: str | None = None
    max_batch_size: Count = 0
    encodings: tuple[str, ...] = ("raw",)
    model_hash: str = ""
    precision: str = "fp32"
    backend: str = ""
    device: str = "cpu"
    image: ImageContract | None = None
    images: tuple[ImageContract, ...] = ()
    classes: tuple[ClassInfo, ...] = ()
    signatures: tuple[Signature, ...] = ()
    labels: Mapping[str, str] = {}
    traffic: Mapping[str, int] = {}


class _Card(Struct, frozen=True):
    name: str
    platform: str
    versions: tuple[str, ...] = ()
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    parameters: _Parameters | None = None


def card_to_json(card: ModelCard) -> bytes:
    """Return a card as JSON.

    Raises:
        BadEnvelope: A value can't be written as JSON.
    """
    parameters: dict[str, Any] = {
        "version": card.version,
        "max_batch_size": card.max_batch_size,
        "encodings": card.encodings,
        "model_hash": card.model_hash,
        "precision": card.precision,
        "backend": card.backend,
        "device": card.device,
    }
    if card.image is not None:
        parameters["image"] = _image_record(card.image)
    if card.images:
        parameters["images"] = [_image_record(each) for each in card.images]
    if card.classes:
        parameters["classes"] = [{"name": entry.name, "colour": entry.colour} for entry in card.classes]
    if card.signatures:
        parameters["signatures"] = [asdict(signature) for signature in card.signatures]
    parameters |= {key: dict(each) for key in ("labels", "traffic") if (each := getattr(card, key))}
    metadata = {
        "name": card.name,
        "versions": card.versions,
        "platform": card.platform,
        "inputs": _spec_records(card.inputs),
        "outputs": _spec_records(card.outputs),
        "parameters": parameters,
    }
    return write_json(metadata, f"card of model {card.name!r}")


def card_from_json(payload: Buffer) -> ModelCard:
    """Decode a card from JSON.

    Raises:
        BadEnvelope: A field is missing or has the wrong type.
        BadTensor: A datatype does not exist.
        LimitExceeded: It is longer than 1 MiB, or asks for larger pictures than receivers accept.
    """
    card = read_json(payload, _Card, "model card", MAX_CARD_BYTES)
    known, versions = card.parameters or _Parameters(), card.versions
    for image in (known.image, *known.images):
        if image is not None:
            _check_size(image)
    return ModelCard(
        card.name,
        known.version if known.version is not None else "".join(versions[-1:]),
        versions,
        card.platform,
        card.inputs,
        card.outputs,
        known.max_batch_size,
        known.encodings or ("raw",),
        known.image,
        known.classes,
        known.model_hash,
        known.precision,
        known.backend,
        known.device,
        known.signatures,
        known.labels,
        known.traffic,
        known.images,
    )


def read_card(topics: Topics, topic: str, payload: Buffer) -> tuple[str, ModelCard | None]:
    """Return the model that a card topic names, and its card; None where an empty payload removes it.

    Raises:
        BadTopic: It is no topic of a card, or the card names another model.
        BadEnvelope, BadTensor, LimitExceeded: As for `card_from_json`.
    """
    model = topics.card.parse(topic)["model"]
    card = card_from_json(payload) if payload else None
    return check_same("model", model, card.name if card else model), card


def _spec_records(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": spec.name, "datatype": spec.datatype, "shape": spec.shape} for spec in specs]


def _image_record(image: ImageContract) -> dict[str, Any]:
    sizes = {"width": image.width, "height": image.height}
    resize: dict[str, Any] = {} if image.resize is Resize.STRETCH else {"resize": image.resize}
    if image.resize is Resize.LETTERBOX:
        resize["fill"] = image.fill
    return {
        "input": image.input,
        **{key: size for key, size in sizes.items() if size is not None},
        "colour": image.colour,
        "layout": image.layout,
        "scale": image.scale,
        "mean": image.mean,
        "std": image.std,
        **resize,
    }


def _check_size(image: ImageContract) -> None:
    pixels = (image.width or 1) * (image.height or 1)
    if pixels > DEFAULT_LIMITS.image_pixels:  # senders resize their pictures to it
        raise LimitExceeded(
            f"model card: pictures of {image.width}x{image.height} pixels; at most {DEFAULT_LIMITS.image_pixels} are"
            " accepted"
        )


prepare(_Card)
