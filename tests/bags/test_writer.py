"""Writing bags: what rosbags' own reader finds in them is what was given."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from rosbags.highlevel import AnyReader

from mqinfer.bags.writer import BagWriter, Storage
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.lab.drives.mosaic import make_mosaic, raw_image
from mqinfer.lab.drives.recording import IMAGE_TOPIC, TRUTH_TOPIC, write_drive
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.protocol.errors import ConfigError, SourceError

SIZE = (64, 48)
PATTERNS = ("rggb", "bggr", "gbrg", "grbg")
# Place of red and blue within the top-left 2x2, as the patterns' names spell them.
RED_BLUE = {"rggb": ((0, 0), (1, 1)), "bggr": ((1, 1), (0, 0)), "gbrg": ((1, 0), (0, 1)), "grbg": ((0, 1), (1, 0))}
BAGS: list[tuple[Storage, str | None]] = [
    ("bag", None),
    ("bag", "lz4"),
    ("bag", "bz2"),
    ("mcap", None),
    ("mcap", "zstd"),
    ("sqlite3", None),
    ("sqlite3", "zstd"),
]


def messages(path: Path) -> list[tuple[str, int, Any]]:
    """Read everything back: topic, log time, message."""
    with AnyReader([path]) as reader:
        return [(each.topic, time, reader.deserialize(raw, each.msgtype)) for each, time, raw in reader.messages()]


def stamp_ns(message: Any) -> int:
    """A header's stamp in nanoseconds."""
    return int(message.header.stamp.sec) * 10**9 + int(message.header.stamp.nanosec)


@pytest.mark.parametrize(("storage", "compression"), BAGS)
def test_every_storage(storage: Storage, compression: str | None, tmp_path: Path) -> None:
    """Raw and compressed images on two topics: fields, stamps to the nanosecond, frames and bytes come back."""
    raw = RawImage("mono16", 2, 3, 8, is_bigendian=True, data=bytes(range(16)))
    compressed = CompressedImage("bgr8; jpeg compressed bgr8", b"not really")
    path = tmp_path / ("drive.bag" if storage == "bag" else "drive")
    with BagWriter(path, storage, compression) as writer:
        writer.write("/raw", raw, 1_700_000_000_123_456_789, 1_700_000_000_200_000_001, "left")
        writer.write("/jpeg", compressed, 1_700_000_001_000_000_007, 1_700_000_001_000_000_009, "right")
    (_, raw_time, got_raw), (_, jpeg_time, got_jpeg) = messages(path)
    assert (raw_time, stamp_ns(got_raw)) == (1_700_000_000_200_000_001, 1_700_000_000_123_456_789)
    assert (got_raw.encoding, got_raw.height, got_raw.width, got_raw.step) == ("mono16", 2, 3, 8)
    assert got_raw.is_bigendian == 1
    assert got_raw.data.tobytes() == raw.data
    assert (jpeg_time, stamp_ns(got_jpeg)) == (1_700_000_001_000_000_009, 1_700_000_001_000_000_007)
    assert (got_jpeg.format, got_jpeg.data.tobytes()) == (compressed.format, compressed.data)
    assert [got_raw.header.frame_id, got_jpeg.header.frame_id] == ["left", "right"]


