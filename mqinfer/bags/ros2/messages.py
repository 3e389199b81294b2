"""Messages of ROS 2 on DDS: the names, types and hashes that its middlewares announce, and their bytes.

A middleware of ROS 2 publishes `sensor_msgs/msg/Image` on `/camera/image_raw` as the DDS type
`sensor_msgs::msg::dds_::Image_` on the DDS topic `rt/camera/image_raw`. The bytes are CDR, as in a bag.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from mqinfer.extras import import_extra

VISION = {
    "vision_msgs/msg/Point2D": "float64 x\nfloat64 y\n",
    "vision_msgs/msg/Pose2D": "vision_msgs/Point2D position\nfloat64 theta\n",
    "vision_msgs/msg/BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y\n",
    "vision_msgs/msg/ObjectHypothesis": "string class_id\nfloat64 score\n",
    "vision_msgs/msg/ObjectHypothesisWithPose": (
        "vision_msgs/ObjectHypothesis hypothesis\ngeometry_msgs/PoseWithCovariance pose\n"
    ),
    "vision_msgs/msg/Detection2D": (
        "std_msgs/Header header\n"
        "vision_msgs/ObjectHypothesisWithPose[] results\n"
        "vision_msgs/BoundingBox2D bbox\n"
        "string id\n"
    ),
    "vision_msgs/msg/Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections\n",
    "vision_msgs/msg/Classification": "std_msgs/Header header\nvision_msgs/ObjectHypothesis[] results\n",
    "vision_msgs/msg/VisionClass": "uint16 class_id\nstring class_name\n",
    "vision_msgs/msg/LabelInfo": ("std_msgs/Header header\nvision_msgs/VisionClass[] class_map\nfloat32 threshold\n"),
}
"""Messages of vision_msgs, which rosbags does not have, by type, each behind those that it uses.

Fields of https://github.com/ros-perception/vision_msgs, release 4.1.1 (ROS 2 Humble to Rolling, Apache License 2.0),
without their comments.
"""

_PREFIX = "rt"
"""ROS 2 puts it before the names of topics; those of services and actions have others."""
_TOPIC = re.compile(r"(/[A-Za-z_][A-Za-z0-9_]*)+")
_NUMBERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float32", "float64")


class CdrError(ValueError):
    """Bytes that are no message of their type."""


@cache
def store() -> Any:
    """Return rosbags' types of ROS 2, with those of `VISION`.

    Raises:
        MissingExtra: rosbags is not installed.
    """
    typesys = import_extra("rosbags.typesys", "ros2")
    found = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)  # the messages that are used here are the same in all
    for kind, text in VISION.items():
        found.register(typesys.get_types_from_msg(text, kind))
    return found


def serialize(message: Any) -> bytes:
    """Return a message of rosbags as CDR, with its four bytes of header."""
    return bytes(store().serialize_cdr(message, message.__msgtype__))


def deserialize(cdr: bytes, kind: str) -> Any:
    """Return the message that a peer sent; large arrays are views of its bytes.

    Raises:
        CdrError: The bytes are no such message: cut off, too long, or with lengths that can't be.
    """
    if cdr[:1] != b"\0" or cdr[1:2] not in {b"\0", b"\1"}:
        raise CdrError(f"a header of {cdr[:4].hex()}; expected plain CDR, 0000 or 0001")
    try:
        return store().deserialize_cdr(cdr, kind)
    except Exception as failed:  # its parsers raise errors of many kinds (struct, assert, Unicode, NumPy, memory)
        raise CdrError(f"{type(failed).__name__}: {failed}") from failed


def is_topic(name: str) -> bool:
    """Return whether ROS 2 takes a full name as that of a topic."""
    return _TOPIC.fullmatch(name) is not None


def dds_topic(topic: str) -> str:
    """Return the name of a topic on DDS."""
    return f"{_PREFIX}/{topic.strip('/')}"


def ros_topic(name: str) -> str | None:
    """Return the topic of a DDS topic; None where it is none of ROS 2's topics."""
    prefix, slash, topic = name.partition("/")
    return f"/{topic}" if prefix == _PREFIX and slash else None


def dds_type(kind: str) -> str:
    """Return the name of a type such as `sensor_msgs/msg/Image` on DDS."""
    package, _, name = kind.split("/")
    return f"{package}::msg::dds_::{name}_"


def ros_type(name: str) -> str:
    """Return the type with a name on DDS; the name itself where it is none of ROS 2's."""
    package, _, rest = name.partition("::msg::dds_::")
    return f"{package}/msg/{rest.removesuffix('_')}" if rest else name


def type_hash(kind: str) -> str:
    """Return a type's hash as ROS 2 Iron and later announce it (`RIHS01_…`); empty for a type that is not known."""
    known = store()
    return str(known.hash_rihs01(kind)) if kind in known.fielddefs else ""


@cache
def carrier(name: str) -> Any:
    """Return the class of a DDS type whose samples are bytes of CDR, which cyclonedds hands on unread.

    It declares the fields of the type, which DDS compares where the other side declares some, too: middlewares of
    ROS 2 mostly have the name alone. A type that is not known has one field.

    Args:
        name: Of the DDS type.

    Raises:
        MissingExtra: cyclonedds is not installed.
    """
    return _made(name, _fields(ros_type(name)), _CARRIED)


def _init(self: Any, cdr: bytes) -> None:
    self.cdr = cdr


def _serialize(self: Any, **_: Any) -> bytes:
    return bytes(self.cdr)


def _deserialize(cls: Any, data: bytes, /, **_: Any) -> Any:
    return cls(data)


_CARRIED = {
    "__init__": _init,
    "serialize": _serialize,
    "deserialize": classmethod(_deserialize),
    "deserialize_key": classmethod(_deserialize),
}


@cache
def _struct(kind: str) -> Any:
    return dataclass(_made(dds_type(kind), _fields(kind), {}))


def _made(name: str, fields: Mapping[str, Any], members: Mapping[str, Any]) -> Any:
    """Return the class of a DDS type with these fields of IDL, and these members."""

    def fill(namespace: dict[str, Any]) -> None:
        namespace["__annotations__"].update(fields)
        namespace.update(members)

    idl = import_extra("cyclonedds.idl", "ros2")
    return types.new_class(ros_type(name).rpartition("/")[2], (idl.IdlStruct,), {"typename": name}, fill)


def _fields(kind: str) -> dict[str, Any]:
    """Return the fields of a type; of one that is not known a single byte."""
    if kind not in store().fielddefs:
        return {"data": import_extra("cyclonedds.idl.types", "ros2").uint8}
    return {name: _idl(definition) for name, definition in store().fielddefs[kind][1]}


def _idl(definition: tuple[int, Any]) -> Any:
    """Return the IDL type of a field, as rosbags describes it."""
    made, nodes = import_extra("cyclonedds.idl.types", "ros2"), import_extra("rosbags.interfaces", "ros2").Nodetype
    node, what = definition
    if node == nodes.NAME:
        return _struct(what)
    if node == nodes.BASE:
        return _basic(made, *what)
    inner, length = _idl(what[0]), what[1]
    if node == nodes.ARRAY:
        return made.array[inner, length]
    return made.sequence[inner, length] if length else made.sequence[inner]


def _basic(made: Any, name: str, bound: int) -> Any:
    if name.endswith("string"):
        return made.bounded_str[bound] if bound else str
    return bool if name == "bool" else getattr(made, name if name in _NUMBERS else "uint8")
