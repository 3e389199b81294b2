"""Read frames from the image topics of a ROS 1 or ROS 2 bag."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from mqinfer.bags.calibration import CAMERA_INFO, info_topic
from mqinfer.bags.description import camera_connections, describe_topics
from mqinfer.bags.frame import WHOLE, Frame, StreamInfo, TimeRange
from mqinfer.bags.points import POINT_TYPES
from mqinfer.bags.rosbag import IMAGE_TYPES, PICTURE_TYPES, Rosbag, message_type
from mqinfer.bags.videos.packets import VIDEO_TYPES, has_open_key, is_key
from mqinfer.bags.videos.topic import VideoTopic
from mqinfer.images.decode import is_depth
from mqinfer.images.picture import CameraInfo, CompressedImage
from mqinfer.protocol.errors import ConfigError, SourceError

if TYPE_CHECKING:
    from rosbags.interfaces import Connection

log = logging.getLogger("mqinfer.bags")
_MOST_TOPICS = 1000
_MOST_VIDEOS = 64
"""Decoders that keep pictures at the same time."""
_MOST_PIXELS = 1 << 27
"""Pixels of a picture of each of them together: 64 of 1920x1080. Decoders take up to 36 bytes a pixel."""
_MOST_NAMED = 50
"""Topics that an error names."""
_STAMP_END = 12
"""A header's stamp ends here: behind the sequence number in ROS 1, behind the four bytes of CDR in ROS 2."""


class RosbagSource:
    """Frames of topics of pictures and of packets of videos; nothing else in the bag is decoded.

    Args:
        path: The bag; see `mqinfer.bags.rosbag.Rosbag`.
        more: Further files of the same recording.
        topics: Image topics to read; empty for all.
        span: The part to read, counted from the first frame of these topics by log time.
        depth: Whether depth pictures are read where no topics are named.
        points: Whether topics may be of points, too.

    Raises:
        SourceError: It is damaged or foreign, has no image topic, or not those asked for.
        ConfigError: All its image topics are of depth pictures, and none is named.
        MissingExtra: rosbags is not installed.
    """

    def __init__(
        self,
        path: Path,
        *more: Path,
        topics: Sequence[str] = (),
        span: TimeRange = WHOLE,
        depth: bool = True,
        points: bool = False,
    ) -> None:
        self._span = span
        with ExitStack() as rollback:
            self._bag = Rosbag(path, *more)
            rollback.callback(self._bag.close)
            self._connections = _choose(self._bag, topics, POINT_TYPES if points else ())
            if not (topics or depth):
                self._connections = _without_depth(self._bag, self._connections)
            rollback.pop_all()

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the chosen topics; the count is known only if the whole bag is read.

        Raises:
            SourceError: No topic's first message can be read.
        """
        streams: list[StreamInfo] = []
        failed: list[SourceError] = []
        for name in sorted({each.topic for each in self._connections}):
            try:
                streams += describe_topics(self._bag, name)
            except SourceError as error:  # the bag is damaged here: reading it reports that, behind what comes before
                failed.append(error)
                streams.append(StreamInfo(name, IMAGE_TYPES[0], "", 0, 0, None, None))
        if len(failed) == len(streams):
            raise failed[0]
        return tuple(each if self._span.is_whole else replace(each, count=None) for each in streams)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames of the chosen topics, merged by log time.

        Raises:
            SourceError: The bag is damaged, or holds fewer frames than it states; those that can be read were yielded.
        """
        begin, end = self._bounds()
        counts = Counter() if begin is None else self._bag.count_before(self._connections, begin)
        cameras = _Cameras(self._bag, self._connections, begin)
        videos = _Videos(self._bag, self._connections, begin)
        # Calibrations come first: of messages with one log time, readers yield those of earlier connections first.
        connections = [*cameras.connections, *self._connections]
        for connection, log_time_ns, raw in self._bag.messages(connections, begin, end):
            if cameras.update(connection, raw):
                continue
            found, topic = self._bag.image(connection, raw), connection.topic
            stamp, camera = found.capture_time_ns, cameras.of(topic)
            frame = Frame(
                topic, counts[topic], stamp, log_time_ns, found.frame_id, found.image, camera, points=found.points
            )
            yield from videos.add(frame)
            counts[topic] += 1
        yield from videos.flush()
        if self._span.is_whole:
            self._check(counts)
        videos.check()

    def _check(self, counts: Counter[str]) -> None:
        """Compare with what the index states: readers pass over a part of a damaged index without an error."""
        stated: Counter[str] = Counter()
        for connection in self._connections:
            stated[connection.topic] += connection.msgcount
        missing = {topic: count - counts[topic] for topic, count in stated.items() if counts[topic] < count}
        if missing:
            held = ", ".join(f"{lost} of {stated[topic]} on {topic}" for topic, lost in sorted(missing.items()))
            raise SourceError(
                f"{self._bag.name}: frames are missing: {held}; the bag is damaged, and what can be read of it is "
                "found by: mqinfer bag repair FILE NEW"
            )
        known = sum(each.msgcount for each in self._bag.connections)
        if (strangers := self._bag.message_count - known) <= 0 or (counts and not known):  # counts may be left out
            return
        what = f"{self._bag.name}: messages that belong to none of its topics, and are not read: {strangers}"
        if not counts:
            raise SourceError(f"{what}; the bag is damaged")
        log.warning("%s", what)

    def close(self) -> None:
        """Close the bag; frames that were yielded stay valid."""
        self._bag.close()

    def _bounds(self) -> tuple[int | None, int | None]:
        first = None if self._span.is_whole else self._bag.first(self._connections)
        return (None, None) if first is None else self._span.bounds(first[1])


