"""Topics whose messages are packets of a video: the pixels are those of the decoded video, from any start."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, closing
from fractions import Fraction
from functools import cache
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from mcap.writer import Writer as McapWriter
from rosbags.rosbag1 import Writer as Writer1
from rosbags.rosbag2 import StoragePlugin
from rosbags.rosbag2 import Writer as Writer2
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from mqinfer.bags.frame import Frame
from mqinfer.bags.info import describe
from mqinfer.bags.sources import open_source
from mqinfer.bags.videos.packets import DEFINITIONS
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import SourceError
from tests.bags.reading import read

Packets = Sequence[tuple[int, bytes]]
"""Numbers of pictures in the order in which they are shown, and their packets in that of decoding."""

FRAMES, GROUP, STEP = 20, 6, 100_000_000
WIDTH, HEIGHT = 96, 64
FIRST = 1_700_000_000_000_000_000
SECONDS = 1_600_000_000
"""Stamps lie behind it by the number of the picture, in nanoseconds."""
ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    "h264": ("libx264", {"tune": "zerolatency"}),
    "h265": ("libx265", {"x265-params": "log-level=none:bframes=0"}),
    "av1": ("libsvtav1", {"svtav1-params": "pred-struct=1:lookahead=0"}),
    "vp9": ("libvpx-vp9", {"deadline": "realtime", "lag-in-frames": "0"}),
    "h264 with B frames": ("libx264", {}),
    "h265 with B frames": ("libx265", {"x265-params": "log-level=none:bframes=3"}),
}
CODECS = [name for name in ENCODERS if "B frames" not in name]
FORMS = ["protobuf", "json", "ros1", "mcap", "sqlite3"]


@cache
def encoded(name: str) -> Packets:
    """Encode a short video with PyAV."""
    encoder, options = ENCODERS[name]
    context = av.CodecContext.create(encoder, "w")
    assert isinstance(context, av.VideoCodecContext)
    context.width, context.height, context.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    context.time_base, context.framerate, context.gop_size = Fraction(1, 10), Fraction(10), GROUP
    context.max_b_frames, context.options = 3 if "B frames" in name else 0, options
    rows, columns = np.mgrid[:HEIGHT, :WIDTH]
    found = []
    for number in range(FRAMES):
        colours = [columns * 2 + 5 * number, rows * 3 + number, (rows * columns) // 16 + 9 * number]
        picture = np.stack(colours, -1).astype(np.uint8)
        frame = av.VideoFrame.from_ndarray(picture, format="rgb24").reformat(format="yuv420p")
        frame.pts = number
        found += context.encode(frame)
    return [(each.pts or 0, bytes(each)) for each in [*found, *context.encode(None)]]


@cache
def decoded(name: str) -> dict[int, bytes]:
    """Decode it whole, with PyAV alone."""
    codec = name.partition(" ")[0]
    context = av.CodecContext.create({"h265": "hevc", "av1": "libdav1d"}.get(codec, codec), "r")
    assert isinstance(context, av.VideoCodecContext)
    frames = []
    for number, data in encoded(name):
        packet = av.Packet(data)
        packet.pts = number
        frames += context.decode(packet)
    return {
        frame.pts or 0: frame.reformat(format="bgr24", interpolation="BICUBIC").to_ndarray().tobytes()
        for frame in [*frames, *context.decode(None)]
    }


def protobuf(number: int, data: bytes, codec: str) -> bytes:
    """Make a `foxglove.CompressedVideo` with protobuf itself."""
    file = descriptor_pb2.FileDescriptorProto(name="video.proto", package="test", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    time, video = file.message_type.add(name="Timestamp"), file.message_type.add(name="Video")
    time.field.add(name="seconds", number=1, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    time.field.add(name="nanos", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    single = {"label": kinds.LABEL_OPTIONAL}
    video.field.add(name="timestamp", number=1, type=kinds.TYPE_MESSAGE, type_name=".test.Timestamp", **single)
    video.field.add(name="frame_id", number=2, type=kinds.TYPE_STRING, **single)
    video.field.add(name="data", number=3, type=kinds.TYPE_BYTES, **single)
    video.field.add(name="format", number=4, type=kinds.TYPE_STRING, **single)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    message = message_factory.GetMessageClass(pool.FindMessageTypeByName("test.Video"))
    content: Any = message(frame_id="camera", data=data, format=codec)
    content.timestamp.seconds, content.timestamp.nanos = SECONDS, number
    return bytes(content.SerializeToString())


def in_json(number: int, data: bytes, codec: str) -> bytes:
    """Make one in JSON."""
    content = {"timestamp": {"sec": SECONDS, "nsec": number}, "frame_id": "camera", "format": codec}
    return json.dumps(content | {"data": base64.b64encode(data).decode()}).encode()


def write_foxglove(path: Path, packets: Packets, codec: str, encoding: str) -> Path:
    """Write an MCAP file as Foxglove's tools do, whose schema is not text where it is of protobuf."""
    make = protobuf if encoding == "protobuf" else in_json
    with path.open("wb") as file:
        writer = McapWriter(file)
        writer.start()
        schema = writer.register_schema(
            "foxglove.CompressedVideo", "jsonschema" if encoding == "json" else encoding, b"\xff"
        )
        channel = writer.register_channel("/video", encoding, schema)
        for index, (number, data) in enumerate(packets):
            writer.add_message(channel, FIRST + index * STEP, make(number, data, codec), 0)
        writer.finish()
    return path


