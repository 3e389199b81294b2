"""A model card as JSON: the Open Inference Protocol's model metadata, with everything else under `parameters`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, TypeVar

from mqinfer.protocol.card import ClassInfo, ColourOrder, ImageContract, Layout, ModelCard
from mqinfer.protocol.errors import BadEnvelope, LimitExceeded
from mqinfer.protocol.fields import Record, array, integer, number, numbers, record, records, text, texts
from mqinfer.protocol.json_text import parse_object, write_object
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.shapes import datatype_named
from mqinfer.protocol.types import Buffer, TensorSpec

__all__ = ["card_from_json", "card_to_json"]

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
