"""Find the calibration of the cameras in a bag: `sensor_msgs/CameraInfo` beside the pictures."""

from __future__ import annotations

from typing import Any

from mqinfer.images.picture import CameraInfo

CAMERA_INFO = "sensor_msgs/msg/CameraInfo"
_TRANSPORTS = ("compressed", "compressedDepth", "ffmpeg", "foxglove")


def info_topic(topic: str) -> str:
    """Return the topic of an image topic's calibration, `/ns/camera_info` for `/ns/image_raw` (image_transport)."""
    base, _, last = topic.rpartition("/")
    namespace = base.rpartition("/")[0] if last in _TRANSPORTS and base else base
    return f"{namespace}/camera_info"


def calibration(message: Any) -> CameraInfo:
    """Return what a message says of the pictures that are recorded with it.

    K and P are those of the sensor's full resolution. Where a camera sends a part of it (`roi`) or joins pixels
    (`binning_x`, `binning_y`), they are converted as image_geometry's PinholeCameraModel does.

    Args:
        message: Message of ROS 1 or ROS 2, which name matrices in capitals and small letters.
    """
    d, k, r, p = (
        tuple(map(float, getattr(message, name.upper() if hasattr(message, name.upper()) else name))) for name in "dkrp"
    )
    part = message.roi
    size = int(part.width or message.width), int(part.height or message.height)
    factors = max(1, int(message.binning_x)), max(1, int(message.binning_y))
    offset = int(part.x_offset), int(part.y_offset)
    return CameraInfo(
        size[0] // factors[0],
        size[1] // factors[1],
        str(message.distortion_model),
        d,
        _of_part(k, 3, offset, factors),
        r,
        _of_part(p, 4, offset, factors),
    )


def _of_part(
    matrix: tuple[float, ...], columns: int, offset: tuple[int, int], factors: tuple[int, int]
) -> tuple[float, ...]:
    """Convert K or P to a part of the sensor, and to joined pixels; one of zeros stays as it is."""
    if not any(matrix) or (offset == (0, 0) and factors == (1, 1)):
        return matrix
    rows = [list(matrix[start : start + columns]) for start in range(0, len(matrix), columns)]
    for row, begin, factor in zip(rows, offset, factors, strict=False):
        row[2] -= begin
        row[:] = [each / factor for each in row]
    return tuple(each for row in rows for each in row)