class _Cameras:
    """The calibration that holds for each image topic: the latest by log time, and the first one before that."""

    def __init__(self, bag: Rosbag, images: Sequence[Connection], begin: int | None) -> None:
        self._bag = bag
        self._info_topics = {each.topic: info_topic(each.topic) for each in images}
        by_topic = {name: camera_connections(bag, topic) for topic, name in self._info_topics.items()}
        self.connections = [each for found in by_topic.values() for each in found]
        self._known: dict[str, CameraInfo | None] = {}
        self._raw: dict[str, bytes] = {}
        for connections in by_topic.values():
            with suppress(SourceError):  # the bag is damaged: reading it reports that
                message = (begin is not None and bag.last(connections, begin)) or bag.first(connections)
                if message:
                    self.update(message[0], message[2])

    def update(self, connection: Connection, raw: bytes) -> bool:
        """Take a message if it is a calibration, and return whether it is."""
        topic = connection.topic
        if message_type(connection) != CAMERA_INFO:
            return False
        content = bytes(raw[_STAMP_END:])
        if content != self._raw.get(topic):  # most cameras repeat theirs with each picture
            self._raw[topic] = content
            self._known[topic] = self._bag.camera(connection, raw)
        return True

    def of(self, topic: str) -> CameraInfo | None:
        return self._known.get(self._info_topics[topic])


class _Videos:
    """Decodes the topics that are videos, each from the key frame before the first instant on."""

    def __init__(self, bag: Rosbag, connections: Sequence[Connection], begin: int | None) -> None:
        self._path, self._begin, self._now = bag.name, begin or 0, 0
        self._packets: Counter[str] = Counter()
        videos = [each for each in connections if message_type(each) in VIDEO_TYPES]
        self._topics = {name: VideoTopic(f"{bag.name}: {name}") for name in _topics(videos, VIDEO_TYPES)}
        for name, topic in self._topics.items() if begin is not None else ():
            own = [each for each in videos if each.topic == name]
            for connection, time, raw in bag.messages(own, _key_before(bag, own, self._begin), begin):
                found = bag.image(connection, raw)
                topic.add(Frame(name, 0, found.capture_time_ns, time, found.frame_id, found.image))

    def add(self, frame: Frame) -> Sequence[Frame]:
        """Return the frames that are complete now: that of a picture is; those of a video come with its packets."""
        self._now, topic = frame.log_time_ns, self._topics.get(frame.source)
        if topic is None:
            return (frame,)
        self._packets[frame.source] += 1
        found = topic.add(frame)
        if (pixels := sum(each.pixels for each in self._topics.values())) > _MOST_PIXELS:
            raise SourceError(
                f"{self._path}: videos of {pixels} pixels; at most {_MOST_PIXELS} are decoded together; name those to "
                "read: --topic"
            )
        return self._chosen(found)

    def flush(self) -> list[Frame]:
        """Return the frames that are left."""
        return [frame for topic in self._topics.values() for frame in self._chosen(topic.flush())]

    def _chosen(self, frames: Sequence[Frame]) -> list[Frame]:
        """Return those from the first instant on; one that came with a later packet has the log time of that."""
        return [replace(each, log_time_ns=self._now) for each in frames if each.log_time_ns >= self._begin]

    def check(self) -> None:
        """Raise for packets without a picture; those before the first key frame are logged."""
        missing = []
        for name, topic in self._topics.items():
            lost = sum(time >= self._begin for time in topic.lost)
            if lost:
                missing.append(f"{lost} of {self._packets[name]} on {name}")
            if topic.early:
                log.warning("%s: %s: %d packets before its first key frame are not read", self._path, name, topic.early)
        if missing:
            raise SourceError(
                f"{self._path}: the video is damaged: frames are missing: {', '.join(missing)}: packets that can't be "
                "decoded, and those that refer to them or to missing ones, up to the next key frame"
            )