@pytest.mark.parametrize(("ros", "bits", "pattern"), list(itertools.product((1, 2), (8, 16), PATTERNS)))
def test_drive_as_mosaics(ros: Literal[1, 2], bits: int, pattern: str, tmp_path: Path) -> None:
    """Both ROS versions, all patterns, 8 and 16 bit: red and blue of each 2x2 are those of the rendered picture."""
    encoding = f"bayer_{pattern}{bits}"
    name = "drive.bag" if ros == 1 else "drive"
    path = write_drive(tmp_path / name, ros=ros, frames=2, seed=4, encoding=encoding, width=SIZE[0], height=SIZE[1])
    images = [message for topic, _, message in messages(path) if topic == IMAGE_TOPIC]
    masks = [message for topic, _, message in messages(path) if topic == TRUTH_TOPIC]
    drive = SyntheticDrive(4, *SIZE)
    assert len(images) == len(masks) == 2
    for index, (image, mask) in enumerate(zip(images, masks, strict=True)):
        scene = drive.scene(index)
        samples = image.data.view(f"<u{bits // 8}").reshape(SIZE[1], SIZE[0]) // (257 if bits == 16 else 1)
        for channel, (row, column) in zip((0, 2), RED_BLUE[pattern], strict=True):
            assert np.array_equal(samples[row::2, column::2], scene.picture[row::2, column::2, channel])
        assert (image.encoding, image.step, image.header.frame_id) == (encoding, SIZE[0] * bits // 8, "camera")
        assert np.array_equal(mask.data.reshape(SIZE[1], SIZE[0]), scene.mask)
        assert stamp_ns(mask) == stamp_ns(image)


def test_log_times_follow_the_stamps(tmp_path: Path) -> None:
    """Stamps are spaced by the rate; each log time is a few, differing, milliseconds later."""
    path = write_drive(tmp_path / "d", ros=2, frames=6, seed=1, rate=20, width=64, height=48, truth_topic=False)
    found = messages(path)
    stamps = np.array([stamp_ns(message) for _, _, message in found])
    delays = np.array([time for _, time, _ in found]) - stamps
    assert (np.diff(stamps) == 50_000_000).all()
    assert (delays >= 8_000_000).all()
    assert (delays < 23_000_000).all()
    assert len(set(delays)) > 1
    assert {topic for topic, _, _ in found} == {IMAGE_TOPIC}


def test_same_seed_same_bag(tmp_path: Path) -> None:
    """Two ROS 1 bags of one seed are equal to the byte, and progress counts the frames."""
    told: list[tuple[int, int]] = []
    one, other = (
        write_drive(
            tmp_path / name, ros=1, frames=2, seed=9, width=64, height=48, progress=lambda *done: told.append(done)
        )
        for name in ("a.bag", "b.bag")
    )
    assert one.read_bytes() == other.read_bytes()
    assert told == [(1, 2), (2, 2)] * 2


@given(
    picture=arrays(np.uint8, st.tuples(st.integers(1, 9), st.integers(1, 9), st.just(3))),
    pattern=st.sampled_from(PATTERNS),
)
def test_mosaic_takes_each_pixel_from_the_picture(picture: np.ndarray[Any, Any], pattern: str) -> None:
    """Odd sizes too: every sample is the channel that the pattern's letter at its place in the 2x2 names."""
    mosaic = make_mosaic(picture, pattern)
    for row, column in np.ndindex(mosaic.shape):
        letter = pattern[row % 2 * 2 + column % 2]
        assert mosaic[row, column] == picture[row, column, "rgb".index(letter)]


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_true_bit_depth(bits: int) -> None:
    """0 stays 0, 255 becomes the largest number of the depth, and every level is kept apart."""
    ramp = np.repeat(np.arange(256, dtype=np.uint8)[None, :, None], 3, axis=2)
    image = raw_image(ramp, "bayer_rggb16", bits)
    samples = np.frombuffer(image.data, "<u2")
    assert (samples[0], samples[-1]) == (0, 2**bits - 1)
    assert (np.diff(samples.astype(int)) > 0).all()


@pytest.mark.parametrize(
    ("encoding", "bits"), [("bayer_rgbg8", 8), ("bayer_rggb12", 12), ("bayer_rggb16", 17), ("yuv422", 8), ("", 8)]
)
def test_unknown_encoding(encoding: str, bits: int) -> None:
    """The message names the encodings that there are."""
    with pytest.raises(ConfigError, match="rggb"):
        raw_image(np.zeros((4, 4, 3), np.uint8), encoding, bits)


@pytest.mark.parametrize(("storage", "compression"), [("bag", "zip"), ("mcap", "lz4"), ("parquet", None)])
def test_unknown_storage(storage: Any, compression: str | None, tmp_path: Path) -> None:
    """The message names the choices."""
    with pytest.raises(ConfigError, match="choose one of"):
        BagWriter(tmp_path / ("x.bag" if storage == "bag" else "x"), storage, compression)


def test_bad_drive(tmp_path: Path) -> None:
    """No frames, or a ROS 3, is refused before a file is made."""
    with pytest.raises(ConfigError, match="1 frame or more"):
        write_drive(tmp_path / "x.bag", ros=1, frames=0, seed=0)
    with pytest.raises(ConfigError, match="ros 1 or 2"):
        write_drive(tmp_path / "x.bag", ros=3, frames=1, seed=0)  # type: ignore[arg-type]  # on purpose
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("storage", ["bag", "mcap"])
def test_path_is_taken(storage: Storage, tmp_path: Path) -> None:
    """An existing file is never overwritten."""
    path = tmp_path / ("drive.bag" if storage == "bag" else "drive")
    path.write_text("precious")
    with pytest.raises(SourceError, match="exists already"):
        BagWriter(path, storage)
    assert path.read_text() == "precious"


@pytest.mark.parametrize(("storage", "name"), [("bag", "drive"), ("mcap", "drive.bag")])
def test_name_of_the_other_kind(storage: Storage, name: str, tmp_path: Path) -> None:
    """A name that readers would take for the other ROS version is refused."""
    with pytest.raises(ConfigError, match=r"ends in \.bag"):
        BagWriter(tmp_path / name, storage)


def test_path_cannot_be_made(tmp_path: Path) -> None:
    """A file where a folder should be: one error that names the bag."""
    (tmp_path / "file").write_text("")
    with pytest.raises(SourceError, match=r"drive\.bag"):
        BagWriter(tmp_path / "file" / "drive.bag", "bag")


def test_two_types_on_one_topic(tmp_path: Path) -> None:
    """A topic keeps the type that it began with."""
    with BagWriter(tmp_path / "d.bag", "bag") as writer:
        writer.write("/t", raw_image(np.zeros((4, 4, 3), np.uint8), "rgb8"), 1, 2)
        with pytest.raises(SourceError, match="another topic"):
            writer.write("/t", CompressedImage("jpeg", b"x"), 3, 4)
