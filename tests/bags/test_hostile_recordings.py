"""Memory as a promise: small recordings that stand for gigabytes, and what else nobody records."""

from __future__ import annotations

import bz2
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lz4.frame
import numpy as np
import pytest
from mcap.writer import Writer
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Bag2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from mqinfer.bags.extent import unpacking
from mqinfer.bags.repair import repair
from mqinfer.bags.rosbag import foreign_errors
from mqinfer.bags.sources import open_source
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import SourceError
from tests.bags.reading import read
from tests.commands import command
from tests.confined import DESCRIPTORS, MIB

ROOM = 2048 * MIB
"""Address space of the command; half of it is what its libraries map."""
ZEROS = bytes(16 * MIB)
Write = Callable[..., Path]
Make = Callable[[str, int], Path]
COMPRESSED = b"""std_msgs/Header header
string format
uint8[] data
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
"""
KINDS = ("bz2.bag", "lz4.bag", "chunk", "message", "file", "bare message")


@pytest.fixture
def bomb(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, write_ros1: Write, write_ros2: Write, drive: list[Any]
) -> Make:
    """Return a function that writes a bag of a kind whose packed parts go on with many mebibytes of zeros."""

    def make(kind: str, mebibytes: int) -> Path:
        def behind(pack: Callable[..., bytes]) -> Callable[..., bytes]:
            zeros = pack(ZEROS) * (mebibytes // 16)
            return lambda data, *rest: pack(data, *rest) + zeros

        zstd = unpacking.zstd()
        packed = SimpleNamespace(compress=behind(zstd.compress), open=zstd.open)
        with monkeypatch.context() as patch:
            patch.setattr("rosbags.rosbag1.writer.bz2_compress", behind(bz2.compress))
            patch.setattr("rosbags.rosbag1.writer.lz4_compress", behind(lz4.frame.compress))
            patch.setattr("rosbags.rosbag2.writer.zstd", packed)
            patch.setattr("rosbags.rosbag2.storage_mcap.zstd", packed)
            if kind.endswith(".bag"):
                return write_ros1(tmp_path / kind, drive, kind.removesuffix(".bag"))
            mode = {"chunk": "storage", "file": "none"}.get(kind, "message")
            folder = write_ros2(tmp_path / "folder", drive, "mcap" if mode == "storage" else "sqlite3", mode)
        (file,) = (each for each in folder.iterdir() if each.suffix != ".yaml")
        if kind == "file":
            whole = file.with_name(f"{file.name}.zst")
            whole.write_bytes(behind(zstd.compress)(file.read_bytes()))
            return whole
        return file if kind == "bare message" else folder

    return make


def confined(*arguments: object) -> tuple[int, str]:
    """Run a command within 2 GiB of address space and 60 descriptors; return its exit code, and what it printed."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))

    run = subprocess.run(command(*arguments), capture_output=True, text=True, check=False, preexec_fn=limit)
    return run.returncode, run.stdout + run.stderr


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "file"])
def test_no_part_unpacks_beyond_the_bound(bomb: Make, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Of each way in which a bag is packed; the error says so, and names the file."""
    monkeypatch.setattr(unpacking, "LARGEST", 32 * MIB)
    path = bomb(kind, 48)
    with pytest.raises(SourceError, match=r"^/.* bytes unpacks to more than 32 MiB; "):
        read(path)


@pytest.mark.parametrize("kind", ["bz2.bag", "lz4.bag", "chunk"])
def test_a_repair_leaves_such_a_part_out(
    bomb: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """It counts as damaged."""
    monkeypatch.setattr(unpacking, "LARGEST", 32 * MIB)
    path = bomb(kind, 48)
    file = path if path.is_file() else next(path.glob("*.mcap"))
    found = repair(file, tmp_path / f"new{file.suffix}")
    assert (found.messages, found.damaged_chunks) == (0, 1)


def test_a_file_that_does_not_fit_the_disk(bomb: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is unpacked while there is room to spare; the error says what to do."""
    monkeypatch.setattr("mqinfer.bags.rosbag._LEFT", 1 << 60)
    with pytest.raises(SourceError, match=r"does not fit into .*; set TMPDIR to a folder with room"):
        read(bomb("file", 48))


def test_chunks_of_one_time(
    tmp_path: Path, write_ros2: Write, recorded: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are all unpacked at once, so they are few; those that follow each other may be any number."""
    noise = np.random.default_rng(1).bytes(1 * MIB)
    image = RawImage("mono8", 1024, 1024, 1024, is_bigendian=False, data=noise)
    monkeypatch.setattr("mqinfer.bags.rosbag._LARGEST_TOGETHER", 3 * MIB)
    apart = write_ros2(tmp_path / "apart", [recorded("/c", 1 + number, 1 + number, image) for number in range(8)])
    assert len(read(apart)) == 8
    together = write_ros2(tmp_path / "together", [recorded("/c", 1, 1, image) for _ in range(8)])
    with pytest.raises(SourceError, match=r"MiB together hold messages of one time; .*: mcap sort FILE -o NEW$"):
        read(together)


def test_more_topics_than_anybody_records(
    tmp_path: Path, write_ros1: Write, recorded: type[Any], grey: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that are named are read, up to a bound."""
    monkeypatch.setattr("mqinfer.bags.rosbag_source._MOST_TOPICS", 3)
    bag = write_ros1(tmp_path / "many.bag", [recorded(f"/t{number}", 1, 1, grey(1)) for number in range(4)])
    with pytest.raises(SourceError, match=r"4 image topics; at most 3 are read together; name those to read: --topic$"):
        read(bag)
    assert len(read(bag, topics=["/t1", "/t2"])) == 2


def test_a_definition_of_a_megabyte(tmp_path: Path) -> None:
    """The fields of a type are not parsed, which took minutes, and repair says that it can not help."""
    path, mended = tmp_path / "long.mcap", tmp_path / "mended.mcap"
    with path.open("wb") as file:
        writer = Writer(file)
        writer.start("ros2")
        schema = writer.register_schema("sensor_msgs/msg/Image", "ros2msg", b"uint8 a\n" * (1 << 17))
        channel = writer.register_channel("/image", "cdr", schema)
        writer.add_message(channel, 1, b"\0\1\0\0", 1)
        writer.finish()
    with pytest.raises(SourceError, match="is defined in 1048576 characters; expected at most 262144"):
        read(path)
    repair(path, mended)
    with pytest.raises(SourceError, match="so no repair changes that"):
        read(mended)


FIELDS = {
    "my_msgs/msg/Stamp": {"sec": "int32", "nanosec": "uint32"},
    "std_msgs/msg/Header": {"stamp": "my_msgs/Stamp", "frame_id": "string"},
    "sensor_msgs/msg/Image": {
        "header": "std_msgs/Header",
        "height": "uint32",
        "width": "uint32",
        "encoding": "string",
        "is_bigendian": "uint8",
        "step": "uint32",
        "data": "uint8[]",
    },
}
GOOD: dict[str, Any] = {"sec": 1, "nanosec": 2, "frame_id": "front", "height": 1, "width": 1, "encoding": "mono8"}


@pytest.mark.parametrize("field", [*GOOD, "step"])
@pytest.mark.parametrize("kind", ["string", "string[]", "float64[]", "int64"])
def test_a_definition_of_a_known_type_with_other_fields(tmp_path: Path, field: str, kind: str) -> None:
    """A bag defines its types itself: what is no number or text where ROS has one is refused; seconds stay small."""
    store, path = get_typestore(Stores.EMPTY), tmp_path / "drive"
    for name, fields in FIELDS.items():
        lines = (f"{kind if each == field else given} {each}" for each, given in fields.items())
        store.register(get_types_from_msg("\n".join(lines), name))
    other = {"string": "9" * 9, "string[]": ["9"], "float64[]": np.ones(3), "int64": 1 << 62}
    values = GOOD | {"is_bigendian": 0, "step": 1, "data": np.zeros(1, np.uint8), field: other[kind]}
    for outer, name in zip(("stamp", "header", ""), FIELDS, strict=True):
        values[outer] = store.types[name](**{each: values[each] for each in FIELDS[name]})
    with Bag2(path, version=9, storage_plugin=StoragePlugin.MCAP) as bag:
        connection = bag.add_connection("/front", "sensor_msgs/msg/Image", typestore=store)
        bag.write(connection, 1, store.serialize_cdr(values[""], "sensor_msgs/msg/Image"))
    is_number, is_text = field in {"height", "width", "step"}, field in {"frame_id", "encoding"}
    if (kind == "int64" and is_number) or (kind == "string" and is_text):  # the picture is damaged at worst
        assert len(read(path)) == 1
        return
    with pytest.raises(SourceError, match="/front: "):
        read(path)


def test_pipes_and_devices_are_no_recordings(tmp_path: Path) -> None:
    """Whether named, or in a folder: opening one waited for ever, and a device never ended."""
    os.mkfifo(tmp_path / "a.png")
    (tmp_path / "zero.mcap").symlink_to("/dev/zero")
    for path in (tmp_path, tmp_path / "a.png", tmp_path / "zero.mcap"):
        with pytest.raises(SourceError, match="a pipe or a device"):
            open_source(str(path))
    with pytest.raises(SourceError, match="a pipe or a device"):
        repair(tmp_path / "zero.mcap", tmp_path / "new.mcap")


def test_what_parsers_say_is_cut(tmp_path: Path) -> None:
    """They may repeat all that stands in a file, such as the names of all that it lacks."""
    names = ", ".join(f"{number}.mcap" for number in range(2000))
    lines = "  version: 5\n  storage_identifier: mcap\n  compression_format: ''\n  compression_mode: ''\n"
    lines += "  duration: {nanoseconds: 1}\n  starting_time: {nanoseconds_since_epoch: 1}\n  message_count: 1\n"
    lines += f"  topics_with_message_count: []\n  relative_file_paths: [{names}]\n"
    (tmp_path / "metadata.yaml").write_text(f"rosbag2_bagfile_information:\n{lines}")
    with pytest.raises(SourceError, match="database files are missing") as raised:
        read(tmp_path)
    assert len(str(raised.value)) < 1500


QUALITY = "- history: 3\\n  depth: 0\\n  deadline:\\n    sec: 9223372036\\n    nsec: 854775807\\n" * 2


def describe_topics(folder: Path, topics: int) -> None:
    """Add topics without messages to the metadata of a bag."""
    topic = "type: std_msgs/msg/String, serialization_format: cdr"
    lines = "".join(
        f"  - message_count: 0\n    topic_metadata:\n      {{name: /more/{number}, {topic}, "
        f'offered_qos_profiles: "{QUALITY}"}}\n'
        for number in range(topics)
    )
    path = folder / "metadata.yaml"
    before, after = path.read_text().split("  topics_with_message_count:\n")
    path.write_text(f"{before}  topics_with_message_count:\n{lines}{after}")


def test_metadata_of_a_megabyte(tmp_path: Path, write_ros2: Write, drive: list[Any]) -> None:
    """Thousands of topics with their qualities are read in a few seconds; rosbags takes a minute for them."""
    folder = write_ros2(tmp_path / "folder", drive)
    describe_topics(folder, 4000)
    assert (folder / "metadata.yaml").stat().st_size > MIB
    began = time.process_time()
    assert len(read(folder)) == 20
    assert time.process_time() - began < 20


@contextmanager
def few_descriptors() -> Iterator[None]:
    """Let as many more be open as a confined process has; what other tests opened stays so."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = max(int(each.name) for each in Path("/proc/self/fd").iterdir())
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + DESCRIPTORS, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def split(folder: Path, parts: list[list[Any]], write: Write, storage: str) -> Path:
    """Write a recording of several files, as `ros2 bag record --max-bag-duration` does."""
    whole = write(folder, [each for part in parts for each in part], storage)
    (file,) = (each for each in whole.iterdir() if each.suffix != ".yaml")
    names = [f"{number}{file.suffix}" for number in range(len(parts))]
    metadata = whole / "metadata.yaml"
    before, after = metadata.read_text().split(f"- {file.name}\n", 1)
    indented = "\n" + before.rpartition("\n")[2] + "- "
    metadata.write_text(f"{before}- {indented.join(names)}\n{after}")
    file.unlink()
    for name, part in zip(names, parts, strict=True):
        (one,) = (each for each in write(folder / "part", part, storage).iterdir() if each.suffix != ".yaml")
        one.rename(whole / name)
        shutil.rmtree(folder / "part")
    return whole


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_recording_of_many_files(tmp_path: Path, write_ros2: Write, drive: list[Any], storage: str) -> None:
    """Files are open while they are read, whether metadata.yaml lists them or nothing does."""
    step = drive[2].log_time_ns - drive[1].log_time_ns
    many = [
        replace(drive[1], log_time_ns=drive[1].log_time_ns + number * step, capture_time_ns=number * step)
        for number in range(200)
    ]
    folder = split(tmp_path / "many", [many[at : at + 2] for at in range(0, 200, 2)], write_ros2, storage)
    usual = len(read(folder))  # what is imported is open
    with few_descriptors():
        listed = [frame.capture_time_ns for frame in read(folder)]
        (folder / "metadata.yaml").unlink()
        bare = [frame.capture_time_ns for frame in read(folder)]
    assert usual == 200
    assert listed == bare == [each.capture_time_ns for each in many]
    crossed = split(tmp_path / "crossed", [many[at::40] for at in range(40)], write_ros2, storage)
    (crossed / "metadata.yaml").unlink()
    assert [frame.capture_time_ns for frame in read(crossed)] == listed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("x" * (9 * MIB), "metadata.yaml has 9437184 bytes; expected at most 8388608; name single files of the bag"),
        ("- 1\n" * (1 << 20), "metadata.yaml has more than 524288 parts"),
        ("- " * 900 + "1\n", "exceeded maximum nesting depth|list indices"),
        ("a: " + ":".join(["1"] * MIB), "is missing"),
        ("a: &a {b: 1}\nc: {!!merge x: [*a, *a]}", "could not determine a constructor"),
        ("a: 2020-99-99", "is missing"),
    ],
    ids=["bytes", "parts", "depth", "base 60", "merged", "date"],
)
def test_metadata_that_nobody_writes(tmp_path: Path, text: str, expected: str) -> None:
    """What would take minutes or gigabytes to parse is refused in words, within seconds."""
    (tmp_path / "metadata.yaml").write_text(text)
    began = time.process_time()
    with pytest.raises(SourceError, match=expected) as raised:
        read(tmp_path)
    assert len(str(raised.value)) < 1500
    assert time.process_time() - began < 20


@pytest.mark.parametrize("kind", ["ros1", "mcap", "sqlite3"])
def test_a_recording_without_a_frame(write_bag: Write, recorded: type[Any], grey: Any, kind: str) -> None:
    """Its topics of pictures have no message: that is an error, and no success with nothing done."""
    bag = write_bag([recorded("/image", -1, 0, grey(1)), recorded("/chatter", 2, 2, "hello")], kind)
    with pytest.raises(SourceError, match=r"no frame came of it; look what it holds: mqinfer bag info SOURCE$"):
        read(bag)


@pytest.mark.parametrize("known", [0, 5])
@pytest.mark.parametrize("counts", [True, False])
def test_messages_of_no_topic(tmp_path: Path, caplog: pytest.LogCaptureFixture, known: int, *, counts: bool) -> None:
    """Their channel is nowhere in the file: without another frame it is an error, else their number is logged."""
    path = tmp_path / "strange.mcap"
    with path.open("wb") as file:
        writer = Writer(file, use_statistics=counts)
        writer.start("ros2")
        schema = writer.register_schema("sensor_msgs/msg/CompressedImage", "ros2msg", COMPRESSED)
        channel = writer.register_channel("/image", "cdr", schema)
        for number in range(10):
            message = b"\0\1\0\0" + bytes(8) + b"\1\0\0\0\0\0\0\0\5\0\0\0jpeg\0\0\0\0\3\0\0\0abc"
            writer.add_message(channel if number < known else 77, number, message, number)
        writer.finish()
    expected = f"messages that belong to none of its topics, and are not read: {10 - known}"
    if known:
        assert len(read(path)) == known
        assert [record.getMessage() for record in caplog.records] == [f"{path}: {expected}"]
    else:
        with pytest.raises(SourceError, match=f"{expected}; the bag is damaged"):
            read(path)


def test_an_encoding_of_a_megabyte(tmp_path: Path, write_ros1: Write, recorded: type[Any]) -> None:
    """Errors name what was declared, and so no more of it is kept than they may show."""
    image = RawImage("x" * MIB, 1, 1, 1, is_bigendian=False, data=b"x")
    (frame,) = read(write_ros1(tmp_path / "one.bag", [recorded("/c", 1, 1, image)]))
    assert isinstance(frame.image, RawImage)
    assert frame.image.encoding == "x" * 256


@pytest.mark.slow
@pytest.mark.full
@pytest.mark.parametrize("kind", KINDS)
def test_the_command_ends_in_words(bomb: Make, write_echo: Write, tmp_path: Path, kind: str) -> None:
    """Of 3 GiB in less than a megabyte: an error and its exit code, and no traceback, within 2 GiB."""
    path, summary = bomb(kind, 3072), tmp_path / "summary.json"
    repository = write_echo("eye", ("image", "UINT8", [-1, 3, 4, 1]))
    options = ("--model=eye", "--local", "--repository", repository, "--summary", summary)
    code, printed = confined("replay", path, *options)
    if kind == "file":  # the disk may have room, and then it is read like any other whose end is not its own
        assert code in {0, 1, 3}
    else:
        assert code == 1
        assert "unpacks to more than 512 MiB" in printed
    assert "Traceback" not in printed
    assert not summary.exists() or json.loads(summary.read_text())["frames_read"] <= 20


READ_ALL = """
import logging, os, sys
from contextlib import closing
from pathlib import Path
from mqinfer.bags.sources import open_source
from mqinfer.broker.malloc import return_freed_memory
from mqinfer.protocol.errors import MqinferError
logging.disable()
for turn in range(3):
    for path in sys.argv[1:]:
        try:
            with closing(open_source(path)) as source:
                list(source.frames())
        except MqinferError:
            pass
    return_freed_memory()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    print(pages * os.sysconf("SC_PAGE_SIZE") >> 20, len(os.listdir("/proc/self/fd")))
"""


@pytest.mark.slow
@pytest.mark.full
def test_memory_returns_after_many(tmp_path: Path, bomb: Make) -> None:
    """One process reads packed zeros and what is no recording, again and again: 32 MiB stay, and no descriptor."""
    paths = [bomb(kind, 16) for kind in ("bz2.bag", "chunk")]
    for suffix in ("webm", "ts", "mp4", "h264", "bag", "mcap", "db3"):
        for name, content in {"text": b"no recording\n" * 99, "zeros": bytes(MIB), "ones": b"\xff" * MIB}.items():
            paths.append(tmp_path / f"{name}.{suffix}")
            paths[-1].write_bytes(content)
    run = subprocess.run([sys.executable, "-c", READ_ALL, *map(str, paths)], capture_output=True, text=True, check=True)
    (first, opened), _, (last, still_opened) = (map(int, line.split()) for line in run.stdout.splitlines()[-3:])
    assert last <= first + 32
    assert still_opened == opened


def test_a_lack_of_memory_is_no_damage(tmp_path: Path) -> None:
    """Nobody is sent to repair what may be whole."""
    with pytest.raises(SourceError, match="MemoryError; no memory is free"), foreign_errors(tmp_path):
        raise MemoryError
