"""Making Bayer mosaics: what a colour sensor reads before anybody demosaics it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mqinfer.images.picture import RawImage
from mqinfer.images.pixel_format import PATTERNS
from mqinfer.protocol.errors import ConfigError

_CHANNEL = {"r": 0, "g": 1, "b": 2}


def make_mosaic(picture: npt.NDArray[np.unsignedinteger], pattern: str) -> npt.NDArray[np.unsignedinteger]:
    """Keep of each pixel the one channel that its filter lets through.

    Args:
        picture: RGB of any unsigned dtype, shape [H,W,3].
        pattern: Filters of the top-left 2x2 pixels, row by row, as ROS names them: one of `PATTERNS`.

    Returns:
        The mosaic, shape [H,W], of the picture's dtype.

    Raises:
        ConfigError: There is no such pattern.
    """
    if pattern not in PATTERNS:
        raise ConfigError(f"unknown Bayer pattern {pattern!r}; choose one of {', '.join(PATTERNS)}")
    mosaic = np.empty(picture.shape[:2], picture.dtype)
    for place, name in enumerate(pattern):
        row, column = divmod(place, 2)
        mosaic[row::2, column::2] = picture[row::2, column::2, _CHANNEL[name]]
    return mosaic


def raw_image(picture: npt.NDArray[np.uint8], encoding: str, bits: int = 16) -> RawImage:
    """Make the `sensor_msgs/Image` that a camera with this encoding would send for a picture.

    Args:
        picture: RGB, uint8 [H,W,3]; for `mono8` a single channel, uint8 [H,W].
        encoding: `rgb8`, `mono8`, or `bayer_<pattern>8` or `bayer_<pattern>16`.
        bits: For 16-bit mosaics, the sensor's true bit depth, 8 to 16; the values fill its range.

    Raises:
        ConfigError: The encoding is none of these.
    """
    pattern, depth = encoding.removeprefix("bayer_")[:4], encoding.removeprefix("bayer_")[4:]
    if encoding in {"rgb8", "mono8"}:
        pixels: npt.NDArray[np.unsignedinteger] = np.ascontiguousarray(picture)
    elif encoding.startswith("bayer_") and depth == "8":
        pixels = make_mosaic(picture, pattern)
    elif encoding.startswith("bayer_") and depth == "16" and 8 <= bits <= 16:
        pixels = _deepen(make_mosaic(picture, pattern), bits)
    else:
        raise ConfigError(
            f"can't write encoding {encoding!r} with {bits} bits; choose rgb8, mono8, or bayer_<pattern>8 or "
            f"bayer_<pattern>16 with 8 to 16 bits, <pattern> one of {', '.join(PATTERNS)}"
        )
    height, width = pixels.shape[:2]
    return RawImage(encoding, height, width, pixels.nbytes // height, is_bigendian=False, data=pixels.tobytes())


def _deepen(mosaic: npt.NDArray[np.unsignedinteger], bits: int) -> npt.NDArray[np.uint16]:
    """Stretch 0..255 to 0..2^bits-1, rounded to the nearest, little-endian."""
    full = (1 << bits) - 1
    return ((mosaic.astype(np.uint32) * full + 127) // 255).astype("<u2")
