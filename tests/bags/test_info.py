from __future__ import annotations

import io
import struct
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from rich.console import Console

from mqinfer.bags.frame import StreamInfo
from mqinfer.bags.info import describe, headline, table
from mqinfer.bags.rosbag import Rosbag
from mqinfer.images.picture import CompressedImage
from mqinfer.protocol.errors import SourceError

Write = Callable[..., Path]
Drive = Sequence[Any]


def by_name(streams: Sequence[StreamInfo]) -> dict[str, StreamInfo]:
    """Look streams up by their topic."""
    return {stream.source: stream for stream in streams}


@pytest.mark.parametrize("kind", ["ROS 1 bag", "ROS 2 bag, mcap", "ROS 2 bag, sqlite3"])
def test_bag(write_bag: Write, drive: Drive, kind: str) -> None:
    """All topics with type, encoding, size, count and rate; those without images too."""
    info = describe(str(write_bag(drive, kind.rpartition(" ")[2].replace("bag", "ros1"))))
    assert (info.kind, info.message_count, info.start_ns) == (kind, 22, drive[0].log_time_ns)
    assert info.duration == pytest.approx(11.0)
    assert info.size_bytes
    topics = by_name(info.streams)
    assert list(topics) == ["/camera0", "/camera1", "/chatter"]
    camera, chatter = topics["/camera1"], topics["/chatter"]
    assert (camera.message_type, camera.encoding) == ("sensor_msgs/msg/Image", "mono8")
    assert (camera.width, camera.height, camera.count, camera.is_image) == (4, 3, 10, True)
    assert camera.rate == pytest.approx(10.0)
    assert (chatter.message_type, chatter.encoding, chatter.width) == ("std_msgs/msg/String", "", 0)
    assert (chatter.count, chatter.is_image) == (2, False)
    assert chatter.rate == pytest.approx(1 / 11)


@pytest.mark.parametrize("kind", ["ros1", "mcap", "sqlite3"])
def test_many_topics(write_bag: Write, recorded: type[Any], monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """However many topics there are, a bag is gone through a few times, and each has its own first and last message."""
    starts = list[int | None]()

    def messages(bag: Rosbag, connections: Any, start: int | None = None, stop: int | None = None) -> Iterator[Any]:
        starts.append(start)
        return whole(bag, connections, start, stop)

    whole = Rosbag.messages
    monkeypatch.setattr(Rosbag, "messages", messages)
    picture = CompressedImage("png", b"")
    written = [(10**9 * (topic + turn * (200 + topic)), f"/{topic:03}") for turn in range(2) for topic in range(200)]
    drive = [recorded(topic, 10**10 + at, at, picture) for at, topic in sorted(written)]
    bag = write_bag(drive, kind)
    streams = describe(str(bag)).streams
    assert [(each.source, each.count) for each in streams] == [(f"/{topic:03}", 2) for topic in range(200)]
    assert [each.rate for each in streams] == pytest.approx([1 / (200 + topic) for topic in range(200)])
    assert len(starts) < 50


def test_sizes_of_compressed_images(tmp_path: Path, write_ros2: Write, recorded: type[Any]) -> None:
    """The size comes from the picture's own header, also behind a depth header; a broken picture has none."""
    is_done, encoded = cv2.imencode(".png", np.zeros((7, 9), np.uint16))
    assert is_done
    png = encoded.tobytes()
    messages = [
        recorded("/broken", 1, 1, CompressedImage("jpeg", b"\xff\xd8")),
        recorded("/depth", 2, 2, CompressedImage("16UC1; compressedDepth png", struct.pack("<iff", 0, 0, 0) + png)),
        recorded("/front", 3, 3, CompressedImage("png", png)),
    ]
    topics = by_name(describe(str(write_ros2(tmp_path / "drive", messages))).streams)
    assert [(each.width, each.height) for each in topics.values()] == [(0, 0), (9, 7), (9, 7)]
    assert {each.rate for each in topics.values()} == {None}


def test_bag_without_images_can_be_described(tmp_path: Path, write_ros1: Write, recorded: type[Any]) -> None:
    """What can't be replayed can still be looked into."""
    info = describe(str(write_ros1(tmp_path / "a.bag", [recorded("/chatter", 1, 1, "hello")])))
    assert [stream.source for stream in info.streams] == ["/chatter"]


def test_empty_bag(tmp_path: Path, write_ros1: Write) -> None:
    """An empty bag has no start and lasts no time."""
    info = describe(str(write_ros1(tmp_path / "a.bag", [])))
    assert (info.start_ns, info.duration, info.message_count, info.streams) == (None, 0.0, 0, ())
    assert "0 messages" in headline(info)


def test_table(tmp_path: Path, write_ros1: Write, drive: Drive) -> None:
    """The table holds a row a topic, and nothing is cut off at 80 columns."""
    info = describe(str(write_ros1(tmp_path / "a.bag", drive)))
    text = io.StringIO()
    Console(file=text, width=80).print(table(info))
    for part in ("/camera0", "/chatter", "mono8", "4x3", "10.00 Hz"):
        assert part in text.getvalue()
    assert "ROS 1 bag" in headline(info)
    assert "2023-11-14" in headline(info)


def test_nothing_there(tmp_path: Path) -> None:
    """A path that doesn't exist is a SourceError here too."""
    with pytest.raises(SourceError, match="no such file"):
        describe(str(tmp_path / "gone.bag"))


@pytest.mark.shared_data
def test_real_bags(shared: Path) -> None:
    """Counts, sizes and rates of the files that others recorded."""
    svo = by_name(describe(str(shared / "bags" / "tiny_svo.bag")).streams)["/camera/image_raw"]
    assert (svo.encoding, svo.width, svo.height, svo.count) == ("mono8", 752, 480, 10)
    assert svo.rate == pytest.approx(30.0, abs=0.01)
    rerun = by_name(describe(str(shared / "bags" / "rerun_mcap" / "rosbag2_2025_09_10-13_03_56_0.mcap")).streams)
    assert len(rerun) == 32
    assert (rerun["/compressed_image"].width, rerun["/compressed_image"].encoding) == (640, "jpeg")
    assert sum(stream.is_image for stream in rerun.values()) == 2


@pytest.mark.shared_data
def test_real_video(shared: Path) -> None:
    """A video is one stream."""
    info = describe(str(shared / "video" / "solidWhiteRight.mp4"))
    (stream,) = info.streams
    assert (info.kind, stream.count, stream.width, stream.height, stream.rate) == ("video", 221, 960, 540, 25.0)
    assert info.duration == pytest.approx(8.8)
