"""A picture as a program has it, file, bytes or array, as the tensor that travels."""

from __future__ import annotations

from contextlib import suppress
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec.structs import replace

from mqinfer.codecs import encode_tensor, encoded_image
from mqinfer.images.placement import Placement, place
from mqinfer.protocol.card import ColourOrder, ImageContract, ModelCard
from mqinfer.protocol.datatypes import Buffer, Datatype
from mqinfer.protocol.errors import BadEncoding, BadTensor, MissingExtra
from mqinfer.protocol.header import IMAGE_ENCODING
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import EncodedTensor
from mqinfer.toml_files import read_bytes

PictureInput = str | PathLike[str] | bytes | bytearray | memoryview | npt.NDArray[Any]
"""Path of a JPEG or PNG, the bytes of one, or pixels `[height, width, 3]` in RGB order or `[height, width]`."""
_Kinds = dict[tuple[str, tuple[int, ...]], str]
_COLOURS: _Kinds = {("|u1", (3,)): "rgb8", ("|u1", ()): "mono8", ("<u2", (3,)): "rgb16", ("<u2", ()): "mono16"}
_DEPTHS: _Kinds = {("<u2", ()): "16UC1", ("<f4", ()): "32FC1"}


def begins_picture(data: Buffer) -> bool:
    """Return whether bytes are the file of a picture, a JPEG or PNG, since some senders state no type."""
    return bytes(memoryview(data)[:3]) in {b"\xff\xd8\xff", b"\x89PN"}


def picture_file(name: str, data: Buffer) -> EncodedTensor:
    """Return a JPEG or PNG as a tensor; nothing but its header is read.

    Raises:
        BadEncoding: It is neither, or of a kind that receivers refuse (12 bits).
    """
    tensor = encoded_image(name, data)
    channels = "rgb" if len(tensor.shape) == 4 else "mono"
    bits = 16 if tensor.datatype is Datatype.UINT16 else 8
    return replace(tensor, parameters={IMAGE_ENCODING: f"{channels}{bits}"})


def picture_tensor(
    picture: PictureInput, contract: ImageContract, encoding: str = "raw"
) -> tuple[EncodedTensor, Placement]:
    """Return a picture as a tensor, and where it lies in what the model sees.

    An array that is larger than the model's picture is made smaller, where OpenCV is there; else the worker does it.

    Args:
        picture: A path, bytes or pixels; of a model that takes depth also uint16 in millimetres or float32 in metres.
        contract: Of the model's input.
        encoding: Codec of an array.

    Raises:
        BadTensor: It is no picture.
        OSError: The file can't be read.
    """
    if isinstance(picture, np.ndarray):
        tensor, (height, width) = _pixels(picture, contract, encoding), picture.shape[:2]
    else:
        tensor = _file(picture, contract.input)
        height, width = tensor.shape[1:3]
    return tensor, Placement.in_model(contract, width, height)


def _file(picture: object, name: str) -> EncodedTensor:
    most = DEFAULT_LIMITS.payload_bytes
    data = read_bytes(Path(picture), most) if isinstance(picture, str | PathLike) else picture
    if not isinstance(data, bytes | bytearray | memoryview):  # such as the None of OpenCV for a file that it can't read
        expected = "expected a path, the bytes of a JPEG or PNG, or an array of its pixels"
        raise BadTensor(f"a picture of type {type(data).__name__}: {expected}")
    try:
        return picture_file(name, data)
    except BadEncoding as error:
        what = f"{len(data)} bytes" if data is picture else str(picture)
        raise BadTensor(f"{what}: {error}; expected a JPEG or PNG, or an array of its pixels") from error


def _pixels(picture: npt.NDArray[Any], contract: ImageContract, encoding: str) -> EncodedTensor:
    pixels = picture[:, :, 0] if picture.shape[2:] == (1,) else picture
    kind = _kind(pixels, contract)
    height, width = pixels.shape[:2]
    is_larger = (contract.width or width) <= width and (contract.height or height) <= height
    if is_larger and not kind.endswith("16"):  # the worker makes 8 bits of 16 first
        with suppress(MissingExtra):
            pixels = place(pixels, contract)
    return encode_tensor(contract.input, pixels[np.newaxis], encoding, {IMAGE_ENCODING: kind})


def _kind(pixels: npt.NDArray[Any], contract: ImageContract) -> str:
    kinds, wanted = _COLOURS, "[height, width, 3] in RGB order or [height, width], of uint8 or uint16"
    if contract.colour is ColourOrder.DEPTH:
        kinds, wanted = _DEPTHS, "[height, width] of uint16 in millimetres or float32 in metres"
    found = kinds.get((pixels.dtype.newbyteorder("<").str, pixels.shape[2:]))
    if found is None or pixels.ndim < 2 or not pixels.size:
        raise BadTensor(f"a picture of {pixels.dtype} {list(pixels.shape)}: expected {wanted}")
    return found


def offer_contract(card: ModelCard) -> str:
    """Return why a model takes no pictures, and the line that its `model.toml` needs if an input has their shape."""
    listed = ", ".join(f"{spec.name} {spec.datatype}{list(spec.shape)}" for spec in card.inputs)
    said = f"model {card.name!r} takes no pictures; its inputs are {listed}"
    for spec in card.inputs:
        axes = spec.shape[-3:]
        if spec.datatype in {Datatype.BYTES, Datatype.BOOL} or len(spec.shape) not in {3, 4}:
            continue
        is_first = axes[0] in {1, 3} or (axes[2] not in {1, 3} and not card.platform.startswith("tensorflow"))
        if axes[0 if is_first else 2] in {-1, 1, 3}:
            layout = "NCHW" if is_first else "NHWC"
            return (
                f"{said}; if {spec.name!r} takes one, begin its model.toml with the line: image = "
                f'{{ input = "{spec.name}", layout = "{layout}", scale = 1 }}, or 0.00392157 where it expects 0 to 1'
            )
    return said
