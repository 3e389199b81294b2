"""Describe a source and its streams, for `mqinfer bag info`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.table import Table
from rich.text import Text

from mqinfer.bags.description import describe_topics
from mqinfer.bags.extent.remote import path_of
from mqinfer.bags.frame import StreamInfo
from mqinfer.bags.ros2.topics import watch_topics
from mqinfer.bags.rosbag import Rosbag, is_bag
from mqinfer.bags.sources import is_live, open_source
from mqinfer.logs import printable


@dataclass(frozen=True, slots=True)
class BagInfo:
    """A source and its streams.

    Attributes:
        spec: Its path, device or URL.
        kind: `ROS 1 bag`, `ROS 2 bag, mcap`, `ROS 2 bag, sqlite3`, `video`, `picture`, `camera` or `ROS 2, domain 0`.
        size_bytes: Size of its files; None for a live source.
        start_ns: Log time of the first message since the epoch, or None if it has no such clock.
        duration: Seconds from the first message to the last, or None if it is unknown.
        message_count: On all topics, or None if it is unknown.
        streams: All topics, including those without images.
    """

    spec: str
    kind: str
    size_bytes: int | None
    start_ns: int | None
    duration: float | None
    message_count: int | None
    streams: tuple[StreamInfo, ...]


def describe(spec: str, seconds: float = 3.0, more: Sequence[str] = ()) -> BagInfo:
    """Describe a bag, video, folder, camera, or what a ROS 2 system publishes; one message of each topic is decoded.

    Args:
        spec: As for `open_source`, or `ros2:` for all topics.
        seconds: How long ROS 2 is watched.
        more: Further files of a bag.

    Raises:
        SourceError: It does not exist or cannot be read.
        MissingExtra: rosbags, OpenCV or cyclonedds is not installed.
    """
    if spec.startswith("ros2:"):
        where, streams = watch_topics(spec.removeprefix("ros2:"), seconds)
        return BagInfo(spec, where, None, None, seconds, sum(each.count or 0 for each in streams), streams)
    path = None if is_live(spec) else path_of(spec)
    if path is not None and is_bag(path):
        return _describe_bag([path, *map(path_of, more)])
    with closing(open_source(spec)) as source:
        (stream,) = source.streams()
    size = None if path is None else _size(path)
    duration = (stream.count - 1) / stream.rate if stream.count and stream.rate else None
    return BagInfo(spec, stream.message_type, size, None, duration, stream.count, (stream,))


def headline(info: BagInfo) -> str:
    """Return one line about the source."""
    parts = [f"{info.spec}: {info.kind}"]
    if info.size_bytes is not None:
        parts.append(f"{info.size_bytes / 1e6:.1f} MB")
    if info.start_ns is not None:
        parts.append(f"from {datetime.fromtimestamp(info.start_ns / 1e9, UTC):%Y-%m-%d %H:%M:%S} UTC")
    if info.duration is not None:
        parts.append(f"{info.duration:.3f} s")
    if info.message_count is not None:
        parts.append(f"{info.message_count} messages")
    return ", ".join(parts)


def table(info: BagInfo) -> Table:
    """Make a table of the streams, one in each row."""
    grid = Table()
    for name in ("topic", "type", "encoding", "size", "camera"):
        grid.add_column(name, overflow="fold")
    for name in ("count", "rate"):
        grid.add_column(name, justify="right")
    if any(stream.published for stream in info.streams):
        grid.add_column("published", overflow="fold")
    for stream in info.streams:
        size = f"{stream.width}x{stream.height}" if stream.width else ""
        count = "" if stream.count is None else str(stream.count)
        rate = "" if stream.rate is None else f"{stream.rate:.2f} Hz"
        names = map(printable, (stream.source, stream.message_type, stream.encoding))
        published = filter(None, [stream.published])
        grid.add_row(*map(Text, names), size, Text(printable(_camera(stream))), count, rate, *published)
    return grid


def _camera(stream: StreamInfo) -> str:
    """Return the distortion model, the focal length, and the size if it is not the pictures'; empty if not known."""
    camera = stream.camera
    if camera is None:
        return ""
    if not camera.intrinsic[0]:
        return "not calibrated"
    size = f"{camera.width}x{camera.height}"
    other = "" if size == f"{stream.width}x{stream.height}" else f", of {size}"
    return f"{camera.distortion_model or 'no distortion'}, f {camera.intrinsic[0]:.1f}{other}"


def _describe_bag(paths: Sequence[Path]) -> BagInfo:
    with closing(Rosbag(*paths)) as bag:
        times = bag.times()
        start, duration = (None, 0.0) if times is None else (times[0], (times[1] - times[0]) / 1e9)
        size = sum(map(_size, paths))
        return BagInfo(bag.name, bag.kind, size, start, duration, bag.message_count, describe_topics(bag))


def _size(path: Path) -> int:
    files = path.iterdir() if path.is_dir() else [path]
    return sum(each.stat().st_size for each in files if each.is_file())
