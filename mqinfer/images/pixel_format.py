"""ROS image encodings: what their names mean, and how their samples become 8-bit RGB.

Names and meanings are those of `sensor_msgs/image_encodings.hpp` (ros2/common_interfaces): sample type, channels,
colour order, Bayer pattern. Mosaics are converted to full colour with OpenCV; then follow bit depths, colour orders,
YUV, and values that are no light.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqinfer.codecs.opencv import opencv
from mqinfer.protocol.errors import BadImage
from mqinfer.value_object import value_object


class ColourModel(StrEnum):
    """How samples become colours."""

    GREY = "grey"
    RGB = "rgb"
    BGR = "bgr"
    BAYER = "bayer"
    UYVY = "uyvy"
    YUYV = "yuyv"
    NV21 = "nv21"
    NV24 = "nv24"
    VALUES = "values"
    """Measured values rather than light: depth, disparity, signed and floating-point images."""


@value_object()
class PixelFormat:
    """One encoding.

    Attributes:
        name: As the message spells it.
        kind: How samples become colours.
        sample: NumPy's name of one sample in native byte order, such as `u1`, `u2`, `f4`.
        channels: Samples of one pixel; 1 for the planar `nv21` and `nv24`, whose rows are counted by `rows`.
        pattern: The mosaic's top-left 2x2 in reading order (`rggb`), empty unless `kind` is `BAYER`.
    """

    name: str
    kind: ColourModel
    sample: str
    channels: int
    pattern: str = ""

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample."""
        return int(self.sample[1:])

    def rows(self, height: int) -> int:
        """Return how many rows of `step` bytes an image of `height` pixels has.

        `nv21` carries its chroma at half height below the luma, `nv24` at full height and double width.
        """
        return {ColourModel.NV21: height * 3 // 2, ColourModel.NV24: height * 3}.get(self.kind, height)


def _colours() -> dict[str, PixelFormat]:
    table = {}
    for order, channels in (("rgb", 3), ("rgba", 4), ("bgr", 3), ("bgra", 4)):
        for bits in (8, 16):
            name = f"{order}{bits}"
            table[name] = PixelFormat(name, ColourModel(order[:3]), f"u{bits // 8}", channels)
    return table


def _mosaics() -> dict[str, PixelFormat]:
    return {
        f"bayer_{pattern}{bits}": PixelFormat(f"bayer_{pattern}{bits}", ColourModel.BAYER, f"u{bits // 8}", 1, pattern)
        for pattern in ("rggb", "bggr", "gbrg", "grbg")
        for bits in (8, 16)
    }


_NAMED = {
    **_colours(),
    **_mosaics(),
    "mono8": PixelFormat("mono8", ColourModel.GREY, "u1", 1),
    "mono16": PixelFormat("mono16", ColourModel.GREY, "u2", 1),
    "uyvy": PixelFormat("uyvy", ColourModel.UYVY, "u1", 2),
    "yuv422": PixelFormat("yuv422", ColourModel.UYVY, "u1", 2),
    "yuyv": PixelFormat("yuyv", ColourModel.YUYV, "u1", 2),
    "yuv422_yuy2": PixelFormat("yuv422_yuy2", ColourModel.YUYV, "u1", 2),
    "nv21": PixelFormat("nv21", ColourModel.NV21, "u1", 1),
    "nv24": PixelFormat("nv24", ColourModel.NV24, "u1", 1),
}

_GENERIC = re.compile(r"(8U|8S|16U|16S|32S|32F|64F)C([1-9][0-9]{0,2})")
_LIGHT_BY_CHANNELS = {1: ColourModel.GREY, 3: ColourModel.BGR, 4: ColourModel.BGR}


def parse_encoding(name: str) -> PixelFormat:
    """Return the pixel format of a ROS encoding name.

    The generic names have no colour order, so OpenCV's convention applies, as in `cv_bridge`: `8UC1` is grey, three
    and four unsigned channels are BGR and BGRA. `16UC1` is depth (REP 118), signed and floating-point samples are
    values.

    Raises:
        BadImage: The name is not one of `sensor_msgs/image_encodings.hpp`.
    """
    if known := _NAMED.get(name):
        return known
    generic = _GENERIC.fullmatch(name)
    if generic is None:
        raise BadImage(f"encoding {name!r} is unknown; expected one of {', '.join(_NAMED)}, or 8UC1 to 64FC4")
    depth, channels = generic[1], int(generic[2])
    sample = {"U": "u", "S": "i", "F": "f"}[depth[-1]] + str(int(depth[:-1]) // 8)
    is_depth = depth == "16U" and channels == 1
    kind = (
        _LIGHT_BY_CHANNELS.get(channels, ColourModel.VALUES)
        if depth[-1] == "U" and not is_depth
        else ColourModel.VALUES
    )
    return PixelFormat(name, kind, sample, channels)


PATTERNS = ("rggb", "bggr", "gbrg", "grbg")


class Demosaic(StrEnum):
    """How the two missing colours of each pixel are found.

    `BILINEAR` averages the neighbours of the colour and is the fastest; `EDGE_AWARE` averages green along the weaker
    gradient; `VNG` (variable number of gradients) is the slowest.
    """

    BILINEAR = "bilinear"
    EDGE_AWARE = "edge-aware"
    VNG = "vng"


_SUFFIX = {Demosaic.BILINEAR: "", Demosaic.EDGE_AWARE: "_EA", Demosaic.VNG: "_VNG"}


def demosaic(
    mosaic: NDArray[np.unsignedinteger],
    pattern: str,
    method: Demosaic = Demosaic.BILINEAR,
    *,
    bit_depth: int = 16,
) -> NDArray[np.unsignedinteger]:
    """Convert a mosaic to an RGB image.

    The border pixel on each side has too few neighbours; OpenCV repeats the next inner one.

    OpenCV's VNG takes 8 bits only: a 16-bit mosaic is rounded to 8 bits and the result is scaled back, to 256 levels.

    Args:
        mosaic: `[H, W]`, uint8 or uint16, at least 3x3.
        pattern: The top-left 2x2 in reading order: `rggb`, `bggr`, `gbrg` or `grbg`.
        method: How the missing colours are found.
        bit_depth: Used bits of a 16-bit sample; only VNG needs it.

    Returns:
        `[H, W, 3]` RGB of the mosaic's dtype.

    Raises:
        BadImage: The mosaic is too small, or of another dtype or shape, or the pattern is unknown.
    """
    _check(mosaic, pattern)
    if method is Demosaic.VNG and mosaic.dtype == np.uint16:
        return _vng16(mosaic, pattern, float((1 << bit_depth) - 1))
    cv2 = opencv()
    # OpenCV's BayerRGGB names are those of the top-left 2x2, as in ROS; its older BayerBG names are of the second row.
    code = getattr(cv2, f"COLOR_Bayer{pattern.upper()}2RGB{_SUFFIX[method]}")
    rgb: NDArray[np.unsignedinteger] = cv2.cvtColor(np.ascontiguousarray(mosaic), code)
    return rgb


def _vng16(mosaic: NDArray[np.unsignedinteger], pattern: str, white: float) -> NDArray[np.unsignedinteger]:
    cv2 = opencv()
    coarse = demosaic(cv2.convertScaleAbs(np.ascontiguousarray(mosaic), alpha=255.0 / white), pattern, Demosaic.VNG)
    fine: NDArray[np.uint16] = np.rint(coarse * np.float32(white / 255.0)).astype(np.uint16)
    return fine


def _check(mosaic: NDArray[np.unsignedinteger], pattern: str) -> None:
    if pattern not in PATTERNS:
        raise BadImage(f"Bayer pattern {pattern!r} is unknown; expected one of {', '.join(PATTERNS)}")
    if mosaic.ndim != 2 or mosaic.dtype not in (np.uint8, np.uint16):
        raise BadImage(f"a mosaic is [H, W] of uint8 or uint16, not {list(mosaic.shape)} of {mosaic.dtype}")
    if min(mosaic.shape) < 3:
        # OpenCV returns a black image rather than an error.
        raise BadImage(f"a mosaic of {mosaic.shape[1]}x{mosaic.shape[0]} is too small to demosaic: at least 3x3")


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


_CONVERSIONS = {
    (ColourModel.GREY, 1): "GRAY2RGB",
    (ColourModel.RGB, 4): "RGBA2RGB",
    (ColourModel.BGR, 3): "BGR2RGB",
    (ColourModel.BGR, 4): "BGRA2RGB",
    (ColourModel.UYVY, 2): "YUV2RGB_UYVY",
    (ColourModel.YUYV, 2): "YUV2RGB_YUY2",
    (ColourModel.NV21, 1): "YUV2RGB_NV21",
}
"""By colour model and channels, OpenCV's name of the conversion to RGB."""


def colours_to_rgb(array: NDArray[np.uint8], pixels: PixelFormat) -> NDArray[np.uint8]:
    """Convert 8-bit samples of any colour order, or of YUV, to `[H, W, 3]` RGB."""
    if pixels.kind is ColourModel.NV24:
        return _nv24(array)
    conversion = _CONVERSIONS.get((pixels.kind, pixels.channels))
    if conversion is None:  # it is RGB already
        return np.ascontiguousarray(array)
    cv2 = opencv()
    rgb: NDArray[np.uint8] = cv2.cvtColor(np.ascontiguousarray(array), getattr(cv2, f"COLOR_{conversion}"))
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
