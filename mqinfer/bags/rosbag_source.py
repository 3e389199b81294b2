"""ROS 1 and ROS 2 bags through rosbags' readers; no ROS installation is needed."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from mqinfer.bags.frame import CompressedImage, Frame, RawImage, StreamInfo
from mqinfer.bags.span import WHOLE, Span
from mqinfer.protocol.errors import MissingExtra, MqinferError, SourceError

if TYPE_CHECKING:
    from rosbags.highlevel import AnyReader
    from rosbags.interfaces import Connection

__all__ = ["COMPRESSED_TYPE", "IMAGE_TYPES", "RAW_TYPE", "RosbagSource", "is_bag"]

RAW_TYPE = "sensor_msgs/msg/Image"
COMPRESSED_TYPE = "sensor_msgs/msg/CompressedImage"
IMAGE_TYPES = (RAW_TYPE, COMPRESSED_TYPE)

_STORAGES = (".mcap", ".db3")
_ZIPPED = (".zst", ".zstd")


def is_bag(path: Path) -> bool:
    """Say whether a path looks like a bag: by its suffix, or a folder with metadata or storage files in it."""
    if path.is_dir():
        return (path / "metadata.yaml").exists() or bool(_storage_files(path))
    return path.suffix in (".bag", *_STORAGES) or _is_zipped(path)


def _storage_files(folder: Path) -> list[Path]:
    return sorted(each for each in folder.iterdir() if each.suffix in _STORAGES)


def _is_zipped(path: Path) -> bool:
    return path.suffix in _ZIPPED and Path(path.stem).suffix in _STORAGES


class RosbagSource:
    """The image topics of a bag.

    A ROS 1 `.bag`; a ROS 2 folder with `metadata.yaml`; a bare `.mcap` or `.db3` file or a folder of them; either
    compressed with zstd. Opening reads the index only.

    Args:
        path: The bag.
        topics: Image topics that are wanted; none for all.
        span: The part that is wanted, counted from the first frame of these topics by log time.

    Raises:
        SourceError: It is damaged or foreign, has no image topic, or not the ones that were asked for.
        MissingExtra: rosbags is not installed.
    """

    def __init__(self, path: Path, *, topics: Sequence[str] = (), span: Span = WHOLE) -> None:
        self._path = path
        self._span = span
        self._stack = ExitStack()
        with ExitStack() as rollback:
            rollback.callback(self._stack.close)
            self._reader = _open(path, self._stack)
            self._connections = _choose(path, self._reader, topics)
            rollback.pop_all()

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the chosen image topics."""
        names = sorted({connection.topic for connection in self._connections})
        return tuple(self._describe(name) for name in names)

    def topics(self) -> tuple[StreamInfo, ...]:
        """List all topics, those without images too."""
        with _foreign_errors(self._path):
            return tuple(self._describe(name) for name in sorted(self._reader.topics))

    def times(self) -> tuple[int, int]:
        """Give the log times of the first and the last message, in nanoseconds; equal for an empty bag."""
        if not self._reader.message_count:
            return 0, 0
        return self._reader.start_time, self._reader.end_time - 1

    def frames(self) -> Iterator[Frame]:
        """Yield the frames of the chosen topics, merged by log time.

        Raises:
            SourceError: The bag is damaged further on; what came before it has been yielded.
        """
        counts: Counter[str] = Counter()
        for connection, log_time_ns, raw in self._messages():
            with _foreign_errors(self._path, f"{connection.topic} at {log_time_ns} ns"):
                message: Any = self._reader.deserialize(raw, connection.msgtype)
                frame = _frame(connection.topic, counts[connection.topic], log_time_ns, message)
            counts[connection.topic] += 1
            yield frame

    def close(self) -> None:
        """Close the bag; memory of frames that were yielded stays valid."""
        self._stack.close()

    def _messages(self) -> Iterator[tuple[Connection, int, bytes]]:
        begin, end = self._bounds()
        with _foreign_errors(self._path):
            messages = self._reader.messages(self._connections, start=begin, stop=end)
        while True:
            with _foreign_errors(self._path):
                message = next(messages, None)
            if message is None:
                return
            yield message

    def _bounds(self) -> tuple[int | None, int | None]:
        if self._span.is_whole:
            return None, None
        first = self._first(self._connections)
        return (None, None) if first is None else self._span.bounds(first[1])

    def _first(self, connections: Sequence[Connection]) -> tuple[Connection, int, bytes] | None:
        with _foreign_errors(self._path):
            return next(self._reader.messages(connections), None)

    def _describe(self, topic: str) -> StreamInfo:
        info = self._reader.topics[topic]
        connections = [each for each in self._reader.connections if each.topic == topic]
        first = self._first(connections) if info.msgcount else None
        encoding, width, height = "", 0, 0
        if first is not None and first[0].msgtype in IMAGE_TYPES:
            with _foreign_errors(self._path, topic):
                encoding, width, height = _shape(self._reader.deserialize(first[2], first[0].msgtype))
        kinds = {each.msgtype for each in connections}
        rate = None if first is None else self._rate(connections, info.msgcount, first[1])
        is_image = not kinds.isdisjoint(IMAGE_TYPES)
        return StreamInfo(topic, ", ".join(sorted(kinds)), encoding, width, height, info.msgcount, rate, is_image)

    def _rate(self, connections: Sequence[Connection], count: int, first_ns: int) -> float | None:
        last_ns = self._last_ns(connections, first_ns)
        return (count - 1) * 1e9 / (last_ns - first_ns) if count > 1 and last_ns > first_ns else None

    def _last_ns(self, connections: Sequence[Connection], first_ns: int) -> int:
        """Look for the last message from the end backwards, in windows that grow, so that a long bag is not read."""
        window = 1_000_000_000
        while True:
            start = max(first_ns, self._reader.end_time - window)
            with _foreign_errors(self._path):
                times = [log_time_ns for _, log_time_ns, _ in self._reader.messages(connections, start=start)]
            if times:
                return max(times)
            window *= 8


