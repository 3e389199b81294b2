"""Pictures as ROS carries them, not decoded yet."""

from __future__ import annotations

from dataclasses import dataclass

from mqinfer.protocol.types import Buffer

__all__ = ["CompressedImage", "RawImage"]


@dataclass(frozen=True, slots=True, eq=False)
class RawImage:
    """Pixels as `sensor_msgs/Image` carries them.

    Attributes:
        encoding: ROS name (`sensor_msgs/image_encodings.hpp`), such as `rgb8`, `mono16`, `bayer_rggb8`.
        height: Rows.
        width: Columns.
        step: Bytes of a full row, padding included.
        is_bigendian: Byte order of 16-bit and wider samples.
        data: At least `step * height` bytes.
    """

    encoding: str
    height: int
    width: int
    step: int
    is_bigendian: bool
    data: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class CompressedImage:
    """Pixels as `sensor_msgs/CompressedImage` carries them: `format` is its free-form string."""

    format: str
    data: Buffer
