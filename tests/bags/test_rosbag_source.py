from __future__ import annotations

import re
import sqlite3
import struct
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mcap.reader import make_reader
from mcap.writer import CompressionType
from mcap.writer import Writer as McapWriter
from rosbags.highlevel import AnyReader

from mqinfer.bags.frame import Frame, FrameSource
from mqinfer.bags.info import describe
from mqinfer.bags.rosbag import Rosbag
from mqinfer.bags.sources import open_source
from mqinfer.images.decode import to_rgb
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.protocol.errors import BadImage, ConfigError, SourceError
from tests.bags.reading import read

Write = Callable[..., Path]
Drive = Sequence[Any]


def read_until_error(source: FrameSource) -> tuple[int, SourceError | None]:
    """Count frames up to the end or the first error."""
    count = 0
    try:
        for _ in source.frames():
            count += 1
    except SourceError as error:
        return count, error
    return count, None


def images(drive: Drive) -> list[Any]:
    """The messages of a drive that are images."""
    return [each for each in drive if not isinstance(each.content, str)]


def assert_same(frames: list[Frame], drive: Drive) -> None:
    """Every frame has the content, stamps and order that were written."""
    wanted = images(drive)
    assert [frame.source for frame in frames] == [each.topic for each in wanted]
    assert [frame.log_time_ns for frame in frames] == [each.log_time_ns for each in wanted]
    assert [frame.capture_time_ns for frame in frames] == [each.capture_time_ns for each in wanted]
    assert [frame.sequence for frame in frames] == [index // 2 for index in range(len(wanted))]
    assert {frame.frame_id for frame in frames} == {"camera"}
    for frame, each in zip(frames, wanted, strict=True):
        assert isinstance(frame.image, RawImage)
        assert bytes(frame.image.data) == bytes(each.content.data)
        assert (frame.image.height, frame.image.width, frame.image.step) == (3, 4, 4)


@pytest.mark.parametrize("compression", ["none", "lz4", "bz2"])
def test_ros1(tmp_path: Path, write_ros1: Write, drive: Drive, compression: str) -> None:
    """A ROS 1 bag gives its images by log time, whatever its chunk compression, and gives them again."""
    path = write_ros1(tmp_path / "drive.bag", drive, compression, 200)
    with closing(open_source(str(path))) as source:
        assert_same(list(source.frames()), drive)
        assert_same(list(source.frames()), drive)


@pytest.mark.parametrize("storage", ["sqlite3", "mcap"])
@pytest.mark.parametrize("zstd", ["none", "file", "message"])
def test_ros2_folder(tmp_path: Path, write_ros2: Write, drive: Drive, storage: str, zstd: str) -> None:
    """A ROS 2 folder of any name gives the same frames in both storages, plain and compressed by file or message."""
    assert_same(read(write_ros2(tmp_path / "drive.mcap", drive, storage, zstd)), drive)


def test_mcap_chunk_compression(tmp_path: Path, write_ros2: Write, drive: Drive) -> None:
    """An MCAP whose chunks are compressed by its storage reads the same."""
    assert_same(read(write_ros2(tmp_path / "drive", drive, "mcap", "storage")), drive)


@pytest.mark.parametrize("storage", ["sqlite3", "mcap"])
@pytest.mark.parametrize("zstd", ["none", "file"])
def test_ros2_bare_file(tmp_path: Path, write_ros2: Write, drive: Drive, storage: str, zstd: str) -> None:
    """A storage file needs no metadata.yaml beside it, compressed as a whole or not."""
    folder = write_ros2(tmp_path / "drive", drive, storage, zstd)
    (folder / "metadata.yaml").unlink()
    (bare,) = folder.iterdir()
    assert_same(read(bare), drive)
    if zstd == "none":
        assert_same(read(folder), drive)


def test_temporary_copy_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_ros2: Write, drive: Drive
) -> None:
    """Closing a compressed bare file removes what was unpacked."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    source = open_source(str(next(write_ros2(tmp_path / "drive", drive, "sqlite3", "file").glob("*.zstd"))))
    assert list((tmp_path / "temporary").iterdir())
    source.close()
    assert not list((tmp_path / "temporary").iterdir())


def test_compressed_image(tmp_path: Path, write_ros2: Write, recorded: type[Any]) -> None:
    """A CompressedImage keeps its format string and its bytes."""
    image = CompressedImage("rgb8; jpeg compressed bgr8", b"\xff\xd8\xff\xd9")
    (frame,) = read(write_ros2(tmp_path / "drive", [recorded("/front", 5, 6, image)]))
    assert isinstance(frame.image, CompressedImage)
    assert (frame.image.format, bytes(frame.image.data)) == (image.format, image.data)


def test_types_in_two_parts(tmp_path: Path, write_ros2: Write, drive: Drive) -> None:
    """Early recorders of ROS 2 named the type `sensor_msgs/Image`."""
    folder = write_ros2(tmp_path / "drive", drive, "sqlite3")
    for file in folder.iterdir():
        if file.suffix == ".db3":
            with closing(sqlite3.connect(file)) as database:
                database.execute("UPDATE topics SET type = replace(type, '/msg/', '/')")
                database.commit()
        elif file.suffix == ".yaml":
            file.write_text(file.read_text().replace("sensor_msgs/msg/Image", "sensor_msgs/Image"))
    assert_same(read(folder), drive)


def test_image_data_is_not_copied(tmp_path: Path, write_ros1: Write, drive: Drive) -> None:
    """The pixels are a read-only view on the message that the reader made."""
    frame = read(write_ros1(tmp_path / "drive.bag", drive))[0]
    assert isinstance(frame.image, RawImage)
    assert isinstance(frame.image.data, memoryview)
    assert frame.image.data.readonly


def test_chosen_topic(tmp_path: Path, write_ros1: Write, drive: Drive) -> None:
    """Only the topics that were asked for are read."""
    frames = read(write_ros1(tmp_path / "drive.bag", drive), topics=["/camera1"])
    assert {frame.source for frame in frames} == {"/camera1"}
    assert [frame.sequence for frame in frames] == list(range(10))


def test_unknown_topic_lists_images(tmp_path: Path, write_ros1: Write, drive: Drive) -> None:
    """A topic that isn't there, or has no images, is refused with those that have."""
    path = write_ros1(tmp_path / "drive.bag", drive)
    for topic in ("/nowhere", "/chatter"):
        with pytest.raises(SourceError, match=rf"no image topic {topic}; its image topics are /camera0, /camera1"):
            open_source(str(path), topics=["/camera0", topic])


