"""`jpeg` and `png`: pictures of 8 bits (PNG also 16), grey or RGB, through OpenCV.

The header is read and compared with the declared shape and the limits before anything is decoded: a JPEG of 691 bytes
once made OpenCV allocate 5 GB. ICC profiles and EXIF orientation are ignored: the pixels are returned as stored.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from mqinfer.codecs.codec import Encoded, Traits
from mqinfer.codecs.opencv import opencv
from mqinfer.codecs.probe import ImageInfo, check_complete, probe_image
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import BadEncoding, LimitExceeded
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import Buffer, EncodedTensor, Scalar

ReadPicture = Callable[[Buffer, ImageInfo], Array | None]
"""Decodes a picture with a checked header to [H, W] or [H, W, channels], in RGB order; None if it is corrupt."""

_DATATYPES = {8: Datatype.UINT8, 16: Datatype.UINT16}
_TRAITS = {
    "jpeg": Traits(range(1, 101), default_level=90, is_lossy=True, share=0.06, package="cv2", auto_colours=True),
    "png": Traits(range(10), default_level=1, share=0.5, package="cv2", auto_colours=True),
}
_DTYPES = {"jpeg": (np.uint8,), "png": (np.uint8, np.uint16)}
_RULE = {"jpeg": "UINT8", "png": "UINT8 or UINT16"}


def encoded_image(name: str, data: Buffer, parameters: Mapping[str, Scalar] | None = None) -> EncodedTensor:
    """Return a JPEG or PNG file as a tensor, without decoding it.

    Args:
        name: Name of the model's input.
        data: The whole file.
        parameters: Further parameters of the tensor.

    Returns:
        A tensor of shape [1, H, W, 3], or [1, H, W] for grey.

    Raises:
        BadEncoding: It is neither JPEG nor PNG, or of a kind that receivers refuse (alpha, CMYK, 12 bits).
    """
    info = probe_image(data)
    _check_kind(name, info)
    shape = (1, info.height, info.width) + ((3,) if info.channels == 3 else ())
    return EncodedTensor(name, _DATATYPES[info.bits], shape, info.format, data, parameters or {})


def read_with_opencv(data: Buffer, info: ImageInfo) -> Array | None:
    """Decode a picture on the CPU; the default `ReadPicture`.

    Raises:
        MissingExtra: OpenCV is not installed.
    """
    cv2 = opencv()
    colour = cv2.IMREAD_COLOR_RGB if info.channels == 3 else cv2.IMREAD_GRAYSCALE
    flags = colour | cv2.IMREAD_ANYDEPTH | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        picture: Array | None = cv2.imdecode(np.frombuffer(data, np.uint8), flags)
    except cv2.error:
        return None
    return picture


@dataclass(frozen=True, slots=True)
class ImageCodec:
    """The codecs `jpeg` and `png`, for [H, W], [H, W, 1] or [H, W, 3] in RGB order, with an optional leading axis of 1.

    Attributes:
        format: `jpeg` (levels are its quality, 1 to 100) or `png` (levels are zlib's, 0 to 9).
        read: The decoder.
    """

    format: str
    read: ReadPicture = read_with_opencv

    @property
    def traits(self) -> Traits:
        """Levels are the quality of a JPEG, or the compression of a PNG."""
        return _TRAITS[self.format]

    def encode(self, name: str, array: Array, level: int | None) -> Encoded:
        """Encode a picture."""
        cv2 = opencv()
        picture = self._picture(name, array)
        wanted = self.traits.default_level if level is None else level
        option = cv2.IMWRITE_JPEG_QUALITY if self.format == "jpeg" else cv2.IMWRITE_PNG_COMPRESSION
        try:
            stored = cv2.cvtColor(picture, cv2.COLOR_RGB2BGR) if picture.ndim == 3 else picture
            done, data = cv2.imencode("." + self.format, stored, [option, wanted])
        except cv2.error as error:
            raise BadEncoding(f"tensor {name!r}: OpenCV can't encode it as {self.format}: {error}") from error
        if not done:
            raise BadEncoding(f"tensor {name!r}: OpenCV can't encode it as {self.format}")
        return Encoded(data.reshape(-1).data)

    def decode(self, tensor: EncodedTensor, limits: Limits) -> Array:
        """Decode a picture."""
        info = probe_image(tensor.data)
        self._check_declared(tensor, info)
        if info.height * info.width > limits.image_pixels:
            raise LimitExceeded(
                f"tensor {tensor.name!r}: {info.width}x{info.height} pixels; at most {limits.image_pixels} are accepted"
            )
        picture = self.read(check_complete(tensor.data, info), info)
        pixels = info.height * info.width * info.channels
        if picture is None or picture.size * picture.itemsize != pixels * info.bits // 8:
            raise BadEncoding(f"tensor {tensor.name!r}: the {info.format} of {len(tensor.data)} bytes is corrupt")
        return picture.reshape(tensor.shape)

    def _picture(self, name: str, array: Array) -> Array:
        """Return the array without the batch axis and without the axis of a single channel."""
        shape = array.shape[1:] if _is_batch_of_one(array.shape) else array.shape
        grey = len(shape) == 2 or (len(shape) == 3 and shape[2] == 1)
        if not (grey or (len(shape) == 3 and shape[2] == 3)) or 0 in shape or array.dtype not in _DTYPES[self.format]:
            raise BadEncoding(
                f"tensor {name!r}: {self.format} takes {_RULE[self.format]} of shape [H, W], [H, W, 1] or [H, W, 3],"
                f" with an optional leading 1, not {array.dtype} of {list(array.shape)}; use lz4 or raw"
            )
        return np.ascontiguousarray(array).reshape(shape[:2] if grey else shape)

    def _check_declared(self, tensor: EncodedTensor, info: ImageInfo) -> None:
        if info.format != self.format:
            raise BadEncoding(f"tensor {tensor.name!r}: encoding is {self.format}, but the bytes are {info.format}")
        _check_kind(tensor.name, info)
        size = (info.height, info.width)
        frames = (size, (*size, 1)) if info.channels == 1 else ((*size, 3),)
        if tensor.shape not in (*frames, *((1, *frame) for frame in frames)):
            raise BadEncoding(
                f"tensor {tensor.name!r}: shape {list(tensor.shape)} is declared, but the {info.format} has"
                f" {info.height} rows, {info.width} columns and {info.channels} channels"
            )
        if tensor.datatype is not _DATATYPES[info.bits]:
            raise BadEncoding(
                f"tensor {tensor.name!r}: {tensor.datatype} is declared, but samples have {info.bits} bits"
            )


def _is_batch_of_one(shape: tuple[int, ...]) -> bool:
    """Return whether the first axis is a batch axis; [1, W, 3] is one row of colour rather than a grey picture."""
    return shape[:1] == (1,) and (len(shape) == 4 or (len(shape) == 3 and shape[2] not in (1, 3)))


def _check_kind(name: str, info: ImageInfo) -> None:
    if info.channels not in (1, 3) or info.bits not in _DATATYPES:
        raise BadEncoding(
            f"tensor {name!r}: {info.format} with {info.channels} channels of {info.bits} bits is not supported;"
            " save it as 8-bit grey or RGB, without alpha"
        )
