"""Decode an image as it was recorded to pixels: samples in place, Bayer mosaics to colours, all to 8-bit RGB."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqinfer.images.compressed import decode_compressed, parse_format
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.images.pixel_format import (
    ColourModel,
    Demosaic,
    PixelFormat,
    colours_to_rgb,
    demosaic,
    parse_encoding,
    to_8_bits,
    true_bits,
    values_to_rgb,
)
from mqinfer.protocol.errors import BadImage
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits

_DEPTH = {"u2": "16UC1", "f4": "32FC1"}
"""Encodings of depth pictures by their samples: millimetres and metres (REP 118)."""
_SENSOR_BITS = (10, 12, 14)
"""Bits of cameras whose samples travel in 16."""


def to_rgb(
    image: RawImage | CompressedImage,
    *,
    method: Demosaic = Demosaic.BILINEAR,
    bit_depth: int | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> NDArray[np.uint8]:
    """Convert an image in any encoding to 8-bit RGB.

    16-bit light (`mono16`, `rgb16`, Bayer) is scaled linearly from its true bit depth. Values that are not light
    (`16UC1` depth, signed and floating-point samples) are stretched from the image's own minimum to its own maximum;
    what is not finite becomes black and is left out of both. An alpha channel is dropped.

    Args:
        image: As recorded.
        method: How Bayer mosaics become colours.
        bit_depth: Used bits of a 16-bit sample, such as 10, 12 or 14; None for all 16.
        limits: Bounds that are checked before memory is allocated.

    Returns:
        `[H, W, 3]`, contiguous; a read-only view on the message where that is rgb8 without padding.

    Raises:
        BadImage: Unknown encoding, too few bytes, or sizes that contradict each other.
    """
    array, pixels = _native(image, limits)
    if pixels.kind is ColourModel.VALUES:
        return values_to_rgb(array, pixels)
    depth = true_bits(pixels, bit_depth)
    if pixels.kind is ColourModel.BAYER:
        return to_8_bits(demosaic(array, pixels.pattern, method, bit_depth=depth), depth)
    return colours_to_rgb(to_8_bits(array, depth), pixels)


def to_array(image: RawImage | CompressedImage) -> NDArray[Any]:
    """Return an image's samples as they are: no demosaicing, no scaling, in native byte order.

    Returns:
        `[H, W]` or `[H, W, C]` of the encoding's sample type and channel order (a compressed colour image is RGB or
        RGBA); for `nv21` and `nv24` the planes one below the other, `[H * 3 / 2, W]` and `[H * 3, W]`. A view on the
        message's bytes where no conversion is needed.

    Raises:
        BadImage: Unknown encoding, too few bytes, or sizes that contradict each other.
    """
    return _native(image, DEFAULT_LIMITS)[0]


def is_mosaic(image: RawImage | CompressedImage) -> bool:
    """Return whether a picture says that it is a Bayer mosaic."""
    return "bayer" in (image.encoding if isinstance(image, RawImage) else image.format)


def to_mosaic(image: RawImage | CompressedImage) -> tuple[NDArray[Any], str] | None:
    """Return the samples of a Bayer mosaic as recorded, and their encoding; None where the picture is something else.

    Returns:
        `[H, W]`, uint8 or uint16, and a name such as `bayer_rggb8`.

    Raises:
        BadImage: Unknown encoding, too few bytes, or sizes that contradict each other.
    """
    if not is_mosaic(image):  # nothing is decoded for that
        return None
    array, pixels = _native(image, DEFAULT_LIMITS)
    return (array, pixels.name) if pixels.kind is ColourModel.BAYER else None


def used_bits(image: RawImage | CompressedImage) -> int | None:
    """Return which of 10, 12, 14 and 16 bits the samples of a picture need; None if they are not 16 bits of light.

    Raises:
        BadImage: It cannot be decoded.
    """
    array, pixels = _native(image, DEFAULT_LIMITS)
    if pixels.kind is ColourModel.VALUES or array.dtype != np.uint16 or not array.size:
        return None
    largest = int(array.max())
    return next((bits for bits in _SENSOR_BITS if largest < 1 << bits), 16)


def is_depth(image: RawImage | CompressedImage) -> bool:
    """Return whether a picture says that its samples are distances, and not light."""
    if isinstance(image, RawImage):
        return image.encoding in _DEPTH.values()
    declared = parse_format(image.format)
    return declared.is_depth or declared.original in _DEPTH.values()


def to_depth(image: RawImage | CompressedImage, *, limits: Limits = DEFAULT_LIMITS) -> NDArray[Any]:
    """Return the distances of a depth picture as they were recorded.

    Grey of 16 bits (`mono16`, a PNG) is taken as millimetres: files and some drivers have no other name for depth.

    Args:
        image: As recorded.
        limits: Bounds that are checked before memory is allocated.

    Returns:
        `[H, W]`, uint16 in millimetres or float32 in metres.

    Raises:
        BadImage: It is a picture of something else, or can't be decoded.
    """
    array, pixels = _native(image, limits)
    if pixels.sample not in _DEPTH or pixels.channels != 1 or pixels.kind not in {ColourModel.VALUES, ColourModel.GREY}:
        raise BadImage(
            f"{pixels.name} is no depth picture; the model takes 16UC1 or 16-bit PNG in millimetres, or 32FC1 in metres"
        )
    return array


def depth_name(depth: NDArray[Any]) -> str:
    """Return the encoding of distances, by their dtype: `16UC1` or `32FC1`."""
    return _DEPTH[depth.dtype.str[1:]]


def as_image(array: NDArray[Any], encoding: str) -> RawImage:
    """Return samples, `[H, W]` or `[H, W, C]`, as an image of an encoding; the inverse of `to_array`.

    Raises:
        BadImage: The encoding is unknown, or has other samples.
    """
    pixels, channels = parse_encoding(encoding), array.shape[2] if array.ndim == 3 else 1
    if (array.dtype.str[1:], channels) != (pixels.sample, pixels.channels):
        raise BadImage(
            f"{encoding}: expected {pixels.channels} of {np.dtype(pixels.sample)} a pixel, "
            f"got {channels} of {array.dtype}"
        )
    dense = np.ascontiguousarray(array)
    height, width = dense.shape[:2]
    return RawImage(encoding, height, width, dense.strides[0], is_bigendian=False, data=dense.data.cast("B"))


def _native(image: RawImage | CompressedImage, limits: Limits) -> tuple[NDArray[Any], PixelFormat]:
    if isinstance(image, CompressedImage):
        return decode_compressed(image, limits)
    pixels = parse_encoding(image.encoding)
    _check(image, pixels, limits)
    return _view(image, pixels), pixels


def _view(image: RawImage, pixels: PixelFormat) -> NDArray[Any]:
    if pixels.kind is ColourModel.NV24:
        return _nv24_planes(image)
    rows, width, size = pixels.rows(image.height), image.width, pixels.sample_bytes
    dtype = np.dtype(pixels.sample).newbyteorder(">" if image.is_bigendian else "<")
    array: NDArray[Any]
    if pixels.channels == 1:
        array = np.ndarray((rows, width), dtype, image.data, strides=(image.step, size))
    else:
        shape, strides = (rows, width, pixels.channels), (image.step, pixels.channels * size, size)
        array = np.ndarray(shape, dtype, image.data, strides=strides)
    return array if dtype.isnative else array.astype(dtype.newbyteorder("="))


def _nv24_planes(image: RawImage) -> NDArray[np.uint8]:
    """Put luma above chroma; a row of chroma is twice as long, in samples and in padding (V4L2, pixfmt-nv24)."""
    height, width, step = image.height, image.width, image.step
    luma: NDArray[np.uint8] = np.ndarray((height, width), np.uint8, image.data, strides=(step, 1))
    chroma: NDArray[np.uint8] = np.ndarray(
        (height, 2 * width), np.uint8, image.data, offset=height * step, strides=(2 * step, 1)
    )
    return np.concatenate([luma, chroma.reshape(2 * height, width)])


def _check(image: RawImage, pixels: PixelFormat, limits: Limits) -> None:
    what = f"{image.encoding} image of {image.width}x{image.height} with step {image.step}"
    if image.width <= 0 or image.height <= 0:
        raise BadImage(f"{what}: width and height must be positive")
    if image.width * image.height > limits.image_pixels:
        raise BadImage(f"{what}: {image.width * image.height} pixels are more than the limit of {limits.image_pixels}")
    if (row := image.width * pixels.channels * pixels.sample_bytes) > image.step:
        raise BadImage(f"{what}: a row takes {row} bytes, more than the step")
    _check_subsampling(image, pixels, what)
    held, needed = memoryview(image.data).nbytes, pixels.rows(image.height) * image.step
    if held < needed:
        raise BadImage(f"{what}: {held} bytes of data where {needed} are needed")


def _check_subsampling(image: RawImage, pixels: PixelFormat, what: str) -> None:
    if pixels.kind in (ColourModel.UYVY, ColourModel.YUYV, ColourModel.NV21) and image.width % 2:
        raise BadImage(f"{what}: two pixels share their colour, so the width must be even")
    if pixels.kind is ColourModel.NV21 and image.height % 2:
        raise BadImage(f"{what}: two rows share their colour, so the height must be even")
