"""Videos that are cut off or damaged: what can be decoded is read, what is missing is reported, whole ones pass."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest

from mqinfer.bags.sources import open_source
from mqinfer.bags.videos.decoder import VideoFileDecoder
from mqinfer.protocol.errors import ConfigError, SourceError

FRAMES, RATE = 60, 25

KINDS: dict[str, tuple[str, str, dict[str, str], dict[str, str]]] = {
    "plain.mp4": ("libx264", "yuv420p", {"bf": "0", "g": "10"}, {"movflags": "faststart"}),
    "edit_list.mp4": ("libx264", "yuv420p", {"bf": "3", "g": "10"}, {"movflags": "faststart"}),
    "hybrid.mp4": ("libx264", "yuv420p", {"g": "10"}, {"movflags": "hybrid_fragmented+frag_keyframe"}),
    "fragments.mp4": ("libx264", "yuv420p", {"g": "10"}, {"movflags": "frag_keyframe+empty_moov"}),
    "mpeg4.mp4": ("mpeg4", "yuv420p", {"g": "10"}, {"movflags": "faststart"}),
    "motion_jpeg.avi": ("mjpeg", "yuvj420p", {}, {}),
    "mpeg4.avi": ("mpeg4", "yuv420p", {"g": "10"}, {}),
    "mpeg4_b.avi": ("mpeg4", "yuv420p", {"g": "10", "bf": "2"}, {}),
    "b_frames.avi": ("libx264", "yuv420p", {"bf": "3", "g": "10"}, {}),
    "b_frames.mkv": ("libx264", "yuv420p", {"bf": "3", "g": "10"}, {}),
    "motion_jpeg.mkv": ("mjpeg", "yuvj420p", {}, {}),
    "motion_jpeg.mjpeg": ("mjpeg", "yuvj420p", {}, {}),
    "small.webm": ("libvpx", "yuv420p", {"deadline": "realtime", "cpu-used": "8", "g": "10"}, {}),
    "small_vp9.webm": ("libvpx-vp9", "yuv420p", {"deadline": "realtime", "cpu-used": "8", "g": "10"}, {}),
    "sorenson.flv": ("flv1", "yuv420p", {"g": "10"}, {}),
    "stream.ts": ("libx264", "yuv420p", {"g": "10"}, {}),
    "stream.m2ts": ("libx264", "yuv420p", {"g": "10"}, {"mpegts_m2ts_mode": "1"}),
    "stream.wmv": ("wmv2", "yuv420p", {"g": "10"}, {}),
    "raw.y4m": ("wrapped_avframe", "yuv420p", {}, {}),
    "units.h264": ("libx264", "yuv420p", {"g": "30", "bf": "0"}, {}),
    "units_b.h264": ("libx264", "yuv420p", {"g": "30", "bf": "3"}, {}),
    "units.hevc": ("libx265", "yuv420p", {"x265-params": "keyint=30:log-level=none"}, {}),
    "units_hashes.hevc": ("libx265", "yuv420p", {"x265-params": "keyint=30:log-level=none:hash=1"}, {}),
    "program.mpg": ("mpeg2video", "yuv420p", {"g": "30", "bf": "2"}, {}),
    "program.mpeg": ("mpeg1video", "yuv420p", {"g": "30", "bf": "2"}, {}),
}
"""Codec, pixel format, and options of codec and container."""
SIZED = [name for name in KINDS if name.endswith((".ts", ".m2ts", ".wmv", ".y4m"))]
"""Those whose size shows a cut."""
UNSTATED = [name for name in KINDS if name.endswith((".h264", ".hevc", ".mpg", ".mpeg"))]
"""Those that state nothing; what FFmpeg makes of their pictures shows damage."""
COUNTED = [name for name in KINDS if name not in (*SIZED, *UNSTATED) and not name.endswith(".mjpeg")]
"""Those that state how many frames there are, or how long they last."""


def encode(path: Path, stamps: list[int] | None = None, more: Mapping[str, str] | None = None) -> Path:
    """Encode pictures of noise; `stamps` are milliseconds, for a rate that varies; `more` are options of the codec."""
    codec, pixels, options, container = KINDS[path.name]
    options = {**options, **(more or {})}
    if codec == "wrapped_avframe":
        return encode_raw(path)
    base = Fraction(1, 1000) if stamps else Fraction(1, RATE)
    generator = np.random.default_rng(0)
    with av.open(str(path), "w", options=container) as file:
        stream: Any = file.add_stream(codec, rate=RATE, options=options)
        stream.width, stream.height, stream.pix_fmt = 96, 64, pixels
        if stamps:
            stream.codec_context.time_base = base
        scene = np.repeat(np.repeat(generator.integers(0, 255, (40, 60, 3), np.uint8), 4, 0), 4, 1)
        for number in range(FRAMES):
            picture = np.repeat(np.repeat(generator.integers(0, 255, (16, 24, 3), np.uint8), 4, 0), 4, 1)
            if path.name in UNSTATED:  # of noise each would be a key frame
                picture = np.ascontiguousarray(scene[number : number + 64, 2 * number : 2 * number + 96])
            frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format=pixels)
            frame.pts, frame.time_base = (stamps[number] if stamps else number), base
            file.mux(stream.encode(frame))
        file.mux(stream.encode())
    return path


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a video of a kind, encoded once."""
    folder = tmp_path_factory.mktemp("videos")
    return lambda name: folder / name if (folder / name).exists() else encode(folder / name)