def test_bag_without_images(tmp_path: Path, write_ros1: Write, recorded: type[Any]) -> None:
    """A bag with no image topic is refused with the topics that it has."""
    path = write_ros1(tmp_path / "drive.bag", [recorded("/chatter", 1, 1, "hello")])
    with pytest.raises(SourceError, match=r"no image topic; its topics: /chatter \(std_msgs/msg/String\)"):
        open_source(str(path))


@pytest.mark.parametrize("kind", ["ros1", "mcap", "sqlite3"])
def test_empty_bag(write_bag: Write, kind: str) -> None:
    """A bag without a single message is refused in words."""
    with pytest.raises(SourceError, match="its topics: none"):
        open_source(str(write_bag([], kind)))


@pytest.mark.parametrize("kind", ["ros1", "mcap", "sqlite3"])
def test_span(write_bag: Write, drive: Drive, kind: str) -> None:
    """Start and duration count from the first frame, not from the bag's first message; the end is left out."""
    path = write_bag(drive, kind)
    first = images(drive)[0].log_time_ns
    times = [frame.log_time_ns - first for frame in read(path, start=0.1, duration=0.2)]
    assert times == [100_000_000, 150_000_000, 200_000_000, 250_000_000]
    whole = [(frame.source, frame.sequence, frame.log_time_ns) for frame in read(path)]
    part = [(frame.source, frame.sequence, frame.log_time_ns) for frame in read(path, start=0.85)]
    assert part == whole[-3:], "a frame has the number that it has in the whole recording"
    with pytest.raises(ConfigError, match="no frame from 100 s on; choose an earlier start"):
        read(path, start=100.0)


@pytest.mark.parametrize(("start", "duration"), [(-1.0, None), (float("nan"), None), (0.0, 0.0), (0.0, -2.0)])
def test_bad_span(tmp_path: Path, start: float, duration: float | None) -> None:
    """A span that makes no sense is a mistake in the options."""
    with pytest.raises(ConfigError):
        open_source(str(tmp_path), start=start, duration=duration)