def _key_before(bag: Rosbag, connections: Sequence[Connection], begin: int) -> int | None:
    """Return the log time of the packet to decode from for pictures from a time on; None for the first one."""

    def accepts(connection: Connection, raw: bytes) -> bool:
        image = bag.image(connection, raw).image
        return isinstance(image, CompressedImage) and is_key(image.format, bytes(image.data))

    found = bag.last(connections, begin, accepts)
    if found is None:
        return None
    image = bag.image(found[0], found[2]).image
    if isinstance(image, CompressedImage) and has_open_key(image.format, bytes(image.data)):
        found = bag.last(connections, found[1], accepts) or found
    return found[1]


def _choose(bag: Rosbag, wanted: Collection[str], others: Collection[str]) -> list[Connection]:
    """Return the connections of image topics, and of those among the wanted ones that have other types."""
    names, more = _topics(bag.connections, PICTURE_TYPES), _topics(bag.connections, others)
    if not names:
        held = _some(f"{each.topic} ({each.msgtype})" for each in bag.connections) or "none"
        raise SourceError(f"{bag.name}: this bag has no image topic; its topics: {held}")
    if missing := sorted(set(wanted) - {*names, *more}):
        known = f"its image topics are {_some(names)}" + (f", those of points {_some(more)}" if more else "")
        raise SourceError(f"{bag.name}: no image topic {', '.join(missing)}; {known}")
    wanted, kinds = set(wanted or names), (*PICTURE_TYPES, *others)
    _check_count(bag, len(wanted), "image topics", _MOST_TOPICS)
    chosen = [each for each in bag.connections if each.topic in wanted and message_type(each) in kinds]
    _check_count(bag, len(_topics(chosen, VIDEO_TYPES)), "topics of videos", _MOST_VIDEOS)
    _check_types(bag, chosen, others)
    return chosen


def _check_types(bag: Rosbag, chosen: Sequence[Connection], points: Collection[str]) -> None:
    kinds_of = Counter(topic for topic, _ in {(each.topic, message_type(each)) for each in chosen})
    if mixed := [topic for topic in _topics(chosen, points) if kinds_of[topic] > 1]:
        raise SourceError(f"{bag.name}: several types of messages on {_some(mixed)}; topics of points have one")


def _topics(connections: Iterable[Connection], kinds: Collection[str]) -> list[str]:
    return sorted({each.topic for each in connections if message_type(each) in kinds})


def _some(names: Iterable[str]) -> str:
    """Return names as an error lists them: of many the first."""
    held = list(names)
    more = len(held) - _MOST_NAMED
    return ", ".join(held[:_MOST_NAMED] + [f"and {more} more"] * (more > 0))


def _check_count(bag: Rosbag, topics: int, kind: str, most: int) -> None:
    if topics > most:
        raise SourceError(f"{bag.name}: {topics} {kind}; at most {most} are read together; name those to read: --topic")


def _without_depth(bag: Rosbag, connections: list[Connection]) -> list[Connection]:
    """Leave out the topics whose first picture is one of distances."""
    depth = [topic for topic in sorted({each.topic for each in connections}) if _holds_depth(bag, topic)]
    if not depth:
        return connections
    named = " ".join(f"--topic {topic}" for topic in depth)
    left = [each for each in connections if each.topic not in depth]
    if not left:
        raise ConfigError(
            f"{bag.name}: all its pictures are depth pictures; if the model takes depth, name them: {named}"
        )
    log.warning(
        "%s: depth pictures are left out: %s; if the model takes depth, name them: %s",
        bag.name,
        ", ".join(depth),
        named,
    )
    return left


def _holds_depth(bag: Rosbag, topic: str) -> bool:
    try:
        first = bag.first([each for each in bag.connections if each.topic == topic])
        return first is not None and is_depth(bag.image(first[0], first[2]).image)
    except SourceError:  # a bag that is damaged here: reading it reports that
        return False
