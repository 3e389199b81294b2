from __future__ import annotations

import shutil
import sqlite3
import struct
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from mcap.reader import make_reader
from mcap.writer import Writer as McapWriter
from rosbags.rosbag1 import Reader

from mqinfer.bags.frame import Frame
from mqinfer.bags.repair import is_unfinished, repair
from mqinfer.bags.sources import open_source
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import SourceError
from tests.bags.reading import read
from tests.commands import run_main

Write = Callable[..., Path]


def same(one: Frame, other: Frame) -> bool:
    """Whether two frames were recorded as one."""
    assert isinstance(one.image, RawImage)
    assert isinstance(other.image, RawImage)
    return (one.source, one.capture_time_ns, one.log_time_ns, bytes(one.image.data)) == (
        other.source,
        other.capture_time_ns,
        other.log_time_ns,
        bytes(other.image.data),
    )


@pytest.fixture(params=["none.bag", "lz4.bag", "bz2.bag", "none.mcap", "storage.mcap"])
def whole(request: pytest.FixtureRequest, tmp_path: Path, write_ros1: Write, write_ros2: Write, noisy: Any) -> Path:
    """A whole bag of each kind, of many chunks."""
    compression, kind = request.param.split(".")
    if kind == "bag":
        return write_ros1(tmp_path / "drive.bag", noisy, compression, 40_000)
    return next(write_ros2(tmp_path / "drive", noisy, "mcap", compression).glob("*.mcap"))


@pytest.fixture
def noisy(recorded: type[Any]) -> Sequence[Any]:
    """Sixty messages of 40 kB that no compression makes smaller."""
    chance = np.random.default_rng(5)
    pixels = [chance.integers(0, 256, 40_000, np.uint8).tobytes() for _ in range(60)]
    images = [RawImage("mono8", 200, 200, 200, is_bigendian=False, data=data) for data in pixels]
    return [recorded("/front", 10 * number, 10 * number + 1, image) for number, image in enumerate(images)]


def test_a_bag_that_was_cut_off_anywhere(whole: Path, tmp_path: Path) -> None:
    """As if it was being written: everything up to the last complete chunk comes back, in any ROS reader."""
    frames, content = read(whole), whole.read_bytes()
    chance = Random(3)  # noqa: S311 - no secret depends on it
    counts = []
    for attempt in range(12):
        cut = tmp_path / f"cut-{attempt}{whole.suffix}"
        share = chance.uniform(0.2, 0.999)
        cut.write_bytes(content[: int(len(content) * share)])
        found = repair(cut, tmp_path / f"new-{attempt}{whole.suffix}")
        got = read(tmp_path / f"new-{attempt}{whole.suffix}") if found.messages else []
        assert all(same(one, other) for one, other in zip(got, frames, strict=False))
        assert len(got) == found.messages
        spare = 3 if whole.suffix == ".bag" else 30  # a chunk of an MCAP file holds a megabyte, 26 messages
        assert len(got) >= 60 * share - spare
        counts.append(len(got))
    assert len(set(counts)) > 2


def test_damage_in_the_middle_costs_one_chunk(whole: Path, tmp_path: Path) -> None:
    """A chunk that can't be unpacked or differs from its CRC is counted and left out; what follows it comes back."""
    frames = read(whole)
    if whole.suffix == ".mcap":  # rosbags writes no CRC, a repair does
        repair(whole, tmp_path / "with-crc.mcap")
        whole = tmp_path / "with-crc.mcap"
    content = bytearray(whole.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 64] = bytes(64)
    whole.write_bytes(content)
    found = repair(whole, tmp_path / f"new{whole.suffix}")
    got = read(tmp_path / f"new{whole.suffix}")
    assert found.messages == len(got) >= 25
    assert got[-1].log_time_ns == frames[-1].log_time_ns
    if whole.suffix == ".mcap" or b"compression=bz2" in content:  # the others have no checksum at all
        assert found.damaged_chunks == 1
        assert all(any(same(each, frame) for frame in frames) for each in got)


def test_whole_bags_stay_whole(whole: Path, tmp_path: Path) -> None:
    """Repairing a bag that is in order loses nothing."""
    frames, new = read(whole), tmp_path / f"new{whole.suffix}"
    found = repair(whole, new)
    got = read(new)
    assert (found.messages, found.damaged_chunks, found.stopped_at) == (60, 0, None)
    assert all(same(one, other) for one, other in zip(got, frames, strict=True))
    if whole.suffix == ".mcap":
        assert not is_unfinished(new)


