"""What a bag's topics hold, by their index and first messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from mqinfer.bags.calibration import CAMERA_INFO, info_topic
from mqinfer.bags.frame import StreamInfo
from mqinfer.bags.rosbag import IMAGE_TYPES, Rosbag, foreign_errors, message_type
from mqinfer.images.compressed import picture_size
from mqinfer.images.picture import CameraInfo, RawImage
from mqinfer.protocol.errors import SourceError

if TYPE_CHECKING:
    from rosbags.interfaces import Connection


def describe_topics(bag: Rosbag) -> tuple[StreamInfo, ...]:
    """List all topics, including those without images."""
    return tuple(describe_topic(bag, name) for name in sorted({each.topic for each in bag.connections}))


def describe_topic(bag: Rosbag, topic: str) -> StreamInfo:
    """Describe a topic.

    Raises:
        SourceError: The bag is damaged.
    """
    connections = [each for each in bag.connections if each.topic == topic]
    with foreign_errors(bag.path, topic):
        count = sum(each.msgcount for each in connections)
        first = bag.first(connections) if count else None
        types = sorted({message_type(each) for each in connections})
        is_image = any(each in IMAGE_TYPES for each in types)
        encoding, width, height = ("", 0, 0) if first is None else _shape(bag, first[0], first[2])
        rate = None if first is None else _rate(bag, connections, count, first[1])
        camera = _first_camera(bag, topic) if is_image else None
    return StreamInfo(topic, ", ".join(types), encoding, width, height, count, rate, is_image, camera)


def camera_connections(bag: Rosbag, topic: str) -> list[Connection]:
    """Return the connections with the calibration of an image topic's camera; empty if the bag has none."""
    name = info_topic(topic)
    return [each for each in bag.connections if each.topic == name and message_type(each) == CAMERA_INFO]


def _first_camera(bag: Rosbag, topic: str) -> CameraInfo | None:
    first = bag.first(camera_connections(bag, topic))
    return None if first is None else bag.camera(first[0], first[2])


def _shape(bag: Rosbag, connection: Connection, raw: bytes) -> tuple[str, int, int]:
    if message_type(connection) not in IMAGE_TYPES:
        return "", 0, 0
    image = bag.image(connection, raw).image
    if isinstance(image, RawImage):
        return image.encoding, image.width, image.height
    return image.format, *picture_size(image)


def _rate(bag: Rosbag, connections: Sequence[Connection], count: int, first_ns: int) -> float | None:
    if count < 2:
        return None
    try:
        last = bag.last(connections)
    except SourceError:  # the end is damaged; what comes before it can be read all the same
        return None
    span = last[1] - first_ns if last else 0
    return (count - 1) * 1e9 / span if span > 0 else None
