"""What the fuzzer starts from: the golden files, and small valid inputs of every kind."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mqinfer.broker.link import Message
from mqinfer.broker.packets import encode_head, encode_puback
from mqinfer.codecs import encode_tensor
from mqinfer.codecs.h264 import H264Encoder
from mqinfer.protocol.control import Cancellation
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.header import RAW_SIZE
from mqinfer.protocol.states import ProcessStatus, ServerState
from mqinfer.protocol.types import Outcome
from tests.fuzz.tensors import ENCODINGS, NEXT, SIZES, head

__all__ = [
    "cancellations",
    "controls",
    "envelopes",
    "files",
    "jpegs",
    "messages",
    "oips",
    "onnxes",
    "packets",
    "pixels",
    "pngs",
    "server_states",
    "tensors",
    "topics",
    "videos",
]

_FOLDERS = (Path(__file__).parents[1] / "golden", Path(__file__).parent / "corpus")
_REPLY_TO = "mqinfer/v1/results/seg/car/1"
_TOPICS = (Path(__file__).parent / "corpus" / "topics.txt").read_text().split()
_RAMP = (np.indices((12, 20)).sum(0) * 8).astype(np.uint8)


def files(pattern: str) -> list[bytes]:
    """Read the files of a pattern among the golden ones and those that lie here."""
    return [path.read_bytes() for folder in _FOLDERS for path in sorted(folder.glob(pattern))]


def envelopes() -> list[bytes]:
    """All of the binary form."""
    return files("*.mqi")


def oips() -> Iterator[bytes]:
    """JSON requests and replies, with and without a tail."""
    for text in files("re*.json"):
        yield b"\0\0" + text
    for whole in files("*.oip"):
        length = whole.rindex(b"}") + 1 if b"}\0" not in whole else whole.index(b"}\0") + 1
        yield (length + 1).to_bytes(2, "little") + whole


def server_states() -> list[bytes]:
    """One of each status."""
    return [ServerState("s", status, 7).to_json() for status in ProcessStatus]


def cancellations() -> list[bytes]:
    """One of each reason."""
    return [Cancellation(("a", "b"), reason).to_json() for reason in (Outcome.CANCELLED, Outcome.SUPERSEDED)]


def topics() -> Iterator[bytes]:
    """One of each kind, and the paths of control alone."""
    for topic in _TOPICS:
        yield f"mqinfer/v1/{topic}".encode()
        yield topic.partition("car/")[2].encode()


def controls() -> Iterator[bytes]:
    """Orders, and replies."""
    bodies = (
        b"",
        b'{"ready":true}',
        b'{"parameters":{"response_topic":"x"}}',
        b'{"error":"no","code":"rejected"}',
        b"[{}]",
    )
    for topic in _TOPICS[10:]:
        for body in bodies:
            yield f"mqinfer/v1/{topic}".encode() + b"\0" + body


def messages() -> Iterator[bytes]:
    """Requests as a worker gets them."""
    for topic in _TOPICS[:3]:
        place = f"mqinfer/v1/{topic}\0".encode()
        for payload in files("request*.mqi"):
            yield place + b"\0" + _REPLY_TO.encode() + b"\0\0" + payload
        for payload in files("request*.json"):
            yield place + b"application/json\0" + _REPLY_TO.encode() + b"\0\0" + payload
        for payload in files("request*.oip"):
            yield place + b"application/json\0" + _REPLY_TO.encode() + b"\x00123\0" + payload


def packets() -> Iterator[bytes]:
    """Streams of a few packets, cut in different ways, in both versions of MQTT."""
    small = [payload for payload in files("request*.mqi") if len(payload) < 500]
    for version5 in (True, False):
        for payload in small:
            sent = Message(
                "mqinfer/v1/models/seg/infer/car",
                payload,
                content_type="application/vnd.mqinfer.v1",
                response_topic=_REPLY_TO,
                correlation_data=b"c",
                expiry_s=3,
                user_properties=(("a", "b"), ("a", "c")),
            )
            packet = bytes(encode_head(sent, version5=version5).data) + payload
            for step in (30, 255):
                yield bytes((version5, step)) + encode_puback(3) + packet + b"\xd0\0"
                yield bytes((version5 | 6, step)) + packet + packet[:99]


def tensors(encoding: str) -> Iterator[bytes]:
    """One of each datatype that a codec takes, head before it."""
    arrays: list[Array] = [_RAMP, _RAMP > 100, np.zeros((3, 0), np.uint8), np.repeat(np.arange(5, dtype=np.uint8), 300)]
    if encoding != "mask":
        arrays += [_RAMP.astype(dtype) for dtype in ("<f2", "<f4", "<f8", "<i8", "<u2")]
        arrays.append(np.array([b"one", b"", b"three" * 9], np.object_))
    for array in arrays:
        tensor = encode_tensor("x", array, encoding)
        yield head(tensor.datatype, array.shape, int(tensor.parameters.get(RAW_SIZE, 0))) + bytes(tensor.data)
    yield head(Datatype.BYTES, (65535, 60))


def videos() -> Iterator[bytes]:
    """A chain of each size that can be encoded, and one that goes on with another size."""
    made = []
    for number, (height, width) in enumerate(SIZES[:4]):
        encoder = H264Encoder(height, width, 30)
        scene = np.dstack([np.resize(_RAMP, (height, width))] * 3)
        pictures = [encoder.encode(np.roll(scene, count, 1), key=count == 0) for count in range(3)]
        made.append([bytes((number,)) + picture for picture in pictures])
        yield NEXT.join(made[-1])
    yield NEXT.join((made[0][0], made[1][1], made[0][1]))


def pixels() -> Iterator[bytes]:
    """One picture for each encoding of raw samples."""
    for number in range(len(ENCODINGS)):
        for array in (_RAMP, np.dstack([_RAMP] * 3), _RAMP.astype("<u2"), np.dstack([_RAMP.astype("<u2")] * 3)):
            kind = Datatype.UINT8 if array.itemsize == 1 else Datatype.UINT16
            data = head(kind, array.shape, number)
            yield data[:1] + bytes((1 + array.ndim,)) + data[2:] + array.tobytes()


def jpegs() -> Iterator[bytes]:
    """Small pictures: grey and colour, baseline and progressive, with restarts."""
    import cv2

    colour = np.stack([_RAMP, _RAMP.T.reshape(12, 20), 255 - _RAMP], axis=2)
    for options in ([], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1], [cv2.IMWRITE_JPEG_RST_INTERVAL, 1]):
        for pixels in (_RAMP, colour):
            yield bytes(cv2.imencode(".jpg", pixels, options)[1])


def pngs() -> Iterator[bytes]:
    """Small pictures: grey, colour, palette and 16 bits."""
    import cv2

    colour = np.stack([_RAMP, _RAMP, 255 - _RAMP], axis=2)
    for pixels in (_RAMP, colour, _RAMP.astype(np.uint16) * 200, colour.astype(np.uint16) * 200):
        yield bytes(cv2.imencode(".png", pixels)[1])
    yield bytes(cv2.imencode(".png", _RAMP & 128, [cv2.IMWRITE_PNG_BILEVEL, 1])[1])


def onnxes() -> Iterator[bytes]:
    """Wire form with external data on every way that leads to it."""
    entry = _field(1, b"location") + _field(2, b"w.bin")
    tensor = _field(13, entry)
    attribute = _field(5, tensor) + _field(10, tensor) + _field(22, _field(1, tensor))
    graph = (
        _field(1, _field(5, attribute + _field(6, _field(5, tensor))))
        + _field(5, tensor)
        + _field(15, _field(2, tensor))
    )
    yield _field(7, graph) + b"\x08\x0a"
    yield _field(20, _field(1, graph)) + _field(25, _field(7, _field(5, attribute)) + _field(11, attribute))


def _field(number: int, content: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    return bytes((value & 127 | 128, value >> 7)) if value > 127 else bytes((value,))
