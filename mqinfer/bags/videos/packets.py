"""Read messages that are packets of a video: `foxglove.CompressedVideo`, and `FFMPEGPacket` of ffmpeg_image_transport.

Sources: https://docs.foxglove.dev/docs/sdk/schemas/compressed-video and
https://github.com/ros-misc-utilities/ffmpeg_image_transport_msgs; of key frames ITU-T H.264, table 7-1; ITU-T H.265,
table 7-1; AV1, sections 5.3.2 and 5.9.2; VP9, section 6.2.
"""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.json import Decoder

from mqinfer.protobuf_wire import DELIMITED, VARINT, fields, read_varint
from mqinfer.protocol.errors import InvalidRequest, SourceError

FOXGLOVE = "foxglove.CompressedVideo"
"""A message of Protocol Buffers or JSON."""
VIDEO_TYPES = (FOXGLOVE, "foxglove_msgs/msg/CompressedVideo", "ffmpeg_image_transport_msgs/msg/FFMPEGPacket")
DEFINITIONS = {
    VIDEO_TYPES[1]: "builtin_interfaces/Time timestamp\nstring frame_id\nuint8[] data\nstring format\n",
    VIDEO_TYPES[2]: "std_msgs/Header header\nint32 width\nint32 height\nstring encoding\nuint64 pts\nuint8 flags\n"
    "bool is_bigendian\nuint8[] data\n",
}
"""Definitions of the types of ROS, for recordings without definitions."""
FOXGLOVE_ENCODINGS = ("protobuf", "json")
CODECS = ("h264", "hevc", "av1", "vp9")
_NAMES = {"264": "h264", "265": "hevc", "hevc": "hevc", "av1": "av1", "vp9": "vp9"}
"""What is in the names of codecs, and of their encoders such as `libx264`, which old messages have."""
_KEYS = {
    "h264": re.compile(rb"\x00\x00\x01[\x05\x25\x45\x65]"),
    "hevc": re.compile(rb"\x00\x00\x01[\x20-\x2b]"),
}
"""What a picture has that needs none before it."""
_OPEN_KEY = re.compile(rb"\x00\x00\x01[\x2a\x2b]")
"""One of HEVC behind which stand pictures that are shown before it, and refer to earlier ones."""
_SEQUENCE_HEADER, _FRAME_HEADER, _FRAME = 1, 3, 6
"""Types of AV1's units."""


class _Stamp(Struct):
    sec: int = 0
    nsec: int = 0


class _InJson(Struct):
    data: bytes  # in base64
    format: str
    timestamp: _Stamp = field(default_factory=_Stamp)
    frame_id: str = ""


_JSON = Decoder(_InJson)


def codec_of(name: str) -> str:
    """Return one of `CODECS` by a message's name of its encoding, such as `h265` or `hevc;yuv420p;bgr8;bgr8`.

    Raises:
        SourceError: It is none of them.
    """
    first = name.partition(";")[0].lower()
    for part, codec in _NAMES.items():
        if part in first:
            return codec
    raise SourceError(
        f"a video of the encoding {name[:100]!r}; expected h264, h265, av1 or vp9; leave it out: --topic OTHER"
    )


def read_foxglove(raw: bytes, encoding: str) -> Any:
    """Return a `foxglove.CompressedVideo` with the fields of its type in ROS; raise what parsers raise on damage."""
    if encoding == "json":
        found = _JSON.decode(raw)
        return _message(found.timestamp.sec, found.timestamp.nsec, found.frame_id, found.data, found.format)
    view, values = memoryview(raw), dict.fromkeys(range(1, 5), memoryview(b""))
    try:
        values |= {number: view[begin:end] for number, kind, _, begin, end in fields(view) if kind == DELIMITED}
        times = {
            number: read_varint(values[1], at)[0] for number, kind, _, at, _ in fields(values[1]) if kind == VARINT
        }
    except InvalidRequest as error:
        raise ValueError(str(error)) from error
    frame_id, encoded = str(values[2], "utf-8"), str(values[4], "utf-8")
    return _message(times.get(1, 0), times.get(2, 0), frame_id, values[3], encoded)


def _message(seconds: int, nanoseconds: int, frame_id: str, data: Any, encoding: str) -> Any:
    stamp = SimpleNamespace(sec=seconds, nanosec=nanoseconds)
    return SimpleNamespace(
        __msgtype__=FOXGLOVE, timestamp=stamp, frame_id=frame_id, data=np.frombuffer(data, np.uint8), format=encoding
    )


def is_key(codec: str, data: bytes) -> bool:
    """Return whether a packet is one from which on pictures can be decoded."""
    if codec in _KEYS:
        return _KEYS[codec].search(data) is not None
    if codec == "vp9":  # behind its marker and profile: shows another frame, is no key frame
        return len(data) > 0 and data[0] & (0xCE if data[0] & 0x30 == 0x30 else 0xCC) == 0x80
    try:
        return _is_key_of_av1(data)
    except (InvalidRequest, IndexError):  # damaged
        return False


def has_open_key(codec: str, data: bytes) -> bool:
    """Return whether the packets behind a key frame may hold pictures that can't be decoded from it on."""
    return codec == "hevc" and _OPEN_KEY.search(data) is not None


def _is_key_of_av1(data: bytes) -> bool:
    at, has_sequence = 0, False
    while at < len(data):
        head = data[at]
        kind = head >> 3 & 15
        at += 2 if head & 4 else 1
        length, at = read_varint(data, at) if head & 2 else (len(data) - at, at)
        if kind in {_FRAME_HEADER, _FRAME}:
            return has_sequence and data[at] >> 4 == 1  # is no earlier frame, a key frame, and is shown
        has_sequence |= kind == _SEQUENCE_HEADER
        at += length
    return False
