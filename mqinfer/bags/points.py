"""Read points: those of a PointCloud2, the beams of a LaserScan, and the samples of Imu messages, each with its fields.

Nothing that a message states of itself is believed: sizes are checked before memory is taken, and there is no loop over
points.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mqinfer.protocol.errors import BadImage, SourceError
from mqinfer.protocol.limits import DEFAULT_LIMITS

POINT_CLOUD = "sensor_msgs/msg/PointCloud2"
_SCAN = "sensor_msgs/msg/LaserScan"
_IMU = "sensor_msgs/msg/Imu"
POINT_TYPES = (POINT_CLOUD, _SCAN, _IMU)
"""Types of the topics whose points go to a model beside a picture."""
_MOST_FIELDS = 1000
_LARGEST_SAMPLE = 4096
"""Bytes of an Imu, of which thousands are kept; it has 320 and a name."""
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 8: "f8"}
"""Types of numbers by `datatype` of sensor_msgs/PointField."""
_AXES = {"orientation": "xyzw", "angular_velocity": "xyz", "linear_acceleration": "xyz"}
_OF_IMU = tuple(f"{vector}.{axis}" for vector, axes in _AXES.items() for axis in axes)
_OF_SCAN = ("ranges", "intensities", "angles")
_HEAD_END = 12
"""A header's stamp ends here, in ROS 1 and ROS 2."""


def is_sample(messages: Sequence[Any]) -> bool:
    """Return whether messages have one point each, of which the last ones go to the model together."""
    return bool(messages) and messages[0].__msgtype__ == _IMU


def fields_of(message: Any) -> tuple[str, ...]:
    """Return the names of the fields that each point of a message has."""
    if message.__msgtype__ == POINT_CLOUD:
        return tuple(each.name for each in message.fields)
    return _OF_IMU if message.__msgtype__ == _IMU else _OF_SCAN


def size_of(message: Any) -> tuple[int, int]:
    """Return width and height of points as a message states them."""
    if message.__msgtype__ == POINT_CLOUD:
        return int(message.width), int(message.height)
    return (1, 1) if message.__msgtype__ == _IMU else (len(message.ranges), 1)


def check_message(kind: str, raw: bytes, *, is_cdr: bool) -> None:
    """Check how many fields the bytes of a PointCloud2 state, each of which becomes an object, and the size of an Imu.

    Raises:
        SourceError: They are too many.
        struct.error: The bytes end before.
    """
    if kind == _IMU and len(raw) > _LARGEST_SAMPLE:
        raise SourceError(f"an Imu of {len(raw)} bytes; expected at most {_LARGEST_SAMPLE}")
    if kind != POINT_CLOUD:
        return
    order = ">" if is_cdr and raw[1:2] == b"\0" else "<"
    at = _HEAD_END + 4 + struct.unpack_from(f"{order}I", raw, _HEAD_END)[0]
    at += -at % 4 if is_cdr else 0
    fields = struct.unpack_from(f"{order}I", raw, at + 8)[0]  # behind height and width
    if fields > _MOST_FIELDS:
        raise SourceError(f"a PointCloud2 of {fields} fields; expected at most {_MOST_FIELDS}")


def read_points(messages: Sequence[Any], names: Sequence[str], dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return the fields of all points, `[points, names]`.

    Args:
        messages: One, or several that have a point each.
        names: Of their fields, in the order of the result.
        dtype: Of floating point; what it can't hold is infinite.

    Raises:
        BadImage: A field is not there, what a message states of its points can't be, or there are too many.
    """
    read = _COLUMNS[messages[0].__msgtype__]
    width, height = size_of(messages[0])
    points = width * height * len(messages)
    if (size := points * len(names) * dtype.itemsize) > DEFAULT_LIMITS.tensor_bytes:
        raise BadImage(f"{points} points take {size} bytes; at most {DEFAULT_LIMITS.tensor_bytes} are accepted")
    with np.errstate(over="ignore", invalid="ignore"):
        columns = [read(messages, name) for name in names]
        found = np.empty((len(names), points), dtype)
        for place, column in zip(found, columns, strict=True):
            place[:] = column.reshape(-1)
    return found.T


def _of_cloud(messages: Sequence[Any], name: str) -> NDArray[Any]:
    """Return a field of a PointCloud2 as a view of its bytes, `[height, width]`."""
    (cloud,) = messages
    field, dtype = _field_of(cloud, name)
    if not cloud.width * cloud.height:
        return np.empty(0, dtype)
    row = cloud.width * cloud.point_step
    if cloud.height > 1 and cloud.row_step < row:
        raise BadImage(f"row_step is {cloud.row_step}; {cloud.width} points of {cloud.point_step} bytes take {row}")
    needed = (cloud.height - 1) * cloud.row_step + row
    if needed > cloud.data.size:
        raise BadImage(f"{cloud.data.size} bytes; {cloud.width}x{cloud.height} points take {needed}")
    strides = cloud.row_step, cloud.point_step
    return np.ndarray((cloud.height, cloud.width), dtype, cloud.data.data, field.offset, strides)


def _field_of(cloud: Any, name: str) -> tuple[Any, np.dtype[Any]]:
    """Return a field of a PointCloud2, and the type of its numbers."""
    field = next((each for each in cloud.fields if each.name == name), None)
    if field is None:
        raise _missing(name, fields_of(cloud))
    kind = _NUMBERS.get(field.datatype)
    if kind is None or field.count > 1:  # 0 stands for 1, as PCL takes it
        raise BadImage(f"field {name!r} has datatype {field.datatype} and count {field.count}; expected one number")
    dtype = np.dtype(kind).newbyteorder(">" if cloud.is_bigendian else "<")
    if field.offset + dtype.itemsize > cloud.point_step:
        raise BadImage(f"field {name!r} ends behind the {cloud.point_step} bytes of a point (point_step)")
    return field, dtype


def _of_scan(messages: Sequence[Any], name: str) -> NDArray[Any]:
    (scan,) = messages
    if name == "angles":
        angles: NDArray[Any] = scan.angle_min + np.arange(len(scan.ranges)) * scan.angle_increment
        return angles
    values: NDArray[Any] = np.asarray(getattr(scan, name) if name in _OF_SCAN else ())
    if len(values) != len(scan.ranges):
        raise _missing(name, _OF_SCAN if len(scan.intensities) else ("ranges", "angles"))
    return values


def _of_imu(messages: Sequence[Any], name: str) -> NDArray[Any]:
    if name not in _OF_IMU:
        raise _missing(name, _OF_IMU)
    vector, _, axis = name.partition(".")
    return np.array([getattr(getattr(each, vector), axis) for each in messages])


def _missing(name: str, known: Sequence[str]) -> BadImage:
    return BadImage(f"its points have no field {name!r}; they have {', '.join(known)[:500]}")


_COLUMNS: Mapping[str, Callable[[Sequence[Any], str], NDArray[Any]]] = {
    POINT_CLOUD: _of_cloud,
    _SCAN: _of_scan,
    _IMU: _of_imu,
}
