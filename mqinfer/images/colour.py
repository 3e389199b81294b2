"""Convert samples to 8-bit RGB: bit depths, colour orders, YUV, and values that are no light."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqinfer.codecs.opencv import opencv
from mqinfer.images.pixel_format import ColourModel, PixelFormat
from mqinfer.protocol.errors import BadImage

_BIT_DEPTHS = range(8, 17)


def true_bits(pixels: PixelFormat, bit_depth: int | None) -> int:
    """Return the used bits of each sample.

    Raises:
        BadImage: A 16-bit sample can't have so many.
    """
    if pixels.sample_bytes == 1:
        return 8
    depth = 16 if bit_depth is None else bit_depth
    if depth not in _BIT_DEPTHS:
        raise BadImage(f"a bit depth of {depth} is not possible for {pixels.name}: expected 8 to 16")
    return depth


def to_8_bits(array: NDArray[Any], depth: int) -> NDArray[np.uint8]:
    """Map 0..2^depth-1 linearly to 0..255, rounded; anything brighter becomes 255.

    Raises:
        BadImage: The samples are neither uint8 nor uint16.
    """
    if array.dtype == np.uint8:
        return array
    if array.dtype != np.uint16:
        raise BadImage(f"samples of {array.dtype} have no colour scale; send the array as it is")
    scaled: NDArray[np.uint8] = opencv().convertScaleAbs(np.ascontiguousarray(array), alpha=255.0 / ((1 << depth) - 1))
    return scaled


def colours_to_rgb(array: NDArray[np.uint8], pixels: PixelFormat) -> NDArray[np.uint8]:
    """Convert 8-bit samples of any colour order, or of YUV, to `[H, W, 3]` RGB."""
    cv2 = opencv()
    if pixels.kind is ColourModel.NV24:
        return _nv24(array)
    codes = {
        (ColourModel.GREY, 1): cv2.COLOR_GRAY2RGB,
        (ColourModel.RGB, 4): cv2.COLOR_RGBA2RGB,
        (ColourModel.BGR, 3): cv2.COLOR_BGR2RGB,
        (ColourModel.BGR, 4): cv2.COLOR_BGRA2RGB,
        (ColourModel.UYVY, 2): cv2.COLOR_YUV2RGB_UYVY,
        (ColourModel.YUYV, 2): cv2.COLOR_YUV2RGB_YUY2,
        (ColourModel.NV21, 1): cv2.COLOR_YUV2RGB_NV21,
    }
    code = codes.get((pixels.kind, pixels.channels))
    if code is None:  # it is RGB already
        return np.ascontiguousarray(array)
    rgb: NDArray[np.uint8] = cv2.cvtColor(np.ascontiguousarray(array), code)
    return rgb


def _nv24(planes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Convert full-resolution Y and interleaved UV planes, which OpenCV can't.

    BT.601 with video range, the same matrix that OpenCV uses for the other YUV encodings.
    """
    height, width = planes.shape[0] // 3, planes.shape[1]
    luma = 1.164383 * (np.maximum(planes[:height], 16).astype(np.float32) - 16.0)
    chroma = planes[height:].reshape(height, width, 2).astype(np.float32) - 128.0
    u, v = chroma[..., 0], chroma[..., 1]
    rgb = np.stack([luma + 1.596027 * v, luma - 0.391762 * u - 0.812968 * v, luma + 2.017232 * u], axis=-1)
    result: NDArray[np.uint8] = np.clip(np.rint(rgb), 0, 255).astype(np.uint8)
    return result


def values_to_rgb(array: NDArray[Any], pixels: PixelFormat) -> NDArray[np.uint8]:
    """Stretch values from their minimum to their maximum: grey, or colours, blue first, for three and four channels.

    Raises:
        BadImage: Another number of channels.
    """
    if pixels.channels not in (1, 3, 4):
        raise BadImage(f"{pixels.name}: {pixels.channels} channels are not a colour picture; send the array as it is")
    stretched = stretch(array)
    if pixels.channels == 1:
        return np.repeat(stretched[..., np.newaxis], 3, axis=-1)
    return np.ascontiguousarray(stretched[..., 2::-1])


def stretch(array: NDArray[Any]) -> NDArray[np.uint8]:
    """Map the least finite value to 0 and the greatest to 255; what is not finite becomes 0, and so do equal values."""
    with np.errstate(invalid="ignore"):  # a signalling NaN is treated as any NaN
        values = array.astype(np.float64)
    finite = np.isfinite(values)
    low, high = values.min(where=finite, initial=np.inf), values.max(where=finite, initial=-np.inf)
    if not low < high:  # all equal, or nothing finite
        return np.zeros(array.shape, np.uint8)
    values[~finite] = low
    # Dividing by a power of two rounds nothing, and within -1..1 even the largest doubles have a finite span.
    values = np.ldexp(values, -np.frexp(max(-low, high))[1])
    low, high = values.min(), values.max()
    stretched: NDArray[np.uint8] = np.rint((values - low) / (high - low) * 255.0).astype(np.uint8)
    return stretched
