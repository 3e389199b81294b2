"""Messages of points, made with rosbags' types of ROS 2 or, by a writer of bags, of either."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rosbags.typesys import Stores, get_typestore

__all__ = ["XYZI", "cloud", "field", "imu", "ros2", "scan"]

Make = Callable[..., Any]
"""Makes a message of its type and its fields in their order, as `BagWriter.message` does."""
_TYPES: Any = get_typestore(Stores.ROS2_HUMBLE).types
XYZI = np.dtype([("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("intensity", "<u2")])


def ros2(kind: str, *fields: Any) -> Any:
    """Make a message of ROS 2."""
    return _TYPES[kind](*fields)


def _header(make: Make, stamp_ns: int) -> Any:
    stamp = make("builtin_interfaces/msg/Time", *divmod(stamp_ns, 10**9))
    try:
        return make("std_msgs/msg/Header", stamp, "lidar")
    except TypeError:  # that of ROS 1 has a number
        return make("std_msgs/msg/Header", 0, stamp, "lidar")


def field(name: str, offset: int, datatype: int, count: int = 1, make: Make = ros2) -> Any:
    """Make a PointField."""
    return make("sensor_msgs/msg/PointField", name, offset, datatype, count)


def cloud(
    fields: Sequence[Any],
    size: tuple[int, int],
    steps: tuple[int, int],
    data: bytes,
    stamp_ns: int = 0,
    *,
    is_bigendian: bool = False,
    make: Make = ros2,
) -> Any:
    """Make a PointCloud2 of its fields, (width, height), (point_step, row_step) and bytes; nothing is checked."""
    (width, height), (point, row) = size, steps
    bytes_ = np.frombuffer(data, np.uint8)
    kind = "sensor_msgs/msg/PointCloud2"
    return make(kind, _header(make, stamp_ns), height, width, list(fields), is_bigendian, point, row, bytes_, False)


def scan(ranges: Sequence[float], intensities: Sequence[float], stamp_ns: int = 0, make: Make = ros2) -> Any:
    """Make a LaserScan that begins at -1 and goes on in steps of 0.25 rad."""
    arrays = [np.array(each, np.float32) for each in (ranges, intensities)]
    return make("sensor_msgs/msg/LaserScan", _header(make, stamp_ns), -1.0, 9.0, 0.25, 0.0, 0.1, 0.5, 30.0, *arrays)


def imu(number: int, stamp_ns: int = 0, make: Make = ros2) -> Any:
    """Make an Imu whose values follow from a number."""
    zeros = np.zeros(9)
    turn = make("geometry_msgs/msg/Quaternion", 0.0, 0.0, 0.5, number / 8)
    rate, force = (make("geometry_msgs/msg/Vector3", number + part, -number, part) for part in (0.25, 0.5))
    return make("sensor_msgs/msg/Imu", _header(make, stamp_ns), turn, zeros, rate, zeros, force, zeros)
