"""Bags made with rosbags' own writers, and the real ones of ../shared/data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import CompressionFormat, CompressionMode, StoragePlugin
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_typestore
from rosbags.typesys.store import Typestore

from mqinfer.images.picture import CompressedImage, RawImage

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"

Image = RawImage | CompressedImage
Compression = Literal["none", "lz4", "bz2"]
Storage = Literal["mcap", "sqlite3"]


@dataclass(frozen=True)
class Recorded:
    """One message to write: an image, or text for a topic without images; before 0, a topic without messages."""

    topic: str
    log_time_ns: int
    capture_time_ns: int
    content: Image | str
    frame_id: str = "camera"


WriteRos1 = Callable[..., Path]
WriteRos2 = Callable[..., Path]
_types = cache(get_typestore)  # a tenth of a second each


def _message(store: Typestore, recorded: Recorded, *, is_ros1: bool) -> Any:
    types = store.types
    if isinstance(recorded.content, str):
        return types["std_msgs/msg/String"](data=recorded.content)
    seconds, nanoseconds = divmod(recorded.capture_time_ns, 10**9)
    number = {"seq": 0} if is_ros1 else {}
    stamp = types["builtin_interfaces/msg/Time"](sec=seconds, nanosec=nanoseconds)
    header = types["std_msgs/msg/Header"](stamp=stamp, frame_id=recorded.frame_id, **number)
    image = recorded.content
    data = np.frombuffer(image.data, np.uint8)
    if isinstance(image, CompressedImage):
        return types["sensor_msgs/msg/CompressedImage"](header=header, format=image.format, data=data)
    return types["sensor_msgs/msg/Image"](
        header=header,
        height=image.height,
        width=image.width,
        encoding=image.encoding,
        is_bigendian=int(image.is_bigendian),
        step=image.step,
        data=data,
    )


def _write(writer: Any, store: Typestore, messages: Sequence[Recorded], serialize: Callable[..., Any]) -> None:
    connections: dict[str, Any] = {}
    for each in messages:
        message = _message(store, each, is_ros1=isinstance(writer, Writer1))
        if each.topic not in connections:
            connections[each.topic] = writer.add_connection(each.topic, message.__msgtype__, typestore=store)
        if each.log_time_ns >= 0:
            writer.write(connections[each.topic], each.log_time_ns, serialize(message, message.__msgtype__))


def _write_ros1(path: Path, messages: Sequence[Recorded], compression: Compression = "none", chunk: int = 0) -> Path:
    store = _types(Stores.ROS1_NOETIC)
    writer = Writer1(path)
    if compression != "none":
        writer.set_compression(Writer1.CompressionFormat[compression.upper()])
    if chunk:
        writer.chunk_threshold = chunk
    with writer:
        _write(writer, store, messages, store.serialize_ros1)
    return path


def _write_ros2(path: Path, messages: Sequence[Recorded], storage: Storage = "mcap", zstd: str = "none") -> Path:
    store = _types(Stores.ROS2_HUMBLE)
    writer = Writer2(path, version=9, storage_plugin=StoragePlugin[storage.upper()])
    writer.set_compression(CompressionMode[zstd.upper()], CompressionFormat.ZSTD)
    with writer:
        _write(writer, store, messages, store.serialize_cdr)
    return path


@pytest.fixture(scope="session")
def recorded() -> type[Recorded]:
    """The class of messages to write."""
    return Recorded


@pytest.fixture(scope="session")
def write_ros1() -> WriteRos1:
    """Write a ROS 1 bag: `write_ros1(path, messages, compression, chunk)`."""
    return _write_ros1


@pytest.fixture(scope="session")
def write_ros2() -> WriteRos2:
    """Write a ROS 2 folder: `write_ros2(path, messages, storage, zstd)`, zstd of none, file, message or storage."""
    return _write_ros2


@pytest.fixture
def shared() -> Path:
    """Return the folder of real data, or skip."""
    if not SHARED.is_dir():
        pytest.skip("../shared/data is absent")
    return SHARED


@pytest.fixture(scope="session")
def grey() -> Callable[[int], RawImage]:
    """A 4x3 mono8 image filled with one value."""
    return lambda value: RawImage("mono8", 3, 4, 4, is_bigendian=False, data=bytes([value]) * 12)


@pytest.fixture(scope="session")
def drive(grey: Callable[[int], RawImage]) -> list[Recorded]:
    """Ten frames on each of two cameras in turn, 50 ms apart, stamped a year earlier, and some text."""
    start, year = 1_700_000_000_000_000_007, 31_536_000_000_000_000
    messages = [
        Recorded(f"/camera{index % 2}", log_time_ns := start + index * 50_000_000, log_time_ns - year, grey(index))
        for index in range(20)
    ]
    return [Recorded("/chatter", start - 10**9, 0, "hello"), *messages, Recorded("/chatter", start + 10**10, 0, "bye")]


@pytest.fixture
def write_bag(tmp_path: Path) -> Callable[[Sequence[Recorded], str], Path]:
    """Write a bag of a kind: `ros1` in many chunks, or of a storage of ROS 2."""

    def write(messages: Sequence[Recorded], kind: str) -> Path:
        if kind == "ros1":
            return _write_ros1(tmp_path / "drive.bag", messages, "lz4", 200)
        return _write_ros2(tmp_path / "drive", messages, "mcap" if kind == "mcap" else "sqlite3")

    return write