def test_streams(tmp_path: Path, write_ros2: Write, drive: Drive) -> None:
    """A stream says its encoding, size, count and rate; with a span the count isn't known."""
    path = write_ros2(tmp_path / "drive", drive)
    with closing(open_source(str(path), topics=["/camera1"])) as source:
        (stream,) = source.streams()
    assert (stream.source, stream.encoding, stream.width, stream.height) == ("/camera1", "mono8", 4, 3)
    assert stream.count == 10
    assert stream.rate == pytest.approx(10.0)
    with closing(open_source(str(path), start=0.5)) as source:
        assert {stream.count for stream in source.streams()} == {None}


def test_two_publishers_on_one_topic(
    tmp_path: Path, write_ros2: Write, recorded: type[Any], grey: Callable[[int], RawImage]
) -> None:
    """Split files of one recording are read as one, merged by log time."""
    for name, times in (("a", (1, 3, 5)), ("b", (2, 4))):
        folder = write_ros2(tmp_path / name, [recorded("/front", time, time, grey(time)) for time in times])
        (tmp_path / "both").mkdir(exist_ok=True)
        next(folder.glob("*.mcap")).rename(tmp_path / "both" / f"{name}.mcap")
    frames = read(tmp_path / "both")
    assert [(frame.sequence, frame.log_time_ns) for frame in frames] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5)]


