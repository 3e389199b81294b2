"""The calibration of a camera, as `sensor_msgs/CameraInfo` states it."""

from __future__ import annotations

from dataclasses import dataclass


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