def _open(path: Path, stack: ExitStack) -> AnyReader:
    try:
        from rosbags.highlevel import AnyReader
        from rosbags.typesys import Stores, get_typestore
    except ImportError as missing:
        raise MissingExtra.of("rosbags", "edge") from missing
    with _foreign_errors(path):
        # Recordings of ROS 2 Humble and before carry no message definitions.
        reader = AnyReader(_files(path, stack), default_typestore=get_typestore(Stores.ROS2_HUMBLE))
        return stack.enter_context(reader)


def _files(path: Path, stack: ExitStack) -> list[Path]:
    if path.is_dir():
        return [path] if (path / "metadata.yaml").exists() else _storage_files(path)
    return [_unzip(path, stack)] if _is_zipped(path) else [path]


def _unzip(path: Path, stack: ExitStack) -> Path:
    import sys

    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd  # what rosbags itself depends on

    folder = stack.enter_context(TemporaryDirectory(prefix="mqinfer-"))
    target = Path(folder, path.stem)
    with zstd.open(path, "rb") as packed, target.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    return target


def _choose(path: Path, reader: AnyReader, wanted: Sequence[str]) -> list[Connection]:
    images = [each for each in reader.connections if each.msgtype in IMAGE_TYPES]
    names = sorted({each.topic for each in images})
    if not images:
        held = ", ".join(f"{each.topic} ({each.msgtype})" for each in reader.connections) or "none at all"
        raise SourceError(f"{path}: no image topic in this bag; its topics: {held}")
    if missing := sorted(set(wanted) - set(names)):
        raise SourceError(f"{path}: no image topic {', '.join(missing)}; image topics: {', '.join(names)}")
    return [each for each in images if not wanted or each.topic in wanted]


def _frame(topic: str, sequence: int, log_time_ns: int, message: Any) -> Frame:
    header = message.header
    capture_time_ns = header.stamp.sec * 1_000_000_000 + header.stamp.nanosec
    return Frame(topic, sequence, capture_time_ns, log_time_ns, header.frame_id, _image(message))


def _image(message: Any) -> RawImage | CompressedImage:
    # A view: the bytes stay where the reader put them.
    if message.__msgtype__ == COMPRESSED_TYPE:
        return CompressedImage(message.format, message.data.data)
    return RawImage(
        encoding=message.encoding,
        height=message.height,
        width=message.width,
        step=message.step,
        is_bigendian=bool(message.is_bigendian),
        data=message.data.data,
    )


def _shape(message: Any) -> tuple[str, int, int]:
    if message.__msgtype__ == COMPRESSED_TYPE:
        return message.format, 0, 0
    return message.encoding, message.width, message.height


@contextmanager
def _foreign_errors(path: Path, where: str = "") -> Iterator[None]:
    """Map whatever rosbags raises on a damaged or foreign file.

    Its parsers let through what their ground raises (struct, assert, KeyError, lz4, bz2, zstd, SQLite, Unicode, ...),
    so the mapping is by place and not by class.
    """
    try:
        yield
    except MqinferError:
        raise
    except Exception as failed:
        place = f"{path}: {where}: " if where else f"{path}: "
        reason = str(failed).strip() or type(failed).__name__
        raise SourceError(f"{place}{reason.rstrip('.')}; {_advice(path)}") from failed


def _advice(path: Path) -> str:
    if path.suffix == ".bag":
        return "a ROS 1 bag that was not closed or is cut off can be mended with: rosbag reindex FILE"
    if ".mcap" in path.suffixes:
        return "an MCAP file that was not closed or is cut off can be mended with: mcap recover FILE -o NEW"
    return "it is damaged, cut off, or no ROS 2 bag; a folder can be mended with: ros2 bag reindex FOLDER"
