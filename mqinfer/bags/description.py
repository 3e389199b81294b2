"""What a bag's topics hold, by their index and first messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import TYPE_CHECKING

from mqinfer.bags.calibration import CAMERA_INFO, info_topic
from mqinfer.bags.frame import StreamInfo
from mqinfer.bags.points import POINT_CLOUD, fields_of, size_of
from mqinfer.bags.rosbag import PICTURE_TYPES, Rosbag, foreign_errors, growing_spans, message_type
from mqinfer.bags.videos.packets import CODECS
from mqinfer.bags.videos.topic import video_size
from mqinfer.images.compressed import picture_size
from mqinfer.images.picture import CameraInfo, CompressedImage, RawImage
from mqinfer.protocol.errors import SourceError

if TYPE_CHECKING:
    from rosbags.interfaces import Connection

_LONGEST = 256
"""Characters of the names of fields that are shown."""
_FEW = 16
"""Among so many topics, the first messages of the others are sought anew after each that was found."""


def describe_topics(bag: Rosbag, topic: str | None = None) -> tuple[StreamInfo, ...]:
    """List all topics, including those without images, or describe one; however many there are, the bag is read once.

    Raises:
        SourceError: The bag is damaged.
    """
    connections = [each for each in bag.connections if topic in {None, each.topic}]
    counts, types = Counter[str](), dict[str, set[str]]()
    for each in connections:
        counts[each.topic] += each.msgcount
        types.setdefault(each.topic, set()).add(message_type(each))
    firsts = _first_pictures(bag, [each for each in connections if counts[each.topic]])
    ends = _ends(bag, [each for each in connections if counts[each.topic] > 1])
    images = {name for name in types if not types[name].isdisjoint(PICTURE_TYPES)}
    cameras = _first_cameras(bag, images)

    def describe(name: str) -> StreamInfo:
        time, shape = firsts.get(name, (0, ("", 0, 0)))
        rate = _rate(counts[name], time, ends.get(name))
        camera = cameras.get(info_topic(name)) if name in images else None
        return StreamInfo(name, ", ".join(sorted(types[name])), *shape, counts[name], rate, name in images, camera)

    return tuple(map(describe, sorted(types)))


def _firsts(bag: Rosbag, connections: Sequence[Connection]) -> Iterator[tuple[Connection, int, bytes]]:
    """Yield the earliest message of each topic of some connections; what lies between is read once."""
    pending: dict[str, list[Connection]] = {}
    for each in connections:
        pending.setdefault(each.topic, []).append(each)
    start = None
    while pending:
        sought = len(pending)
        for message in bag.messages(list(chain.from_iterable(pending.values())), start):
            start = message[1]
            if pending.pop(message[0].topic, None) is None:
                continue
            yield message
            if 2 * len(pending) <= sought or sought <= _FEW:
                break  # the rest is sought without those that were found
        else:
            return


def _ends(bag: Rosbag, connections: Sequence[Connection]) -> dict[str, int]:
    """Search the log time of the last message of each topic of some connections backwards.

    Where the bag's end is damaged, topics are missing; what comes before it can be read all the same.
    """
    found: dict[str, int] = {}
    begin, last = bag.times() or (0, -1)
    with suppress(SourceError):
        for start, stop in growing_spans(begin, last + 1):
            sought = [each for each in connections if each.topic not in found]
            if not sought:
                break
            found |= {connection.topic: time for connection, time, _ in bag.messages(sought, start, stop)}
    return found


def _first_pictures(bag: Rosbag, connections: Sequence[Connection]) -> dict[str, tuple[int, tuple[str, int, int]]]:
    """Return the times of the topics' first messages, with encoding or fields, and width and height."""
    found: dict[str, tuple[int, tuple[str, int, int]]] = {}
    for connection, time, raw in _firsts(bag, connections):
        with foreign_errors(bag.path, connection.topic):
            found[connection.topic] = time, _shape(bag, connection, raw)
    return found


def camera_connections(bag: Rosbag, *topics: str) -> list[Connection]:
    """Return the connections with the calibrations of image topics' cameras; empty if the bag has none."""
    names = {*map(info_topic, topics)}
    return [each for each in bag.connections if each.topic in names and message_type(each) == CAMERA_INFO]


def _first_cameras(bag: Rosbag, topics: Collection[str]) -> dict[str, CameraInfo | None]:
    """Return the first calibrations of image topics' cameras, by the topics that they are on."""
    connections = [each for each in camera_connections(bag, *topics) if each.msgcount]
    return {first.topic: bag.camera(first, raw) for first, _, raw in _firsts(bag, connections)}


def _shape(bag: Rosbag, connection: Connection, raw: bytes) -> tuple[str, int, int]:
    kind = message_type(connection)
    if kind in PICTURE_TYPES:
        return picture_shape(bag.image(connection, raw).image)
    with suppress(SourceError), foreign_errors(bag.path, connection.topic):  # what else the bag has can be read
        if kind == POINT_CLOUD:
            (message,) = bag.image(connection, raw).points
            return " ".join(fields_of(message))[:_LONGEST], *size_of(message)
    return "", 0, 0


def picture_shape(image: RawImage | CompressedImage) -> tuple[str, int, int]:
    """Return encoding or format, width and height of a picture; 0 where they can't be read."""
    if isinstance(image, RawImage):
        return image.encoding, image.width, image.height
    return image.format, *(video_size(image) if image.format in CODECS else picture_size(image))


def _rate(count: int, first_ns: int, last_ns: int | None) -> float | None:
    span = 0 if last_ns is None else last_ns - first_ns
    return (count - 1) * 1e9 / span if span > 0 else None