def test_scratched_bags_end_in_words(whole: Path, tmp_path: Path) -> None:
    """Whatever bytes are overwritten, the repair ends, with a bag or with an error in words."""
    content, chance = whole.read_bytes(), Random(7)  # noqa: S311 - no secret depends on it
    for attempt in range(25):
        scratched = bytearray(content)
        for _ in range(chance.randint(1, 5)):
            place = chance.randrange(len(content) if attempt % 2 else 2_000)
            scratched[place : place + 4] = chance.choice([bytes(4), b"\xff" * 4, chance.randbytes(4)])
        whole.write_bytes(scratched)
        with suppress(SourceError):
            repair(whole, tmp_path / f"new-{attempt}{whole.suffix}")


def test_what_can_not_be_repaired(tmp_path: Path) -> None:
    """A foreign file, and a target that exists, are refused in words."""
    (tmp_path / "a.mcap").write_bytes(b"nothing that was promised")
    with pytest.raises(SourceError, match="not a ROS 1 bag, an MCAP file or a"):
        repair(tmp_path / "a.mcap", tmp_path / "b.mcap")
    with pytest.raises(SourceError, match="exists already"):
        repair(tmp_path / "a.mcap", tmp_path / "a.mcap")
    with pytest.raises(SourceError, match="No such file"):
        repair(tmp_path / "c.mcap", tmp_path / "b.mcap")


def test_a_journal_without_a_head(tmp_path: Path, write_ros2: Write, noisy: Any) -> None:
    """A recorder that was killed before it wrote it had changed nothing; the new file can be read."""
    (bag,) = write_ros2(tmp_path / "drive", noisy, "sqlite3").glob("*.db3")
    bag.with_name(bag.name + "-journal").write_bytes(bytes(512))
    assert repair(bag, tmp_path / "new.db3").messages == 60
    assert len(read(tmp_path / "new.db3")) == 60


def fails(path: Path) -> str:
    """Return how opening and reading a recording ends."""
    with pytest.raises(SourceError) as caught:
        read(path)
    return str(caught.value)


@pytest.mark.parametrize("compression", ["lz4", "bz2"])
def test_damage_behind_the_first_chunk(tmp_path: Path, write_ros1: Write, recorded: Any, compression: str) -> None:
    """What came before it is read, also where a topic begins in it, whose first message was looked at."""
    chance = np.random.default_rng(5)
    pixels = [chance.integers(0, 256, 40_000, np.uint8).tobytes() for _ in range(30)]
    images = [RawImage("mono8", 200, 200, 200, is_bigendian=False, data=data) for data in pixels]
    topics = ["/front", *["/front", "/front", "/late"] * 10]
    bag = write_ros1(
        tmp_path / "drive.bag",
        [recorded(topics[number], 10 * number, 0, image) for number, image in enumerate(images)],
        compression,
        120_000,
    )
    with Reader(bag) as reader:
        chunk = sorted(reader.chunks.values(), key=lambda each: each.datapos)[1]
    whole = bytearray(bag.read_bytes())
    whole[chunk.datapos : chunk.datapos + 8] = bytes(8)
    bag.write_bytes(whole)
    frames: list[Frame] = []
    with closing(open_source(str(bag), depth=False)) as source:
        assert [each.width for each in source.streams()] == [200, 0]
        with pytest.raises(SourceError, match="mqinfer bag repair") as caught:
            frames.extend(source.frames())  # keeps what came before an error
    assert "closed file" not in str(caught.value)
    assert [each.log_time_ns for each in frames] == [0, 10, 20]


@pytest.mark.parametrize(("profile", "encoding"), [("ros1", "ros1"), ("", "json"), ("ros2", "protobuf")])
def test_a_whole_file_of_something_else(tmp_path: Path, profile: str, encoding: str) -> None:
    """Nobody is sent to a repair that would write the same again."""
    path = tmp_path / "other.mcap"
    with path.open("wb") as file:
        writer = McapWriter(file)
        writer.start(profile)
        schema = writer.register_schema("sensor_msgs/Image", "text", b"uint8 x")
        writer.add_message(writer.register_channel("/front", encoding, schema), 0, b"{}", 0)
        writer.finish()
    error = fails(path)
    assert f"its messages are {encoding}; expected 'ros2' and cdr" in error
    assert "repair" not in error
    assert "expected 'ros2' and cdr" in fails(tmp_path)  # a folder of such files


