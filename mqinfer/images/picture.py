"""Pictures and the calibrations of cameras as ROS messages carry them, before decoding."""

from __future__ import annotations

from dataclasses import dataclass

from mqinfer.protocol.types import Buffer
from mqinfer.value_object import value_object


@value_object(eq=False)
class RawImage:
    """Pixels of a `sensor_msgs/Image`.

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


@value_object(eq=False)
class CompressedImage:
    """Bytes of a `sensor_msgs/CompressedImage`; `format` is its free-form string."""

    format: str
    data: Buffer


@dataclass(frozen=True, slots=True)
class CameraInfo:
    """How a camera maps the world to its pixels; matrices are in row-major order (`sensor_msgs/msg/CameraInfo`).

    Attributes:
        width: Columns of the pictures that were calibrated.
        height: Rows of the pictures that were calibrated.
        distortion_model: Such as `plumb_bob`, `rational_polynomial` or `equidistant`.
        distortion: Its parameters (D).
        intrinsic: 3x3, of the raw picture (K).
        rectification: 3x3, rotation to the rectified picture (R).
        projection: 3x4, of the rectified picture (P).
    """

    width: int
    height: int
    distortion_model: str
    distortion: tuple[float, ...]
    intrinsic: tuple[float, ...]
    rectification: tuple[float, ...]
    projection: tuple[float, ...]
