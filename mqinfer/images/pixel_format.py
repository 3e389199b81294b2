"""Parse the names of ROS image encodings: sample type, channels, colour order, Bayer pattern.

Names and meanings are those of `sensor_msgs/image_encodings.hpp` (ros2/common_interfaces).
"""

from __future__ import annotations

import re
from enum import StrEnum

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