def write_ros(path: Path, packets: Packets, codec: str, form: str) -> Path:
    """Write a bag with rosbags: of ROS 1 or SQLite with `FFMPEGPacket`, of MCAP with `CompressedVideo`."""
    store = get_typestore(Stores.ROS1_NOETIC if form == "ros1" else Stores.ROS2_HUMBLE)
    for name, definition in DEFINITIONS.items():
        store.register(get_types_from_msg(definition, name))
    foxglove, ffmpeg = DEFINITIONS
    writer: Any = (
        Writer1(path) if form == "ros1" else Writer2(path, version=9, storage_plugin=StoragePlugin[form.upper()])
    )
    with writer:
        connection = writer.add_connection("/video", foxglove if form == "mcap" else ffmpeg, typestore=store)
        for index, (number, data) in enumerate(packets):
            pixels, stamp = np.frombuffer(data, np.uint8), store.types["builtin_interfaces/msg/Time"](SECONDS, number)
            sequence = {"seq": 0} if form == "ros1" else {}
            header = store.types["std_msgs/msg/Header"](stamp=stamp, frame_id="camera", **sequence)
            message = (
                store.types[foxglove](timestamp=stamp, frame_id="camera", data=pixels, format=codec)
                if form == "mcap"
                else store.types[ffmpeg](
                    header=header,
                    width=WIDTH,
                    height=HEIGHT,
                    encoding=f"{codec};yuv420p;bgr8;bgr8",
                    pts=number,
                    flags=0,
                    is_bigendian=False,
                    data=pixels,
                )
            )
            serialize = store.serialize_ros1 if form == "ros1" else store.serialize_cdr
            writer.write(connection, FIRST + index * STEP, serialize(message, message.__msgtype__))
    return path


def write(folder: Path, name: str, form: str, packets: Packets | None = None) -> Path:
    """Write a recording of a form."""
    codec, found = name.partition(" ")[0], encoded(name) if packets is None else packets
    if form in {"protobuf", "json"}:
        return write_foxglove(folder / "drive.mcap", found, codec, form)
    return write_ros(folder / ("drive.bag" if form == "ros1" else "drive"), found, codec, form)


def number_of(frame: Frame) -> int:
    """Return the number of a frame's picture."""
    return frame.capture_time_ns - SECONDS * 1_000_000_000


def assert_pixels(frames: Sequence[Frame], name: str) -> None:
    """Every frame has the pixels of the picture that its stamp is of, and all come in the order of stamps."""
    for frame in frames:
        assert isinstance(frame.image, RawImage)
        assert (frame.image.encoding, frame.image.width, frame.image.height) == ("bgr8", WIDTH, HEIGHT)
        assert bytes(frame.image.data) == decoded(name)[number_of(frame)]
        assert (frame.source, frame.frame_id) == ("/video", "camera")
    assert all(number_of(earlier) < number_of(later) for earlier, later in pairwise(frames))
    assert all(earlier.log_time_ns <= later.log_time_ns for earlier, later in pairwise(frames))


