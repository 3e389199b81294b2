"""Bags that are split over files are read as one recording, from a folder and as a list of files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mqinfer.bags.frame import Frame, TimeRange
from mqinfer.bags.info import describe
from mqinfer.bags.sources import Recording, open_source, open_sources, recordings
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import ConfigError, SourceError
from tests.bags.reading import read
from tests.bags.test_video_topics import FIRST, FRAMES, STEP, decoded, encoded, write_ros
from tests.commands import run_main

Write = Callable[..., Path]
Grey = Callable[[int], RawImage]
Split = Callable[..., list[Path]]


def read_all(specs: Sequence[Path | str], **options: Any) -> list[Frame]:
    """Open sources together, read to the end, close."""
    with closing(open_sources(list(map(str, specs)), **options)) as source:
        return list(source.frames())


def keys(frames: Sequence[Frame]) -> list[tuple[str, int, int, bytes]]:
    """What makes a frame the one that it is."""
    return [(each.source, each.sequence, each.log_time_ns, bytes(each.image.data)) for each in frames]


@pytest.fixture
def split(tmp_path: Path, write_ros1: Write, write_ros2: Write, drive: list[Any]) -> Split:
    """Write the drive in three files into a folder, the last first, and return them in turn."""

    def write(kind: str = "ros1") -> list[Path]:
        folder = tmp_path / kind
        folder.mkdir()
        files = []
        for index, (begin, end) in reversed(list(enumerate([(0, 8), (8, 15), (15, len(drive))]))):
            name = f"drive_{index}"
            if kind == "ros1":
                files.append(write_ros1(folder / f"{name}.bag", drive[begin:end], "lz4", 200))
                continue
            made = next(write_ros2(tmp_path / name, drive[begin:end], kind).glob("drive*"))
            files.append(made.rename(folder / made.name))
        return files[::-1]

    return write


@pytest.fixture
def whole(tmp_path: Path, write_ros1: Write, drive: list[Any]) -> Path:
    """The same drive in one file."""
    return write_ros1(tmp_path / "whole.bag", drive)


@pytest.mark.parametrize("kind", ["ros1", "mcap", "sqlite3"])
def test_frames_are_those_of_the_whole(split: Split, whole: Path, kind: str) -> None:
    """As a folder and as files in any order: topics, numbers, times and pixels."""
    files = split(kind)
    expected = keys(read(whole))
    assert len(expected) == 20
    for specs in ([files[0].parent], files, [files[2], files[0], files[1]]):
        assert keys(read_all(specs)) == expected


@pytest.mark.parametrize("span", [(0.3, None), (0.0, 0.6), (0.3, 0.2), (0.7, 0.2)])
@pytest.mark.parametrize("as_folder", [True, False])
def test_a_part_is_one_of_the_whole(
    split: Split, whole: Path, span: tuple[float, float | None], *, as_folder: bool
) -> None:
    """`--start` and `--duration` count from the first frame of the first file, and numbers go on."""
    files = split()
    found = read_all([files[0].parent] if as_folder else files, span=TimeRange(*span))
    assert found
    assert keys(found) == keys(read(whole, start=span[0], duration=span[1]))


def test_topics(split: Split, whole: Path) -> None:
    """`--topic` holds for the whole, also where a topic is missing in some files; streams count over all files."""
    files = split()
    assert keys(read_all(files, topics=["/camera1"])) == keys(read(whole, topics=["/camera1"]))
    with closing(open_sources(list(map(str, files)))) as source, closing(open_source(str(whole))) as one:
        assert source.streams() == one.streams()
        assert keys(list(source.frames())) == keys(list(source.frames()))  # as often as it is asked for


def test_a_topic_of_some_files(tmp_path: Path, write_ros1: Write, recorded: type[Any], grey: Grey) -> None:
    """A camera that came late, and a file without pictures."""
    parts = [[("/tf", 1), ("/front", 2)], [("/tf", 3)], [("/tf", 4), ("/late", 5), ("/front", 6)], [("/late", 7)]]
    files = [
        write_ros1(
            tmp_path / f"{index}.bag",
            [recorded(topic, time, time, _content(topic, grey, time)) for topic, time in part],
        )
        for index, part in enumerate(parts)
    ]
    found = [(each.source, each.sequence, each.log_time_ns) for each in read_all(files)]
    assert found == [("/front", 0, 2), ("/late", 0, 5), ("/front", 1, 6), ("/late", 1, 7)]
    assert [each.log_time_ns for each in read_all(files, topics=["/late"])] == [5, 7]


def _content(topic: str, grey: Grey, time: int) -> Any:
    return "text" if topic == "/tf" else grey(time)


def test_equal_times_at_the_border(tmp_path: Path, write_ros1: Write, recorded: type[Any], grey: Grey) -> None:
    """Messages of one log time, as under simulated time, stay in the order of the files."""
    for name, values in (("drive_0", (1, 2)), ("drive_1", (3, 4)), ("drive_2", (5, 6))):
        time = 10 if name != "drive_2" else 20
        write_ros1(tmp_path / f"{name}.bag", [recorded("/front", time, value, grey(value)) for value in values])
    files = sorted(tmp_path.glob("*.bag"))
    for specs in ([tmp_path], files):
        assert [each.capture_time_ns for each in read_all(specs)] == [1, 2, 3, 4, 5, 6]


def test_a_video_goes_on_over_files(tmp_path: Path) -> None:
    """A group of pictures that begins in one file and ends in the next is decoded whole, from any start."""
    packets = encoded("h264")
    path = write_ros(tmp_path / "whole.bag", packets, "h264", "ros1")
    expected = list(decoded("h264").values())
    assert [bytes(each.image.data) for each in read(path)] == expected
    files = [tmp_path / "drive_0.bag", tmp_path / "drive_1.bag"]
    _cut(path, files, FIRST + 9 * STEP)
    assert [bytes(each.image.data) for each in read_all(files)] == expected
    found = read_all(files, span=TimeRange(1.0))
    assert [(each.sequence, bytes(each.image.data)) for each in found] == list(enumerate(expected))[10:]
    assert len(found) == FRAMES - 10


def _cut(path: Path, files: Sequence[Path], time: int) -> None:
    from rosbags.rosbag1 import Reader, Writer

    with Reader(path) as reader:
        for file, (start, stop) in zip(files, [(None, time), (time, None)], strict=True):
            with Writer(file) as writer:
                (connection,) = reader.connections
                copy = writer.add_connection(
                    connection.topic, connection.msgtype, msgdef=connection.msgdef.data, md5sum=connection.digest
                )
                for _, log_time, raw in reader.messages(start=start, stop=stop):
                    writer.write(copy, log_time, raw)


@pytest.mark.parametrize("count", [3, 40])
def test_info_tells_the_whole(
    tmp_path: Path, write_ros1: Write, recorded: type[Any], grey: Grey, capsys: Any, count: int
) -> None:
    """Duration, messages, bytes and rates over all files, for a folder and for files."""
    second, first = 10**9, 1_700_000_000 * 10**9
    folder = tmp_path / "drive"
    folder.mkdir()
    for index in range(count):
        times = [first + (2 * index + part) * second for part in range(2)]
        write_ros1(folder / f"drive_{index}.bag", [recorded("/front", time, time, grey(1)) for time in times])
    files = [str(folder / f"drive_{index}.bag") for index in range(count)]
    for info in (describe(str(folder)), describe(files[0], more=files[1:])):
        assert (info.kind, info.start_ns, info.duration) == ("ROS 1 bag", first, 2.0 * count - 1)
        assert (info.message_count, info.size_bytes) == (2 * count, sum(Path(each).stat().st_size for each in files))
        (stream,) = info.streams
        assert (stream.count, stream.rate) == (2 * count, 1.0)
    assert run_main("bag", "info", *files) == 0
    printed = capsys.readouterr().out
    assert f"drive_0.bag and {count - 1} more: ROS 1 bag" in printed
    assert f"{2 * count - 1}.000 s, {2 * count} messages" in printed


def test_what_is_no_recording(tmp_path: Path, split: Split, write_ros1: Write, recorded: type[Any], grey: Grey) -> None:
    """Overlapping times, other names, other topics and other kinds stay recordings of their own."""
    files = list(map(str, split()))
    assert recordings(files) == [Recording("", files, recordings(files)[0].extents)]
    with pytest.raises(ConfigError, match="several sources have a stream /camera0"):
        open_sources([files[0], str(shutil.copy(files[0], tmp_path / "copy.bag"))])
    named = [f"a={files[0]}", f"a={files[1]}", f"b={files[2]}"]
    assert [(each.name, len(each.files)) for each in recordings(named)] == [("a", 2), ("b", 1)]
    assert sorted({each.source for each in read_all(named)}) == ["a/camera0", "a/camera1", "b/camera0", "b/camera1"]
    other = str(write_ros1(tmp_path / "other.bag", [recorded("/rear", 5, 5, grey(5))]))
    assert [len(each.files) for each in recordings([*files, other])] == [3, 1]
    assert read_all([*files, other])[0].source == "/rear"
    ros2 = list(map(str, split("mcap")))
    assert [len(each.files) for each in recordings([files[0], ros2[1], ros2[2]])] == [1, 2]


class TestDamage:
    """A file of a recording is damaged."""

    @pytest.mark.parametrize("as_folder", [True, False])
    def test_not_closed(self, split: Split, *, as_folder: bool) -> None:
        """One that was cut off is named, with what mends it."""
        files = split()
        files[1].write_bytes(files[1].read_bytes()[:-300])
        with pytest.raises(SourceError, match=r"drive_1\.bag: .*mqinfer bag repair"):
            read_all([files[0].parent] if as_folder else files)

    @pytest.mark.parametrize("as_folder", [True, False])
    def test_damaged_inside(self, split: Split, *, as_folder: bool) -> None:
        """What comes before is yielded, and the error names the file."""
        files = split()
        content = bytearray(files[1].read_bytes())
        at = content.rindex(b"\x04\x22\x4d\x18")  # a chunk of LZ4
        content[at : at + 20] = bytes(20)
        files[1].write_bytes(content)
        found: list[Frame] = []
        specs = [str(files[0].parent)] if as_folder else list(map(str, files))
        with closing(open_sources(specs)) as source, pytest.raises(SourceError, match=r"drive_1\.bag: ") as caught:
            found.extend(source.frames())
        assert "drive_0" not in str(caught.value)
        assert 7 <= len(found) < 14

    def test_still_written(self, split: Split, caplog: pytest.LogCaptureFixture) -> None:
        """What `rosbag record` did not close is not read, and the log says so."""
        files = split()
        files[2].rename(files[2].with_name("drive_2.bag.active"))
        assert len(read(files[0].parent)) == 14
        assert "drive_2.bag.active is not read" in caplog.text