def test_a_place_that_no_file_has(tmp_path: Path, write_ros1: Write, noisy: Any) -> None:
    """The system refuses to go there; it is damage all the same, and no lack of rights."""
    path = write_ros1(tmp_path / "drive.bag", noisy[:3])
    content = path.read_bytes()
    at = content.index(b"index_pos=") + len(b"index_pos=")
    path.write_bytes(content[:at] + b"\xff" * 7 + b"\x7f" + content[at + 8 :])
    assert "can be read after: mqinfer bag repair FILE NEW" in fails(path)


@pytest.mark.parametrize("wrong", ["chunk", "summary"])
def test_an_index_that_is_wrong(tmp_path: Path, write_ros2: Write, noisy: Any, wrong: str) -> None:
    """A repair writes it anew, and is advised, although no record of the file is damaged."""
    path = next(write_ros2(tmp_path / "drive", noisy[:5], "mcap", "storage").glob("*.mcap"))
    frames, content = read(path), path.read_bytes()
    with path.open("rb") as file:
        summary = make_reader(file).get_summary()
    assert summary is not None
    chunk = summary.chunk_indexes[0]
    where = {
        "chunk": struct.pack("<QQ", chunk.chunk_start_offset, chunk.chunk_length),
        "summary": content[-28:-20],  # of the footer
    }[wrong]
    path.write_bytes(content.replace(where, struct.pack("<Q", 8) + where[8:]))
    assert "which mqinfer bag repair FILE NEW reads around" in fails(path)
    repair(path, tmp_path / "new.mcap")
    assert all(map(same, read(tmp_path / "new.mcap"), frames))


def test_results_are_no_recording(tmp_path: Path) -> None:
    """The error says what the file is."""
    path = tmp_path / "results.mcap"
    with path.open("wb") as file:
        writer = McapWriter(file)
        writer.start(library="mqinfer")
        writer.finish()
    assert "it holds results of a replay" in fails(path)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_messages_compressed_one_by_one(tmp_path: Path, write_ros2: Write, noisy: Any, storage: str) -> None:
    """They are read without the folder's metadata, too, and from a repaired file."""
    folder = write_ros2(tmp_path / "drive", noisy, storage, "message")
    (folder / "metadata.yaml").unlink()
    (bare,) = folder.iterdir()
    repair(bare, tmp_path / f"new{bare.suffix}")
    for path in (bare, tmp_path / f"new{bare.suffix}"):
        assert [bytes(each.image.data) for each in read(path)] == [bytes(each.content.data) for each in noisy]


@pytest.mark.parametrize("name", ["drive.bag", "drive.mcap", "drive.db3", "drive.db3.zstd", "drive.mcap.zst"])
def test_text_and_empty_files(tmp_path: Path, name: str) -> None:
    """No repair is advised where there is nothing to repair; a file of another kind is called by it."""
    path = tmp_path / name
    path.write_text("text of some lines\n" * 100)
    error = fails(path)
    assert "it is not a" in error
    assert "repair" not in error
    path.write_bytes(b"")
    assert "it is empty" in fails(path)
    path.write_bytes((b"#ROSBAG V2.0\n" if name != "drive.bag" else b"SQLite format 3\0") + bytes(200))
    assert ("(.bag)" if name != "drive.bag" else "(.db3)") in fails(path)


@pytest.mark.parametrize("damage", ["cut", "noise"])
def test_a_damaged_database(tmp_path: Path, write_ros2: Write, noisy: Any, damage: str) -> None:
    """The rows that can be read come back, each as it was recorded, in a file that any reader takes."""
    (bag,) = write_ros2(tmp_path / "drive", noisy, "sqlite3").glob("*.db3")
    frames, content = read(bag), bag.read_bytes()
    half = len(content) // 2
    bag.write_bytes(content[:half] if damage == "cut" else content[:half] + bytes(3000) + content[half + 3000 :])
    error = fails(bag)
    assert "mqinfer bag repair FILE NEW.db3" in error
    found = repair(bag, tmp_path / "new.db3")
    assert found.damaged_chunks
    got = read(tmp_path / "new.db3")
    assert found.messages == len(got) >= (24 if damage == "cut" else 54)
    assert {bytes(each.image.data) for each in got} < {bytes(each.image.data) for each in frames}
    assert sorted(each.name for each in tmp_path.iterdir()) == ["drive", "new.db3"]


