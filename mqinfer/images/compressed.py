"""Decode `sensor_msgs/CompressedImage`: its format string, and the pixels in its bytes.

The string is free-form. In practice it is one of those that `compressed_image_transport` and
`compressed_depth_image_transport` (ros-perception/image_transport_plugins) read: `jpeg`, `rgb8; jpeg compressed bgr8`,
`bayer_rggb8; jpeg compressed`, `16UC1; compressedDepth png`.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqinfer.codecs.image import ImageInfo, check_complete, probe_image
from mqinfer.codecs.opencv import opencv
from mqinfer.images.picture import CompressedImage
from mqinfer.images.pixel_format import ColourModel, PixelFormat, parse_encoding
from mqinfer.protocol.errors import BadImage, InvalidRequest, LimitExceeded
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import Buffer
from mqinfer.value_object import value_object

_DEPTH_HEADER = struct.Struct("<iff")
"""`ConfigHeader` of compressed_depth_image_transport: format, and the two parameters of the quantisation."""


@value_object()
class CompressedFormat:
    """A parsed format string.

    Attributes:
        original: Encoding before compression (`bayer_rggb8`), or empty.
        is_depth: Whether a 12-byte header stands before the picture.
        is_swapped: Whether red and blue are swapped inside the picture.
    """

    original: str
    is_depth: bool
    is_swapped: bool


def parse_format(text: str) -> CompressedFormat:
    """Parse a format string; one without known words gives an empty description.

    `compressed rgb8` means that the sender passed RGB to an encoder that expects BGR, so red and blue are swapped. The
    usual `compressed bgr8`, and no word at all, mean true colours.
    """
    original, separator, rest = text.partition(";")
    words = rest.split() if separator else text.split()
    return CompressedFormat(
        original=original.strip() if separator else "",
        is_depth="compressedDepth" in words,
        is_swapped=bool(words) and words[-1].startswith("rgb"),
    )


def decode_compressed(image: CompressedImage, limits: Limits) -> tuple[NDArray[Any], PixelFormat]:
    """Decode a JPEG or PNG; the bytes decide which one it is, not the format string.

    Returns:
        The samples in native byte order, colours as RGB or RGBA, and their pixel format.

    Raises:
        BadImage: Neither JPEG nor PNG, damaged, or above a limit.
    """
    declared = parse_format(image.format)
    if declared.is_depth:
        return _decode_depth(image, declared, limits)
    array = _decode_picture(image.data, image.format, limits)
    if array.ndim == 2:
        return array, _grey_format(declared.original, array)
    return _to_rgb_order(array, is_swapped=declared.is_swapped)


def picture_size(image: CompressedImage) -> tuple[int, int]:
    """Return width and height from a picture's header; `(0, 0)` if it can't be read."""
    offset = _DEPTH_HEADER.size if parse_format(image.format).is_depth else 0
    try:
        info = probe_image(memoryview(image.data)[offset:])
    except InvalidRequest:
        return 0, 0
    return info.width, info.height


def _grey_format(original: str, array: NDArray[Any]) -> PixelFormat:
    """Return the format of a one-channel picture: mosaic or depth if the sender compressed one, else grey."""
    bits = 8 * array.itemsize
    if original.startswith("bayer_"):
        return parse_encoding(f"{original.rstrip('168')}{bits}")
    if original == "16UC1" and bits == 16:
        return parse_encoding(original)
    return parse_encoding(f"mono{bits}")


def _to_rgb_order(array: NDArray[Any], *, is_swapped: bool) -> tuple[NDArray[Any], PixelFormat]:
    cv2, channels = opencv(), array.shape[2]
    name = f"{'rgb' if channels == 3 else 'rgba'}{8 * array.itemsize}"
    if not is_swapped:
        array = cv2.cvtColor(array, cv2.COLOR_BGR2RGB if channels == 3 else cv2.COLOR_BGRA2RGBA)
    return array, parse_encoding(name)


def _decode_depth(
    image: CompressedImage, declared: CompressedFormat, limits: Limits
) -> tuple[NDArray[Any], PixelFormat]:
    """Decode `compressedDepth`: a 12-byte header, then a 16-bit PNG.

    For `32FC1` the PNG holds quantised inverse depth: depth = a / (value - b), and 0 stands for "no reading" (NaN).
    """
    data = memoryview(image.data)
    if data.nbytes <= _DEPTH_HEADER.size:
        raise BadImage(
            f"{image.format!r} image of {data.nbytes} bytes: shorter than its {_DEPTH_HEADER.size}-byte header"
        )
    _, a, b = _DEPTH_HEADER.unpack_from(data)
    array = _decode_picture(data[_DEPTH_HEADER.size :], image.format, limits)
    if array.ndim != 2:
        raise BadImage(f"{image.format!r} image of {data.nbytes} bytes: depth has 1 channel, not {array.shape[2]}")
    if declared.original != "32FC1":
        return array, PixelFormat(declared.original, ColourModel.VALUES, f"u{array.itemsize}", 1)
    depth = np.full(array.shape, np.nan, np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):  # a damaged header may mean a zero divisor: infinity is fine
        np.divide(np.float32(a), array.astype(np.float32) - np.float32(b), out=depth, where=array != 0)
    return depth, parse_encoding("32FC1")


def _decode_picture(data: Buffer, declared: str, limits: Limits) -> NDArray[Any]:
    cv2 = opencv()
    try:
        info = probe_image(data)
        _check_pixels(info, limits)
        pixels = check_complete(data, info, trusted=True)
        # UNCHANGED keeps 16 bits and alpha, and ignores a rotation in EXIF: the model expects what the sensor saw.
        array: NDArray[Any] | None = cv2.imdecode(np.frombuffer(pixels, np.uint8), cv2.IMREAD_UNCHANGED)
    except (InvalidRequest, cv2.error) as failed:
        raise BadImage(f"{declared!r} image of {memoryview(data).nbytes} bytes: {failed}") from failed
    if array is None or array.shape[:2] != (info.height, info.width):
        raise BadImage(f"{declared!r} image of {memoryview(data).nbytes} bytes: the {info.format} is corrupt")
    return array


def _check_pixels(info: ImageInfo, limits: Limits) -> None:
    if info.width * info.height > limits.image_pixels:
        raise LimitExceeded(f"{info.width}x{info.height} pixels; at most {limits.image_pixels} are accepted")
