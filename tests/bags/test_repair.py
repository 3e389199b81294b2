from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest

from mqinfer.bags.frame import Frame
from mqinfer.bags.repair import is_unfinished, repair
from mqinfer.bags.sources import open_source
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import SourceError
from tests.bags.reading import read

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
    database.execute("COMMIT")
"""


@pytest.mark.parametrize("journal", ["DELETE", "WAL", "MEMORY"])
def test_a_database_that_grows(tmp_path: Path, write_ros2: Write, noisy: Any, journal: str) -> None:
    """No frame is read wrongly or left out in silence while a recorder writes; after a crash the committed ones are."""
    (bag,) = write_ros2(tmp_path / "drive", noisy, "sqlite3").glob("*.db3")
    frames = read(bag)
    recorder = subprocess.Popen([sys.executable, "-c", _SQLITE_RECORDER, str(bag), journal], stdout=subprocess.PIPE)
    refused: list[str] = []
    try:
        assert recorder.stdout is not None
        for _ in range(10):
            assert recorder.stdout.readline()
            try:
                got = read(bag)
            except SourceError as error:
                refused.append(str(error))
            else:
                assert len(got) >= len(frames)
    finally:
        recorder.kill()
        recorder.wait()
        assert recorder.stdout is not None
        recorder.stdout.close()
    assert refused
    assert all("recorder" in each or "malformed" in each for each in refused)
    if journal != "MEMORY":  # a crash leaves such a file in any state
        found = repair(bag, tmp_path / "new.db3")
        got = read(tmp_path / "new.db3")
        assert found.messages == len(got) >= 60 + 20
        assert found.messages % 20 == 0
        assert all(same(one, other) for one, other in zip(got, frames, strict=False))