def test_a_message_that_is_not_of_its_type(
    tmp_path: Path, write_ros2: Write, noisy: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """No repair is advised of a file without damage: it would end with the same advice again."""
    bag = tmp_path / "drive.mcap"
    with bag.open("wb") as file:
        writer = McapWriter(file)
        writer.start("ros2", "recorder")
        schema = writer.register_schema("sensor_msgs/msg/Image", "ros2msg", b"")
        channel = writer.register_channel("/front", "cdr", schema)
        writer.add_message(channel, 1, b"\0\1\0\0" + bytes(60), 1)
        writer.finish()
    assert run_main("bag", "repair", bag, tmp_path / "new.mcap") == 0
    assert "no frames can be read of it" in capsys.readouterr().err
    for path in (bag, tmp_path / "new.mcap"):
        assert "no repair mends it" in fails(path)
    (database,) = write_ros2(tmp_path / "other", noisy, "sqlite3").glob("*.db3")
    with closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("UPDATE messages SET data = x'00010000ff'")
    for path in (database, database.parent):
        assert "no repair mends it" in fails(path)


@pytest.mark.parametrize(("storage", "left"), [("mcap", "PART.mcap NEW.mcap"), ("sqlite3", "PART.db3 NEW.db3")])
def test_a_folder_with_a_file_that_is_cut_off(
    tmp_path: Path, write_ros2: Write, noisy: Any, storage: str, left: str
) -> None:
    """What is advised is about that file, not about the folder's metadata, which are whole."""
    folder = write_ros2(tmp_path / "drive", noisy, storage, "file")
    (packed,) = folder.glob("*.zstd")
    packed.write_bytes(packed.read_bytes()[:-100])
    error = fails(folder)
    assert f"{packed.name}: copy it again, or unpack it: zstd -dc FILE > PART" in error
    assert left in error
    assert "reindex" not in error


def test_metadata_that_are_damaged(tmp_path: Path, write_ros2: Write, noisy: Any) -> None:
    """Where all files of a folder are whole, its metadata are made anew."""
    for storage in ("mcap", "sqlite3"):
        folder = write_ros2(tmp_path / storage, noisy, storage)
        (folder / "metadata.yaml").write_text("rosbag2_bagfile_information: {}")
        assert "ros2 bag reindex FOLDER" in fails(folder)


@pytest.mark.parametrize("storage", ["mcap", "sqlite3"])
def test_a_compressed_file_that_is_cut_off(tmp_path: Path, write_ros2: Write, noisy: Any, storage: str) -> None:
    """The advice is what works for it; a repair of it names the same."""
    (packed,) = write_ros2(tmp_path / "drive", noisy, storage, "file").glob("*.zstd")
    whole = packed.read_bytes()
    cut = tmp_path / packed.name
    for size in (5, len(whole) // 2, len(whole) - 1):
        cut.write_bytes(whole[:size])
        error = fails(cut)
        assert "zstd -dc FILE > PART" in error
        assert "('" not in error
    with pytest.raises(SourceError, match="zstd -dc FILE > PART"):
        repair(cut, tmp_path / "new")


_RECORDER = """
import sys
from mqinfer.bags.writer import BagWriter
from mqinfer.images.picture import RawImage
storage, path = sys.argv[1:]
chunk = bytes(range(250)) * 240
with BagWriter(path, storage) as bag:
    for number in range(1_000_000):
        image = RawImage("mono8", 200, 300, 300, False, number.to_bytes(4, "big") + chunk[4:])
        bag.write("/front", image, number, number)
        if number == 100:
            print("recording", flush=True)
"""


@pytest.mark.parametrize(("storage", "name"), [("bag", "drive.bag"), ("mcap", "drive")])
def test_a_bag_that_grows(tmp_path: Path, storage: str, name: str) -> None:
    """While a recorder writes as fast as it can, an error names the command, which ends with whole frames."""
    path = tmp_path / name
    recorder = subprocess.Popen([sys.executable, "-c", _RECORDER, storage, str(path)], stdout=subprocess.PIPE)
    try:
        assert recorder.stdout is not None
        assert recorder.stdout.readline()
        with pytest.raises(SourceError, match=r"still grows can be read after: mqinfer bag repair FILE NEW"):
            open_source(str(path))
        file = path if path.is_file() else next(path.glob("*.mcap"))
        found = repair(file, tmp_path / f"new{file.suffix}")
    finally:
        recorder.kill()
        recorder.wait()
        assert recorder.stdout is not None
        recorder.stdout.close()
    frames = read(tmp_path / f"new{file.suffix}")
    assert len(frames) == found.messages > 50
    for number, frame in enumerate(frames):
        assert isinstance(frame.image, RawImage)
        assert bytes(frame.image.data[:4]) == number.to_bytes(4, "big")
        assert frame.log_time_ns == number


_SQLITE_RECORDER = """
import sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute(f"PRAGMA journal_mode = {sys.argv[2]}")
database.execute("PRAGMA cache_size = 10")
data = database.execute("SELECT data FROM messages LIMIT 1").fetchone()[0]
number = 60
while True:
    database.execute("BEGIN")
    for _ in range(20):
        number += 1
        row = (number * 1_000_000_000, data)
        database.execute("INSERT INTO messages (topic_id, timestamp, data) VALUES (1, ?, ?)", row)
    print("recording", flush=True)
    sys.stdin.readline()
    database.execute("COMMIT")
"""


def test_a_schema_that_is_no_text(tmp_path: Path, write_ros2: Write, noisy: Any) -> None:
    """SQLite's own message has its bytes, and is an error in words all the same."""
    (bag,) = write_ros2(tmp_path / "drive", noisy, "sqlite3").glob("*.db3")
    content = bag.read_bytes()
    assert b"CREATE TABLE messages(" in content
    bag.write_bytes(content.replace(b"CREATE TABLE messages(", b"CREATE TABLE message \xff"))
    with pytest.raises(SourceError, match="it is damaged or still being recorded"):
        repair(bag, tmp_path / "new.db3")
    assert [each.name for each in tmp_path.iterdir()] == ["drive"]


def test_a_journal_that_names_another_file(tmp_path: Path, write_ros2: Write, noisy: Any) -> None:
    """SQLite would delete that file; the recording comes back as of its last commit all the same."""
    (bag,) = write_ros2(tmp_path / "drive", noisy, "sqlite3").glob("*.db3")
    frames, cut, other = read(bag), tmp_path / "cut.db3", tmp_path / "other"
    with closing(sqlite3.connect(bag, isolation_level=None)) as database:
        database.executescript("PRAGMA cache_spill = 5; BEGIN; UPDATE messages SET data = zeroblob(40000)")
        for suffix in ("", "-journal"):
            shutil.copy(f"{bag}{suffix}", f"{cut}{suffix}")
    other.write_text("of others")
    name = str(other).encode()
    with Path(f"{cut}-journal").open("ab") as journal:
        journal.write(struct.pack(">I", (1 << 30) // 4096 + 1) + name)
        journal.write(struct.pack(">II", len(name), sum(name)) + bytes.fromhex("d9d505f920a163d7"))
    assert repair(cut, tmp_path / "new.db3").messages == len(frames)
    assert all(same(one, each) for one, each in zip(read(tmp_path / "new.db3"), frames, strict=True))
    assert other.read_text() == "of others"


def test_messages_that_are_no_table(tmp_path: Path) -> None:
    """A view may have rows without end; it is refused before one is counted."""
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id, x'00' AS data FROM n"
    for name in ("messages", "Messages"):
        with closing(sqlite3.connect(tmp_path / f"{name}.db3")) as database:
            database.execute(f"CREATE VIEW {name} AS {endless}")
        with pytest.raises(SourceError, match="it has no table of messages"):
            repair(tmp_path / f"{name}.db3", tmp_path / "new.db3")


ENDLESS = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id"
MADE = {
    "a view": f"DROP TABLE message_definitions; CREATE VIEW message_definitions AS {ENDLESS}, '' AS topic_type FROM n",
    "generated": "ALTER TABLE messages ADD COLUMN more AS (zeroblob(900000000))",
    "virtual": "CREATE VIRTUAL TABLE more USING fts4(a)",
}


@pytest.mark.parametrize("kind", MADE)
def test_tables_that_are_not_stored(tmp_path: Path, write_ros2: Write, noisy: Any, kind: str) -> None:
    """Rows and columns that are made while they are read may have any size or no end; recorders write none."""
    (bag,) = write_ros2(tmp_path / "drive", noisy, "sqlite3").glob("*.db3")
    with closing(sqlite3.connect(bag)) as database:
        database.executescript(MADE[kind])
    assert "is no plain table" in fails(bag)
    with pytest.raises(SourceError, match="no plain table"):
        repair(bag, tmp_path / "new.db3")


@pytest.mark.parametrize("change", ["UPDATE topics SET name = x'00ff'", "UPDATE topics SET type = x'00ff'"])
def test_topics_whose_names_are_no_text(tmp_path: Path, write_ros2: Write, noisy: Any, change: str) -> None:
    """SQLite holds anything in any column; that is an error in words."""
    (bag,) = write_ros2(tmp_path / "drive", noisy, "sqlite3").glob("*.db3")
    with closing(sqlite3.connect(bag)) as database, database:
        database.execute(change)
    assert "a field of it is bytes; expected str" in fails(bag)


def test_a_name_that_means_something_in_an_address(tmp_path: Path, write_ros2: Write, noisy: Any) -> None:
    """A database is opened by one: the file itself is read, and no other."""
    (bag,) = write_ros2(tmp_path / "drive", noisy, "sqlite3").glob("*.db3")
    for name in ("a?b.db3", "a#b.db3", "a%41.db3"):
        assert len(read(Path(shutil.copy(bag, tmp_path / name)))) == len(noisy)


def test_numbers_of_messages_below_one(tmp_path: Path, write_ros2: Write, noisy: Any) -> None:
    """SQLite has any, and a damaged file has its messages back whatever they are."""
    (bag,) = write_ros2(tmp_path / "drive", noisy, "sqlite3").glob("*.db3")
    with closing(sqlite3.connect(bag)) as database, database:
        database.executescript("UPDATE messages SET id = id - 30 WHERE id < 31; UPDATE messages SET id = id - 30")
    content = bag.read_bytes()
    bag.write_bytes(content[: len(content) // 2] + bytes(3000) + content[len(content) // 2 + 3000 :])
    found = repair(bag, tmp_path / "new.db3")
    assert len(read(tmp_path / "new.db3")) == found.messages >= 54


def test_a_table_named_as_a_query(tmp_path: Path, write_ros2: Write, noisy: Any) -> None:
    """A damaged file's tables are copied by their names, whatever these are: one could be a query without end."""
    (bag,) = write_ros2(tmp_path / "drive", noisy, "sqlite3").glob("*.db3")
    with closing(sqlite3.connect(bag)) as database, database:
        database.execute("CREATE TABLE t (x)")
        database.execute("INSERT INTO t VALUES (1)")
        database.execute(f'CREATE TABLE "t"", ({ENDLESS} FROM n) AS ""u" (x, y)')
    content = bag.read_bytes()
    bag.write_bytes(content[: len(content) // 2] + bytes(3000) + content[len(content) // 2 + 3000 :])
    assert repair(bag, tmp_path / "new.db3").messages >= 54


@pytest.mark.parametrize("journal", ["DELETE", "WAL", "MEMORY"])
def test_a_database_that_grows(tmp_path: Path, write_ros2: Write, noisy: Any, journal: str) -> None:
    """No frame is read wrongly or left out in silence while a recorder writes; after a crash the committed ones are."""
    (bag,) = write_ros2(tmp_path / "drive", noisy, "sqlite3").glob("*.db3")
    frames = read(bag)
    command = [sys.executable, "-c", _SQLITE_RECORDER, str(bag), journal]
    refused: list[str] = []
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as recorder:
        assert recorder.stdin
        assert recorder.stdout
        for number in range(20):
            if number % 2 == 0:  # it waits with rows that are not committed, and goes on beside the next reading
                assert recorder.stdout.readline()
            else:
                recorder.stdin.write(b"\n")
            try:
                got = read(bag)
            except SourceError as error:
                refused.append(str(error))
            else:
                assert len(got) >= len(frames)
        recorder.kill()
    assert refused
    assert all("recorder" in each or "malformed" in each for each in refused)
    if journal != "MEMORY":  # a crash leaves such a file in any state
        found = repair(bag, tmp_path / "new.db3")
        got = read(tmp_path / "new.db3")
        assert found.messages == len(got) >= 60 + 20
        assert found.messages % 20 == 0
        assert all(same(one, other) for one, other in zip(got, frames, strict=False))
