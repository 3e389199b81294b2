"""What a model says of itself: the card that workers publish, retained, as JSON.

The JSON is the Open Inference Protocol's model metadata, with everything else under `parameters`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, TypeVar

from mqinfer.protocol.datatypes import datatype_named
from mqinfer.protocol.errors import BadEnvelope, LimitExceeded
from mqinfer.protocol.fields import Record, array, integer, number, numbers, record, records, text, texts
from mqinfer.protocol.json_text import parse_object, write_object
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import Buffer, TensorSpec

__all__ = [
    "ClassInfo",
    "ColourOrder",
    "ImageContract",
    "Layout",
    "ModelCard",
    "card_from_json",
    "card_to_json",
]


class ColourOrder(StrEnum):
    """Order of the channels that a model wants."""

    RGB = "rgb"
    BGR = "bgr"
    MONO = "mono"


class Layout(StrEnum):
    """Order of the axes that a model wants (Triton: FORMAT_NHWC, FORMAT_NCHW)."""

    NHWC = "NHWC"
    NCHW = "NCHW"
    NHW = "NHW"


@dataclass(frozen=True, slots=True)
class ImageContract:
    """How a picture becomes one of the model's inputs.

    The value that the model sees is `(pixel * scale - mean) / std`, with `pixel` of 0 to 255; the sender does the
    resizing, the worker the rest, so that uint8 travels.

    Attributes:
        input: Name of the input.
        width: In pixels; None where the model takes any.
        height: In pixels; None where the model takes any.
        colour: Order of the channels.
        layout: Order of the axes.
        scale: Factor on the pixel.
        mean: Subtracted after scaling: one number a channel, or one for all.
        std: Divided by after that: one number a channel, or one for all.
    """

    input: str
    width: int | None = None
    height: int | None = None
    colour: ColourOrder = ColourOrder.RGB
    layout: Layout = Layout.NHWC
    scale: float = 1.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, slots=True)
class ClassInfo:
    """A class of a classifier or of a segmentation mask: its name, and the RGB colour to draw it in."""

    name: str
    colour: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Model metadata in the Open Inference Protocol's words, and what else a sender needs to know.

    Attributes:
        name: The model.
        version: The version that this card describes.
        versions: All versions being served.
        platform: `tensorflow_graphdef`, `tensorflow_savedmodel`, `onnx_onnxv1`, …
        inputs: With their batch axis, -1 where any size will do.
        outputs: Likewise.
        max_batch_size: 0 where the model has no batch axis (Triton's meaning).
        encodings: Codecs that the worker can decode.
        image: How a picture becomes an input, or None where the model takes no pictures.
        classes: Of the mask or of the classifier, in the order of their numbers.
        model_hash: Content hash of the model's files, `sha256:` and 64 hex digits.
        precision: Of the computation, such as `fp32`.
        backend: What runs it, with its version.
        device: What it really runs on, such as `cpu` or `cuda:0`.
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


_WHERE = "model card"
_MAX_CARD_BYTES = 1 << 20
_Choice = TypeVar("_Choice", bound=StrEnum)


def card_to_json(card: ModelCard) -> bytes:
    """Write a card.

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
    if card.classes:
        parameters["classes"] = [{"name": entry.name, "colour": entry.colour} for entry in card.classes]
    metadata = {
        "name": card.name,
        "versions": card.versions,
        "platform": card.platform,
        "inputs": _spec_records(card.inputs),
        "outputs": _spec_records(card.outputs),
        "parameters": parameters,
    }
    return write_object(metadata, f"card of model {card.name!r}")


def card_from_json(payload: Buffer) -> ModelCard:
    """Read a card.

    Raises:
        BadEnvelope: It is no model card: what is missing or of the wrong type is named.
        BadTensor: It names a datatype that does not exist.
        LimitExceeded: It is longer than 1 MiB, or wants larger pictures than any receiver takes.
    """
    card = parse_object(payload, _WHERE, _MAX_CARD_BYTES)
    parameters = record(card, "parameters", _WHERE)
    versions = texts(card, "versions", _WHERE)
    return ModelCard(
        name=text(card, "name", _WHERE),
        version=text(parameters, "version", _WHERE, versions[-1] if versions else ""),
        versions=versions,
        platform=text(card, "platform", _WHERE),
        inputs=_specs(card, "inputs"),
        outputs=_specs(card, "outputs"),
        max_batch_size=integer(parameters, "max_batch_size", _WHERE, 0),
        encodings=texts(parameters, "encodings", _WHERE) or ("raw",),
        image=_image(record(parameters, "image", _WHERE)) if "image" in parameters else None,
        classes=tuple(_class_info(entry) for entry in records(parameters, "classes", _WHERE)),
        model_hash=text(parameters, "model_hash", _WHERE, ""),
        precision=text(parameters, "precision", _WHERE, "fp32"),
        backend=text(parameters, "backend", _WHERE, ""),
        device=text(parameters, "device", _WHERE, "cpu"),
    )


def _spec_records(specs: Sequence[TensorSpec]) -> list[dict[str, Any]]:
    return [{"name": spec.name, "datatype": spec.datatype, "shape": spec.shape} for spec in specs]


def _specs(card: Record, key: str) -> tuple[TensorSpec, ...]:
    found = []
    for entry in records(card, key, _WHERE):
        name = text(entry, "name", f"{_WHERE}, {key}")
        shape = array(entry, "shape", f"{_WHERE}, {key} {name!r}")
        if any(type(size) is not int or size < -1 for size in shape):
            raise BadEnvelope(f"{_WHERE}, {key} {name!r}: every entry of a shape must be an integer, -1 for any size")
        found.append(TensorSpec(name, datatype_named(entry.get("datatype"), name), tuple(shape)))
    return tuple(found)


def _image_record(image: ImageContract) -> dict[str, Any]:
    sizes = {"width": image.width, "height": image.height}
    return {
        "input": image.input,
        **{key: size for key, size in sizes.items() if size is not None},
        "colour": image.colour,
        "layout": image.layout,
        "scale": image.scale,
        "mean": image.mean,
        "std": image.std,
    }


def _image(image: Record) -> ImageContract:
    where = f"{_WHERE}, image"
    width = integer(image, "width", where, None, 1) if "width" in image else None
    height = integer(image, "height", where, None, 1) if "height" in image else None
    if (width or 1) * (height or 1) > DEFAULT_LIMITS.image_pixels:  # a sender makes pictures of that size
        raise LimitExceeded(f"{where}: {width}x{height} pixels; at most {DEFAULT_LIMITS.image_pixels} are accepted")
    return ImageContract(
        input=text(image, "input", where),
        width=width,
        height=height,
        colour=_choice(image, "colour", where, ColourOrder.RGB),
        layout=_choice(image, "layout", where, Layout.NHWC),
        scale=number(image, "scale", where, 1.0),
        mean=numbers(image, "mean", where) or (0.0,),
        std=numbers(image, "std", where) or (1.0,),
    )


def _choice(image: Record, key: str, where: str, default: _Choice) -> _Choice:
    kind = type(default)
    value = text(image, key, where, default.value)
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise BadEnvelope(f"{where}: {key!r} is {value[:40]!r}; it must be one of {known}") from None


def _class_info(entry: Record) -> ClassInfo:
    where = f"{_WHERE}, class"
    colour = array(entry, "colour", where)
    if len(colour) != 3 or any(type(level) is not int or not 0 <= level <= 255 for level in colour):
        raise BadEnvelope(f"{where}: 'colour' must be three integers of 0 to 255")
    return ClassInfo(text(entry, "name", where), (colour[0], colour[1], colour[2]))