def read(path: Path, **options: Any) -> tuple[list[int], str]:
    """Return the numbers of the frames that were read, and the error at the end."""
    numbers: list[int] = []
    try:
        with closing(open_source(str(path), **options)) as source:
            numbers.extend(frame.sequence for frame in source.frames())  # keeps what came before an error
    except SourceError as error:
        return numbers, str(error)
    return numbers, ""


def read_on(path: Path) -> tuple[int, str]:
    """Return how many frames were read before the error, and the error."""
    numbers, error = read(path)
    return len(numbers), error


def encode_raw(path: Path) -> Path:
    """Write pictures of noise without compression."""
    header = b"YUV4MPEG2 W96 H64 F25:1 Ip A1:1 C420jpeg\n"
    noise = np.random.default_rng(0).integers(0, 255, (FRAMES, 96 * 64 * 3 // 2), np.uint8)
    path.write_bytes(header + b"".join(b"FRAME\n" + each.tobytes() for each in noise))
    return path


@pytest.mark.parametrize("name", KINDS)
def test_whole_videos_raise_no_alarm(videos: Callable[[str], Path], name: str) -> None:
    """Neither from the start, nor from a later one, nor for a part; behind the end it is the start that is wrong."""
    path = videos(name)
    assert read(path) == (list(range(FRAMES)), "")
    later, error = read(path, start=1.0)
    assert (later[-1], error) == (FRAMES - 1, "")
    assert later == list(range(later[0], FRAMES))
    part, error = read(path, start=0.5, duration=0.5)
    assert part
    assert not error
    with pytest.raises(ConfigError, match="no frame from 60 s on"):
        read(path, start=60.0)


@pytest.mark.parametrize("options", [{"b": "30k"}, {"b": "100k"}, {"b": "300k"}, {"g": "1", "b": "8M"}])
def test_pictures_anywhere_in_packets_of_asf(tmp_path: Path, options: dict[str, str]) -> None:
    """The last picture may begin in a packet of the container and go on in others, however large it is."""
    assert read(encode(tmp_path / "stream.wmv", more=options)) == (list(range(FRAMES)), "")


def test_motion_jpeg_over_http(videos: Callable[[str], Path], tmp_path: Path) -> None:
    """What a server of pictures puts between them is no damage."""
    begin = b"\xff\xd8"
    pictures = videos("motion_jpeg.mjpeg").read_bytes().split(begin)[1:]
    path = tmp_path / "stream.mjpeg"
    path.write_bytes(b"".join(begin + each + b"\r\n--frame\r\nContent-Type: image/jpeg\r\n\r\n" for each in pictures))
    assert read(path) == (list(range(FRAMES)), "")


@pytest.mark.parametrize("name", [name for name in KINDS if name.endswith((".avi", ".mp4", ".mkv", ".ts", ".wmv"))])
def test_times(videos: Callable[[str], Path], name: str) -> None:
    """Pictures have the times at which they are shown, also where they are stored in another order."""
    period = 10**9 // RATE
    with closing(open_source(str(videos(name)))) as source:
        times = [frame.log_time_ns for frame in source.frames()]
    assert times == pytest.approx([number * period for number in range(FRAMES)], abs=10**6)
    with closing(open_source(str(videos(name)), start=1.0)) as source:
        later = [(frame.sequence, frame.log_time_ns) for frame in source.frames()]
    assert later == list(enumerate(times))[25:]


def test_a_rate_that_varies(tmp_path: Path) -> None:
    """The duration and the rate of such a video say little about its count; a start counts all the frames before."""
    steps = random.Random(1)  # noqa: S311 - a seeded test
    stamps = [0]
    while len(stamps) < FRAMES:
        stamps.append(stamps[-1] + steps.choice([20, 33, 40, 300]))
    path = encode(tmp_path / "b_frames.mkv", stamps)
    assert read(path) == (list(range(FRAMES)), "")
    later, error = read(path, start=stamps[41] / 1000)
    assert (later, error) == (list(range(41, FRAMES)), "")


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("name", COUNTED)
def test_cut_off(videos: Callable[[str], Path], tmp_path: Path, name: str, share: float) -> None:
    """The frames before the cut are read, and the error has how many are missing."""
    whole = videos(name).read_bytes()
    path = tmp_path / name
    path.write_bytes(whole[: int(len(whole) * share)])
    count, error = read_on(path)
    assert count < FRAMES
    assert "damaged" in error
    if name == "hybrid.mp4":  # its index is at the end, over the fragments, which nobody finds any more
        assert count == 0
        return
    assert count >= FRAMES * share / 2 - 3
    if name != "fragments.mp4":  # what follows is not known, as in a file that still grows
        assert f"{FRAMES - count} of {FRAMES} frames are missing" in error


@pytest.mark.parametrize("name", SIZED)
def test_cut_off_where_no_count_is_stated(videos: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """What is there is read; the error comes at the end, and not where only a part before it was asked for."""
    whole = videos(name).read_bytes()
    path = tmp_path / name
    for seed in range(10):
        path.write_bytes(whole[: random.Random(seed).randrange(len(whole) // 2, len(whole))])  # noqa: S311 - seeded
        count, error = read_on(path)
        assert count >= FRAMES // 2 - 5
        assert error.endswith("the video is cut off: its end is missing"), (seed, count, error)
        part, error = read(path, duration=0.5)
        assert part
        assert not error


@pytest.mark.parametrize("name", COUNTED)
def test_noise_in_the_middle(videos: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """Frames behind it are read too, and it is no success."""
    whole = bytearray(videos(name).read_bytes())
    at, length = len(whole) // 2, len(whole) // 8
    whole[at : at + length] = random.Random(2).randbytes(length)  # noqa: S311 - a seeded test
    path = tmp_path / name
    path.write_bytes(whole)
    count, error = read_on(path)
    assert "damaged" in error
    assert count >= (25 if name == "fragments.mp4" else 40)  # a fragment that has lost its head is lost whole


def ends(path: Path, whole: bytes, fill: Callable[[random.Random, int], bytes], share: int) -> list[str]:
    """Overwrite a part of a video at ten places; return how reading each ends."""
    found, length = [], len(whole) // share
    for seed in range(10):
        at_random, damaged = random.Random(seed), bytearray(whole)  # noqa: S311 - seeded damage
        at = at_random.randrange(len(whole) // 20, len(whole) - length)
        damaged[at : at + length] = fill(at_random, length)
        path.write_bytes(damaged)
        found.append(read_on(path)[1])
    return found


@pytest.mark.parametrize("name", [*UNSTATED, "stream.wmv", "stream.ts"])
def test_noise_where_no_count_is_stated(videos: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """Pictures that FFmpeg calls corrupt, packets without one, and numbers left out are no success."""
    found = ends(tmp_path / name, videos(name).read_bytes(), random.Random.randbytes, 8)
    assert sum("damaged" in each or "cut off" in each for each in found) >= (5 if name == "units.hevc" else 8)


@pytest.mark.parametrize(
    ("name", "least"),
    [
        ("motion_jpeg.mjpeg", 10),
        ("stream.wmv", 10),
        ("program.mpg", 9),
        ("units_hashes.hevc", 9),
        ("small_vp9.webm", 10),
    ],
)
def test_a_little_noise(videos: Callable[[str], Path], tmp_path: Path, name: str, least: int) -> None:
    """What makes one picture wrong is no success."""
    whole = videos(name).read_bytes()
    found = ends(tmp_path / name, whole, random.Random.randbytes, len(whole) // 200)
    assert sum(any(word in each for word in ("damaged", "cut off")) for each in found) >= least


@pytest.mark.parametrize("name", [each for each in UNSTATED if each.startswith("units")])
def test_zeros_in_pictures(videos: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """No picture of H.264 or HEVC has three of them in a row, as a disk's lost block has."""
    found = ends(tmp_path / name, videos(name).read_bytes(), lambda _, length: bytes(length), 40)
    assert sum("damaged" in each for each in found) >= 7


@pytest.mark.parametrize("name", ["units.h264", "units_hashes.hevc", "program.mpg"])
def test_damage_in_a_first_picture_that_stands_alone(videos: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """It is no capture that began between two key frames: those refer to what was not recorded."""
    whole = bytearray(videos(name).read_bytes())
    with av.open(str(videos(name))) as file:
        size = next(packet.size for packet in file.demux(video=0))
    path = tmp_path / name
    found = []
    for seed in range(10):
        at_random, damaged = random.Random(seed), bytearray(whole)  # noqa: S311 - seeded damage
        at = at_random.randrange(size // 2, size - 16)  # behind what x265 writes of itself
        damaged[at : at + 16] = at_random.randbytes(16)
        path.write_bytes(damaged)
        found.append(read_on(path)[1])
    assert sum("damaged" in each for each in found) >= 5


@pytest.mark.parametrize("name", UNSTATED)
def test_a_capture_may_begin_between_key_frames(videos: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """What precedes its first key frame refers to what was never recorded, and is no damage."""
    whole = videos(name).read_bytes()
    path = tmp_path / name
    path.write_bytes(whole[len(whole) * 2 // 5 :])
    count, error = read_on(path)
    assert count >= FRAMES // 2
    assert not error


@pytest.mark.parametrize("name", ["stream.ts", "stream.m2ts"])
def test_two_streams_in_one_file(videos: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """Recordings that were joined are whole; one of which a part is cut out is not."""
    whole, size = videos(name).read_bytes(), 188 if name == "stream.ts" else 192
    path = tmp_path / name
    path.write_bytes(whole * 3)
    assert read(path) == (list(range(3 * FRAMES)), "")
    for cut in (5, 20, 60):
        path.write_bytes(whole[: len(whole) // 2 // size * size] + whole[(len(whole) // 2 // size + cut) * size :])
        assert "damaged" in read_on(path)[1]


@pytest.mark.parametrize("name", ["plain.mp4", "hybrid.mp4", "fragments.mp4", "sorenson.flv", "stream.wmv"])
def test_what_stands_behind_a_video(
    videos: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    """Another video, which FFmpeg does not read, ends the run with its place; anything else is one line of the log."""
    whole = videos(name).read_bytes()
    joined, padded = tmp_path / f"joined-{name}", tmp_path / f"padded-{name}"
    joined.write_bytes(whole * 2)
    numbers, error = read(joined)  # of fragments some are read on
    assert numbers[:FRAMES] == list(range(FRAMES))
    assert f"another video begins at byte {len(whole)}" in error
    assert f"tail -c +{len(whole) + 1} FILE" in error
    padded.write_bytes(whole + b"\0" * 999)
    assert read(padded) == (list(range(FRAMES)), "")
    assert [record.getMessage() for record in caplog.records] == [f"{padded}: 999 bytes behind the video are not read"]


def test_a_lost_picture_of_h264(videos: Callable[[str], Path], tmp_path: Path) -> None:
    """Its number is missing, though every other one can be decoded."""
    whole = videos("units.h264").read_bytes()
    units = whole.split(b"\0\0\1")
    pictures = [number for number, unit in enumerate(units) if unit[:1] == b"\x41"]
    path = tmp_path / "units.h264"
    path.write_bytes(b"\0\0\1".join(unit for number, unit in enumerate(units) if number != pictures[10]))
    assert read_on(path) == (FRAMES - 1, f"{path}: the video is damaged: some of its pictures are missing or wrong")


def test_a_cut_motion_jpeg_ends_with_a_broken_picture(videos: Callable[[str], Path], tmp_path: Path) -> None:
    """It states no count, but its last picture has no end."""
    path = tmp_path / "cut.mjpeg"
    path.write_bytes(videos("motion_jpeg.mjpeg").read_bytes()[:-100])
    count, error = read_on(path)
    assert (count, error.rpartition(": ")[2]) == (FRAMES - 1, f"1 of {FRAMES} frames are missing")


def test_damage_at_the_end_loses_what_is_damaged_alone(videos: Callable[[str], Path], tmp_path: Path) -> None:
    """Pictures that the decoder's threads hold when the last packet fails are read by a second pass."""
    whole = bytearray(videos("plain.mp4").read_bytes())
    whole[-40:] = bytes(40)
    path = tmp_path / "plain.mp4"
    path.write_bytes(whole)
    count, error = read_on(path)
    assert count >= FRAMES - 1
    assert "damaged" in error or count == FRAMES


@pytest.mark.parametrize(("degrees", "matrix"), [(90, (0, 1, -1, 0)), (180, (-1, 0, 0, -1)), (270, (0, -1, 1, 0))])
def test_turned(videos: Callable[[str], Path], tmp_path: Path, degrees: int, matrix: tuple[int, ...]) -> None:
    """A phone's video is turned as the file asks, and described so."""
    whole = bytearray(videos("plain.mp4").read_bytes())
    at = whole.index(b"tkhd") + 44
    a, b, c, d = (value * 65536 for value in matrix)
    for place, value in zip(range(at, at + 36, 4), (a, b, 0, c, d, 0, 0, 0, 1 << 30), strict=True):
        whole[place : place + 4] = value.to_bytes(4, "big", signed=True)
    path = tmp_path / "turned.mp4"
    path.write_bytes(whole)
    with closing(open_source(str(path))) as source:
        (stream,) = source.streams()
        turned = next(source.frames()).image
    with closing(open_source(str(videos("plain.mp4")))) as source:
        plain = next(source.frames()).image
    size = (64, 96) if degrees % 180 else (96, 64)
    assert (stream.width, stream.height) == size
    expected = np.rot90(np.frombuffer(plain.data, np.uint8).reshape(64, 96, 3), -degrees // 90)
    np.testing.assert_array_equal(np.frombuffer(turned.data, np.uint8).reshape(expected.shape), expected)


@pytest.mark.parametrize("name", ["plain.mp4", "edit_list.mp4"])
def test_a_file_without_a_unit_of_time(videos: Callable[[str], Path], tmp_path: Path, name: str) -> None:
    """One second stands for it, and the list of edits then leaves out what it does not mean."""
    whole = bytearray(videos(name).read_bytes())
    unit = whole.index(b"mdhd") + 4 + 12
    whole[unit : unit + 4] = bytes(4)
    path = tmp_path / "damaged.mp4"
    path.write_bytes(whole)
    found, error = read(path)
    assert len(found) < 20
    assert "frames are missing" in error


def test_not_a_video(tmp_path: Path) -> None:
    """What holds no video is refused when it is opened."""
    path = tmp_path / "text.mp4"
    path.write_text("not a video\n" * 100)
    with pytest.raises(SourceError, match=r"text\.mp4: this video can't be opened"):
        VideoFileDecoder(path)