class TestDamage:
    """Files that are cut off, overwritten or something else altogether."""

    def test_unclosed_ros1(self, tmp_path: Path, write_ros1: Write, drive: Drive) -> None:
        """A ROS 1 bag whose index was never written names the command that mends it."""
        path = write_ros1(tmp_path / "drive.bag", drive)
        content = path.read_bytes()
        path.write_bytes(content.replace(b"index_pos=" + content.split(b"index_pos=")[1][:8], b"index_pos=" + bytes(8)))
        with pytest.raises(SourceError, match=r"drive\.bag: .*not indexed.*mqinfer bag repair"):
            open_source(str(path))

    @pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.6, 0.9, 0.99])
    @pytest.mark.parametrize("kind", ["ros1", "mcap", "sqlite3"])
    def test_truncated(self, write_bag: Write, drive: Drive, *, kind: str, share: float) -> None:
        """Wherever a bag is cut off, there is one SourceError that names the file and what to do, and no other."""
        path = write_bag(drive, kind)
        if path.is_dir():
            path = next(each for each in path.iterdir() if each.suffix != ".yaml")
        content = path.read_bytes()
        path.write_bytes(content[: int(len(content) * share)])
        advice = "bag repair|it is empty|cut off behind its first bytes|no image topic"
        with pytest.raises(SourceError, match=rf"{path.name}: .*({advice})"):
            read(path)

    @pytest.mark.parametrize("share", [0.5, 0.9])
    @pytest.mark.parametrize("compression", ["none", "lz4", "bz2"])
    def test_broken_further_on(
        self, tmp_path: Path, write_ros1: Write, drive: Drive, *, compression: str, share: float
    ) -> None:
        """What comes before the damage is listed and yielded, then there is a SourceError; no part reads ahead."""
        path = write_ros1(tmp_path / "drive.bag", drive, compression, 200)
        content = bytearray(path.read_bytes())
        chunks = [found.start() for found in re.finditer(b"compression=", content)]
        place = chunks[int(len(chunks) * share)]
        content[place + 44 : place + 90] = b"\xee" * 46  # past the chunk's header, into what it holds
        path.write_bytes(content)
        with closing(open_source(str(path))) as source:
            assert [stream.count for stream in source.streams()] == [10, 10]
            count, error = read_until_error(source)
        assert 20 * share - 4 < count < 20
        assert "drive.bag" in str(error)
        assert "mqinfer bag repair" in str(error)

    def test_broken_half_way_mcap(self, tmp_path: Path, write_ros2: Write, recorded: type[Any]) -> None:
        """The same for an MCAP with a damaged chunk."""
        noise = np.random.default_rng(5).integers(0, 256, 400_000, np.uint8).tobytes()
        image = RawImage("mono8", 500, 800, 800, is_bigendian=False, data=noise)
        messages = [recorded("/front", time, time, image) for time in range(1, 10)]
        (path,) = write_ros2(tmp_path / "drive", messages, "mcap", "storage").glob("*.mcap")
        content = bytearray(path.read_bytes())
        chunks = [found.start() for found in re.finditer(re.escape(b"\x28\xb5\x2f\xfd"), content)]
        middle = chunks[len(chunks) // 2]
        content[middle : middle + 16] = bytes(16)
        path.write_bytes(content)
        with closing(open_source(str(path))) as source:
            count, error = read_until_error(source)
        assert 0 < count < 9
        assert "mqinfer bag repair" in str(error)

    @pytest.mark.parametrize(
        "name", ["foreign.bag", "foreign.mcap", "foreign.db3", "foreign.mcap.zstd", "foreign.mp4", "foreign.txt"]
    )
    def test_foreign_file(self, tmp_path: Path, name: str) -> None:
        """A file that only has the name of a bag or video is refused in words."""
        (tmp_path / name).write_bytes(b"nothing that was promised" * 20)
        with pytest.raises(SourceError, match=name):
            open_source(str(tmp_path / name))

    @pytest.mark.parametrize("name", ["drive.bag", "drive.mcap", "drive.db3", "drive.mp4"])
    def test_a_pointer_in_place_of_the_recording(self, tmp_path: Path, name: str) -> None:
        """Nothing could repair it: the advice is to fetch the file."""
        (tmp_path / name).write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
        with pytest.raises(SourceError, match="git lfs pull") as caught:
            read(tmp_path / name)
        assert "repair" not in str(caught.value)

    @given(st.randoms(use_true_random=False), st.sampled_from(["none.bag", "lz4.bag", "bag.mcap", "bag.db3"]))
    @settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
    def test_scratched(self, scratched: dict[str, Path], random: Random, name: str) -> None:
        """Whatever bytes are overwritten, reading and describing give frames or a SourceError, and end."""
        path = scratched[name].with_stem("scratched")
        content = bytearray(scratched[name].read_bytes())
        for _ in range(random.randint(1, 4)):
            place, length = random.randrange(len(content)), random.choice([1, 4, 16])
            content[place : place + length] = random.choice([bytes(length), b"\xff" * length, random.randbytes(length)])
        path.write_bytes(content)
        with suppress(SourceError), closing(open_source(str(path))) as source:
            for frame in source.frames():
                to_rgb(frame.image)
        with suppress(SourceError):
            describe(str(path))

    @pytest.fixture
    def scratched(self, tmp_path: Path, write_ros1: Write, write_ros2: Write, drive: Drive) -> dict[str, Path]:
        """A whole bag of each kind."""
        bags = {f"{kind}.bag": write_ros1(tmp_path / f"{kind}.bag", drive, kind, 200) for kind in ("none", "lz4")}
        for storage, suffix in (("mcap", ".mcap"), ("sqlite3", ".db3")):
            bags["bag" + suffix] = next(write_ros2(tmp_path / storage, drive, storage).glob("*" + suffix))
        return bags

    def test_ros2_metadata_is_broken(self, tmp_path: Path, write_ros2: Write, drive: Drive) -> None:
        """A metadata.yaml that isn't YAML, or names files that are gone, is refused in words."""
        folder = write_ros2(tmp_path / "drive", drive)
        next(folder.glob("*.mcap")).unlink()
        with pytest.raises(SourceError, match="missing"):
            open_source(str(folder))
        (folder / "metadata.yaml").write_text("{ nothing: [")
        with pytest.raises(SourceError, match=r"metadata\.yaml is not YAML: while parsing a flow node"):
            open_source(str(folder))

    def test_nothing_there(self, tmp_path: Path) -> None:
        """A path that doesn't exist is named."""
        with pytest.raises(SourceError, match=r"gone\.bag: no such file"):
            open_source(str(tmp_path / "gone.bag"))

    def test_impossible_name(self, tmp_path: Path) -> None:
        """A name that the system refuses is a SourceError too."""
        with pytest.raises(SourceError, match="name too long"):
            open_source(str(tmp_path / ("x" * 300)))

    def test_image_shorter_than_its_header(self, tmp_path: Path, write_ros1: Write, recorded: type[Any]) -> None:
        """A frame whose data is too short is read, fails alone when it is decoded, and the next one works."""
        short = RawImage("mono8", 3, 4, 4, is_bigendian=False, data=bytes(7))
        whole = RawImage("mono8", 3, 4, 4, is_bigendian=False, data=bytes(12))
        frames = read(write_ros1(tmp_path / "drive.bag", [recorded("/a", 1, 1, short), recorded("/a", 2, 2, whole)]))
        with pytest.raises(BadImage, match=r"4x3.*7 bytes.*12"):
            to_rgb(frames[0].image)
        assert to_rgb(frames[1].image).shape == (3, 4, 3)


@pytest.mark.shared_data
class TestRealBags:
    """Files that other programs recorded."""

    @pytest.mark.parametrize(
        ("name", "counts"),
        [
            ("tiny_svo.bag", {"/camera/image_raw": 10}),
            (
                "spot_raw.bag",
                {
                    "/spot/camera/frontleft/image": 1,
                    "/spot/camera/hand_color/image": 1,
                    "/spot/camera/hand_mono/image": 1,
                    "/spot/depth/frontleft/image": 1,
                },
            ),
            ("rerun_mcap/rosbag2_2025_09_10-13_03_56_0.mcap", {"/image": 1, "/compressed_image": 1}),
        ],
    )
    def test_stamps_are_those_of_the_header(self, shared: Path, name: str, counts: dict[str, int]) -> None:
        """Every frame is there once, with the stamps that rosbags reads from the message itself, and decodes."""
        path = shared / "bags" / name
        with closing(open_source(str(path))) as source:
            frames = list(source.frames())
            assert {stream.source: stream.count for stream in source.streams()} == counts
        assert [frame.log_time_ns for frame in frames] == sorted(frame.log_time_ns for frame in frames)
        assert [(f.source, f.log_time_ns, f.capture_time_ns) for f in frames] == _stamps(path)
        assert all(to_rgb(frame.image).std() > 1 for frame in frames)

    def test_one_topic_of_many(self, shared: Path) -> None:
        """Each topic of a bag can be read alone."""
        (frame,) = read(shared / "bags" / "spot_raw.bag", topics=["/spot/depth/frontleft/image"])
        assert isinstance(frame.image, RawImage)
        assert (frame.image.encoding, frame.image.width, frame.image.height) == ("16UC1", 424, 240)


def _stamps(path: Path) -> list[tuple[str, int, int]]:
    with AnyReader([path]) as reader:
        chosen = [each for each in reader.connections if each.msgtype.endswith("Image")]
        found = []
        for connection, log_time_ns, raw in reader.messages(chosen):
            message: Any = reader.deserialize(raw, connection.msgtype)
            stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
            found.append((connection.topic, log_time_ns, stamp))
    return found


@pytest.mark.parametrize("start", [0.0, 0.01])
def test_fewer_frames_than_stated(tmp_path: Path, write_ros2: Write, recorded: type[Any], start: float) -> None:
    """A chunk that a damaged index leaves out is found out by the count; a part of a bag has none to compare with."""
    image = RawImage("mono8", 1000, 1000, 1000, is_bigendian=False, data=bytes(1_000_000))
    messages = [recorded("/camera", number * 1_000_000, 1, image) for number in range(6)]
    (path,) = write_ros2(tmp_path / "drive", messages).glob("*.mcap")
    with path.open("rb") as file:
        summary = make_reader(file).get_summary()
    assert summary is not None
    last = summary.chunk_indexes[-1]
    whole = bytearray(path.read_bytes())
    times = struct.pack("<QQQ", last.message_start_time, last.message_end_time, last.chunk_start_offset)
    whole[whole.index(times) - 9] = 0x80  # a kind of record that readers pass over
    path.write_bytes(whole)
    with closing(open_source(str(path), start=start)) as source:
        frames = source.frames()
        if start:
            with pytest.raises(ConfigError, match=r"no frame from 0\.01 s on"):
                next(frames)
            return
        found: list[int] = []
        with pytest.raises(SourceError, match=r"frames are missing: \d of 6 on /camera; the bag is damaged"):
            found.extend(frame.sequence for frame in frames)
    assert 0 < len(found) < 6


def test_counts_by_the_index(tmp_path: Path) -> None:
    """What lies before a time is counted as reading would, over chunks that overlap and publishers of one topic."""
    path, random = tmp_path / "mixed.mcap", Random(1)  # noqa: S311 - order of messages
    with path.open("wb") as file:
        writer = McapWriter(file, chunk_size=300, compression=CompressionType.NONE)
        writer.start(profile="ros2")
        schema = writer.register_schema("std_msgs/msg/String", "ros2msg", b"string data")
        channels = [writer.register_channel(topic, "cdr", schema) for topic in ("/a", "/a", "/b")]
        for number in range(200):
            time = 10 * number + random.randrange(300)
            writer.add_message(random.choice(channels), time, b"\0\1\0\0\1\0\0\0\0", time)
        writer.finish()
    with closing(Rosbag(path)) as bag:
        messages = [(each.topic, time) for each, time, _ in bag.messages(bag.connections)]
        for stop in range(0, 2400, 7):
            assert +bag.count_before(bag.connections, stop) == Counter(each for each, time in messages if time < stop)
