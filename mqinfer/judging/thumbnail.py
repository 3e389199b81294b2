"""Small pictures of frames, and how much two of them differ: cheap enough for every frame of a camera."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.codecs import ImageInfo, probe_image
from mqinfer.codecs.image import check_complete
from mqinfer.codecs.opencv import opencv
from mqinfer.images.compressed import parse_format
from mqinfer.images.decode import to_array, to_rgb
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.images.pixel_format import ColourModel, PixelFormat, parse_encoding, to_8_bits, true_bits
from mqinfer.protocol.errors import BadEncoding, BadImage, InvalidRequest
from mqinfer.protocol.limits import DEFAULT_LIMITS

SIDE = 50
"""Width and height of a thumbnail in pixels, as in NoScope."""
_LEAST_HALVED = 3 * SIDE
"""A picture of this many pixels a side or more is halved before it is averaged over areas."""
_LEAST_REDUCED = 2 * SIDE
"""A JPEG is decoded at half, a quarter or an eighth of its size if that leaves so many pixels a side."""

Thumbnail = npt.NDArray[np.uint8]
"""RGB `[50, 50, 3]`."""


def thumbnail(image: RawImage | CompressedImage, bit_depth: int | None = None) -> Thumbnail:
    """Return a picture as 50x50 RGB, each pixel the mean of its area; decode no more of it than that needs.

    A JPEG is decoded at reduced scale. Of a Bayer mosaic red, green and blue are averaged where they are, without
    demosaicing.

    Args:
        image: As it was recorded.
        bit_depth: Used bits of 16-bit samples; None for all.

    Raises:
        BadImage: It can't be decoded.
    """
    if isinstance(image, CompressedImage):
        reduced = _reduced_jpeg(image)
        return _shrink(to_rgb(image, bit_depth=bit_depth) if reduced is None else reduced)
    pixels = parse_encoding(image.encoding)
    if pixels.kind is ColourModel.BAYER and min(image.width, image.height) >= 4:
        return _shrink_mosaic(to_array(image), pixels, bit_depth)
    if image.encoding == "bgr8":
        return opencv().cvtColor(_shrink(to_array(image)), opencv().COLOR_BGR2RGB)  # type: ignore[no-any-return]
    return _shrink(to_rgb(image, bit_depth=bit_depth))


def difference(one: Thumbnail, other: Thumbnail, blocks: int = 1) -> float:
    """Return the mean squared error of two thumbnails, whose values are 0 to 255.

    Args:
        one: A thumbnail.
        other: Another one.
        blocks: Divides the picture into so many rows and columns; the largest error of a block is returned.
    """
    errors = np.subtract(one, other, dtype=np.float32)
    np.multiply(errors, errors, out=errors)
    if blocks == 1:
        return float(errors.mean())
    side = SIDE // blocks
    return float(errors.reshape(blocks, side, blocks, side, 3).mean(axis=(1, 3, 4)).max())


def _shrink(pixels: npt.NDArray[Any]) -> Thumbnail:
    """Average a picture over areas; in halves first, which OpenCV does ten times faster than other factors."""
    cv2 = opencv()
    while min(pixels.shape[:2]) >= _LEAST_HALVED:
        pixels = _halved(pixels)
    return cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_AREA)  # type: ignore[no-any-return]


def _halved(pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    cv2 = opencv()
    height, width = (size // 2 for size in pixels.shape[:2])
    even = pixels[: 2 * height, : 2 * width]
    return cv2.resize(even, (width, height), interpolation=cv2.INTER_AREA)  # type: ignore[no-any-return]


def _shrink_mosaic(mosaic: npt.NDArray[Any], pixels: PixelFormat, bit_depth: int | None) -> Thumbnail:
    """Average each colour of a mosaic on its own; of a tall one every second row of each colour is enough."""
    cv2 = opencv()
    step = 4 if min(mosaic.shape) >= 2 * _LEAST_HALVED else 2
    height, width = mosaic.shape[0] // step, mosaic.shape[1] // 2
    planes = [np.ascontiguousarray(mosaic[i // 2 :: step, i % 2 :: 2][:height, :width]) for i in range(4)]
    red, blue = (planes[pixels.pattern.index(colour)] for colour in "rb")
    greens = [plane for plane, colour in zip(planes, pixels.pattern, strict=True) if colour == "g"]
    colours = cv2.merge([red, cv2.addWeighted(greens[0], 0.5, greens[1], 0.5, 0.0), blue])
    return _shrink(to_8_bits(colours, true_bits(pixels, bit_depth)))


def _reduced_jpeg(image: CompressedImage) -> npt.NDArray[np.uint8] | None:
    """Decode a colour JPEG at reduced scale; None for what is none, or is too small."""
    declared = parse_format(image.format)
    if declared.is_depth or declared.original.startswith("bayer"):
        return None
    try:
        info = probe_image(image.data)
    except BadEncoding as error:
        raise BadImage(str(error)) from error
    factor = _reduction(info)
    if factor is None:
        return None
    cv2 = opencv()
    flags = getattr(cv2, f"IMREAD_REDUCED_COLOR_{factor}") | cv2.IMREAD_IGNORE_ORIENTATION
    try:
        whole = check_complete(image.data, info, trusted=True)
        pixels: npt.NDArray[np.uint8] | None = cv2.imdecode(np.frombuffer(whole, np.uint8), flags)
    except (InvalidRequest, cv2.error) as error:
        raise BadImage(f"{image.format!r} image of {len(image.data)} bytes: {error}") from error
    if pixels is None:
        raise BadImage(f"{image.format!r} image of {len(image.data)} bytes: the jpeg is corrupt")
    return pixels if declared.is_swapped else np.ascontiguousarray(pixels[:, :, ::-1])


def _reduction(info: ImageInfo) -> int | None:
    """Return the largest factor by which a JPEG is decoded smaller; None for what is none, or is too small."""
    side = min(info.width, info.height)
    if info.format != "jpeg" or info.width * info.height > DEFAULT_LIMITS.image_pixels:
        return None
    return next((each for each in (8, 4, 2) if side >= each * _LEAST_REDUCED), None)