EVERY_FORM = [
    pytest.param(name, form, marks=[pytest.mark.full] * (name != "h264" and form != "protobuf"))
    for name, form in product(CODECS, FORMS)
]
"""Each codec in one form and each form with one codec; the others are marked as long."""


@pytest.mark.parametrize(("name", "form"), EVERY_FORM)
def test_from_any_start(tmp_path: Path, name: str, form: str) -> None:
    """The frames from there on, with numbers, log times and stamps of their messages."""
    path = write(tmp_path, name, form)
    for start in (*range(9), FRAMES - 1):
        frames = read(path, start=start / 10)
        assert [number_of(each) for each in frames] == list(range(start, FRAMES))
        assert [each.sequence for each in frames] == list(range(start, FRAMES))
        assert [each.log_time_ns for each in frames] == [FIRST + each * STEP for each in range(start, FRAMES)]
        assert_pixels(frames, name)


@pytest.mark.parametrize("name", [name for name in ENCODERS if name not in CODECS])
def test_b_frames(tmp_path: Path, name: str) -> None:
    """They come in the order of their stamps, and none is missing from any start on."""
    path = write(tmp_path, name, "ros1")
    assert [number for number, _ in encoded(name)] != list(range(FRAMES))
    for start in range(FRAMES):
        frames = read(path, start=start / 10)
        assert {number_of(each) for each in frames} == {number for number, _ in encoded(name)[start:]}
        assert_pixels(frames, name)


def test_b_frames_with_stamps_of_packets(tmp_path: Path) -> None:
    """They are refused: nobody knows when their pictures were taken."""
    packets = [(index, data) for index, (_, data) in enumerate(encoded("h264 with B frames"))]
    with pytest.raises(SourceError, match=r"/video: a video with B frames that are stamped in the order of decoding"):
        read(write(tmp_path, "h264 with B frames", "protobuf", packets))


@pytest.mark.parametrize("name", CODECS)
def test_info(tmp_path: Path, name: str) -> None:
    """It names the codec and the size."""
    (stream,) = describe(str(write(tmp_path, name, "protobuf"))).streams
    assert (stream.encoding, stream.width, stream.height) == ({"h265": "hevc"}.get(name, name), WIDTH, HEIGHT)
    assert (stream.message_type, stream.count, stream.is_image) == ("foxglove.CompressedVideo", FRAMES, True)
    assert describe(str(tmp_path / "drive.mcap")).kind == "MCAP file"


def damaged(name: str, damage: Callable[[bytes], bytes | None]) -> Packets:
    """Return the packets with the damage of one in the second group; None leaves it out."""
    found = [(number, damage(data) if number == GROUP + 2 else data) for number, data in encoded(name)]
    return [(number, data) for number, data in found if data is not None]


def until_error(path: Path) -> tuple[list[Frame], str]:
    """Return the frames of a recording that is damaged, and its error."""
    frames: list[Frame] = []
    with closing(open_source(str(path))) as source, pytest.raises(SourceError) as caught:
        frames.extend(source.frames())
    return frames, str(caught.value)


@pytest.mark.parametrize("name", CODECS)
def test_a_damaged_packet(tmp_path: Path, name: str) -> None:
    """Those up to the next key frame are counted, and the others are whole."""
    frames, error = until_error(write(tmp_path, name, "mcap", damaged(name, lambda _: b"")))
    assert [number_of(each) for each in frames] == [*range(GROUP + 2), *range(2 * GROUP, FRAMES)]
    assert f"frames are missing: {GROUP - 2} of {FRAMES} on /video" in error
    assert_pixels(frames, name)


@pytest.mark.parametrize("name", ["h264", "h265"])
def test_a_packet_that_was_not_recorded(tmp_path: Path, name: str) -> None:
    """Those that refer to it are counted."""
    frames, error = until_error(write(tmp_path, name, "ros1", damaged(name, lambda _: None)))
    assert [number_of(each) for each in frames] == [*range(GROUP + 2), *range(2 * GROUP, FRAMES)]
    assert f"frames are missing: {GROUP - 3} of {FRAMES - 1} on /video" in error
    assert_pixels(frames, name)


