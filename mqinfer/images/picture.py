"""Pictures as ROS messages carry them, before decoding."""

from __future__ import annotations

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