@pytest.mark.parametrize("name", CODECS)
def test_noise(tmp_path: Path, name: str) -> None:
    """It ends no process, whatever it is taken for."""
    chance = np.random.default_rng(1)
    packets = [
        (number, chance.bytes(len(data)) if number % 3 == 0 else data[: len(data) // 2])
        for number, data in encoded(name)
    ]
    frames, error = until_error(
        write(tmp_path, name, "protobuf", [encoded(name)[0], *packets[1:9], *encoded(name)[9:]])
    )
    assert len(frames) < FRAMES
    assert str(tmp_path / "drive.mcap") in error


def test_a_flood_of_units(tmp_path: Path) -> None:
    """Each takes 4 KiB of FFmpeg's memory, so a picture of too many is damaged."""
    flood = damaged("h264", lambda data: data + b"\0\0\1\x0c" * 20_000)
    _, error = until_error(write(tmp_path, "h264", "mcap", flood))
    assert f"frames are missing: {GROUP - 2} of {FRAMES} on /video" in error


def test_pictures_that_are_too_large_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each topic's decoder keeps some: a few kilobytes could stand for a gigabyte a topic."""
    monkeypatch.setattr("mqinfer.bags.rosbag_source._MOST_PIXELS", 2 * WIDTH * HEIGHT)
    names = []
    with (tmp_path / "drive.mcap").open("wb") as file:
        writer = McapWriter(file)
        writer.start()
        schema = writer.register_schema("foxglove.CompressedVideo", "protobuf", b"")
        for topic in range(3):
            names.append(f"/video{topic}")
            channel = writer.register_channel(names[-1], "protobuf", schema)
            for number, data in encoded("h264"):
                writer.add_message(channel, FIRST + number * STEP, protobuf(number, data, "h264"), 0)
        writer.finish()
    path = str(tmp_path / "drive.mcap")
    with closing(open_source(path, topics=names[:2])) as source:
        assert len(list(source.frames())) == 2 * FRAMES
    with closing(open_source(path)) as source, pytest.raises(SourceError, match="name those to read: --topic"):
        list(source.frames())


def test_before_the_first_key_frame(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A recorder that was started later: the packets before it are logged, and no damage."""
    frames = read(write(tmp_path, "h264", "sqlite3", encoded("h264")[4:]))
    assert [number_of(each) for each in frames] == list(range(GROUP, FRAMES))
    assert "/video: 2 packets before its first key frame are not read" in caplog.text
    assert_pixels(frames, "h264")


def test_a_codec_that_is_not_known(tmp_path: Path) -> None:
    """The error names it and the topic."""
    path = write_foxglove(tmp_path / "drive.mcap", [(0, b"x")], "theora", "json")
    with pytest.raises(SourceError, match=r"/video: a video of the encoding 'theora'; expected h264, h265, av1 or vp9"):
        read(path)


WRONG = [
    {"timestamp": {"sec": "9" * 9, "nsec": 0}},
    {"timestamp": {"sec": [1], "nsec": 0}},
    {"timestamp": {"sec": 1 << 31, "nsec": 0}},
    {"timestamp": {"sec": 1.5, "nsec": 0}},
    {"timestamp": []},
    {"frame_id": {"a": 1}},
    {"frame_id": "\ud800"},
    {"format": 5},
    {"format": None},
    {"data": [1]},
]
"""Each would be a multiple of gigabytes, end the process, or be none of what it is taken for."""


@pytest.mark.parametrize("encoding", ["protobuf", "json"])
@pytest.mark.parametrize(
    "content",
    [b"", b"\xff" * 9, b"{}", b"\x0a\x02\x08", b"[" * 10**5]
    + [json.dumps(json.loads(in_json(0, b"x", "h264")) | each).encode() for each in WRONG],
)
def test_what_is_no_message(
    tmp_path: Path, takes_at_most: Callable[[int], AbstractContextManager[None]], encoding: str, content: bytes
) -> None:
    """The error names the topic."""
    path = tmp_path / "drive.mcap"
    with path.open("wb") as file:
        writer = McapWriter(file)
        writer.start()
        schema = writer.register_schema("foxglove.CompressedVideo", encoding, b"")
        writer.add_message(writer.register_channel("/video", encoding, schema), 0, content, 0)
        writer.finish()
    # Opened before: the types of a bag take a second to make while allocations are traced.
    source = open_source(str(path))
    with closing(source), takes_at_most(100 << 20), pytest.raises(SourceError, match="/video: "):
        list(source.frames())
