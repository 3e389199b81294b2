"""Crafted inputs that claim, or inflate to, far more than they are: each a typed error, little time, little memory.

The lists are made by rule, so that a bomb stands at every place where one fits. Memory is what the process's peak
(VmHWM, reset before each input) rises by, so that what OpenCV, LZ4 and zlib take counts too.
"""

from __future__ import annotations

import struct
import time
import zlib
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import Any

import cv2
import lz4.block
import msgpack
import numpy as np
import pytest

from mqinfer.broker.paho.packet_reader import PacketReader
from mqinfer.codecs import decode_tensor, encode_tensor, encoded_image
from mqinfer.protocol import envelope, oip_json
from mqinfer.protocol.card import card_from_json
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.header import RAW_SIZE
from mqinfer.protocol.states import WorkerState
from mqinfer.protocol.types import EncodedTensor

Bomb = tuple[str, Callable[[], object]]
_MOST_BYTES = 64 << 20
_MOST_SECONDS = 1.0
"""Of CPU time. The target is 50 ms, which nearly all keep by far; a bound for a loaded machine must be generous."""


def _request(header: bytes, tail: bytes = b"") -> Callable[[], object]:
    start = envelope.MAGIC + len(header).to_bytes(4, "little") + header
    payload = start + bytes(-len(start) % 64) + tail
    return lambda: envelope.decode_request(payload)


def msgpack_bombs() -> Iterator[Bomb]:
    """Claims of millions of entries and bytes at each place of a header, nesting, and floods of small things."""
    claims = {
        **{f"array of {size:x}": b"\xdd" + size.to_bytes(4) for size in (0x10000, 0x7FFFFFFF, 0xFFFFFFFF)},
        **{f"map of {size:x}": b"\xdf" + size.to_bytes(4) for size in (0x10000, 0x7FFFFFFF, 0xFFFFFFFF)},
        **{f"text of {size:x}": b"\xdb" + size.to_bytes(4) for size in (0x10000, 0x7FFFFFFF, 0xFFFFFFFF)},
        "bytes of ffffffff": b"\xc6\xff\xff\xff\xff",
        "extension of ffffffff": b"\xc9\xff\xff\xff\xff\x01",
        "10,000 empty maps": b"\xdc\x27\x10" + b"\x80" * 10_000,
        "60,000 empty texts": b"\xdc\xea\x60" + b"\xa0" * 60_000,
        **{f"arrays {depth} deep": b"\x91" * depth + b"\x90" for depth in (600, 1000, 1023, 5000)},
        **{f"maps {depth} deep": b"\x81\xa1x" * depth + b"\x80" for depth in (600, 1000, 1023, 5000)},
    }
    for (what, claim), place in product(claims.items(), ("id", "inputs", "parameters", "datatype", "shape")):
        key = msgpack.packb(place) + claim
        tensor = b"\x81\xa6inputs\x91\x82\xa4name\xa1x" + key
        yield f"{what} as {place}", _request(tensor if place in {"datatype", "shape"} else b"\x81" + key)
    yield "header of 4 GiB", lambda: envelope.decode_request(envelope.MAGIC + b"\xff" * 120)
    yield "8 MB of empty maps", _request(b"\xdd\x00\x7a\x12\x00" + b"\x80" * 8_000_000)


def json_bombs() -> Iterator[Bomb]:
    """Depth, digits and length, for each reader of JSON."""
    texts = {
        "arrays": b"[" * 500_000,
        "objects": b'{"a":' * 100_000,
        "digits": b'{"id":' + b"9" * 1_000_000 + b"}",
        "a shape of a googol": b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1' + b"0" * 100 + b"]}]}",
        "16 axes of 2**62": b'{"inputs":[{"name":"x","datatype":"FP32","shape":['
        + b"4611686018427387904," * 15
        + b"2]}]}",
        "5 million strings of none": b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[5000000],"data":[]}]}',
        "9 MB of arrays": b"[" + b"[]," * 3_000_000 + b"[]]",
        "a text of 9 MB": b'{"id":"' + b"x" * 9_000_000 + b'"}',
    }
    readers: dict[str, Callable[[bytes], object]] = {
        "request": lambda text: oip_json.decode_request(text, "m"),
        "card": card_from_json,
        "worker state": WorkerState.from_json,
    }
    for (what, text), (name, read) in product(texts.items(), readers.items()):
        yield f"{what} to a {name}", lambda read=read, text=text: read(text)  # type: ignore[misc]  # bound now


def lz4_bombs() -> Iterator[Bomb]:
    """Blocks that make more, or less, than is declared, and declarations that no block of that length can keep."""
    blocks = {
        "2 GiB claimed in 14 bytes": b"\x1f\0\1\0" + b"\xff" * 9 + b"\0",
        "64 MiB of zeros": lz4.block.compress(bytes(64 << 20), store_size=False),
        "1 MiB of zeros, cut": lz4.block.compress(bytes(1 << 20), store_size=False)[:-7],
        "an offset before the beginning": b"\x10a\xff\xff",
        "ones alone": b"\xff" * 5000,
    }
    shapes = ((1,), (4, 4), (1 << 20,), (32 << 20,), (256 << 20,), (1 << 40,), (0, 1 << 62))
    for (what, block), shape, encoding in product(blocks.items(), shapes, ("lz4", "shuffle-lz4", "mask")):
        if encoding == "mask":
            block = b"\x08\0\0\0\0" + block  # noqa: PLW2901  8 bits a pixel, no runs
        yield f"{what} for {shape} by {encoding}", _tensor(Datatype.UINT8, shape, encoding, block)
    for size in (-1, 0, 1 << 20, 256 << 20, 1 << 62):
        yield (
            f"raw_size {size}",
            _tensor(Datatype.BYTES, (1000,), "lz4", blocks["64 MiB of zeros"][:9], {RAW_SIZE: size}),
        )
    yield "5 million strings of none", _tensor(Datatype.BYTES, (5_000_000,), "raw", b"")
    for runs in (1, 1 << 20, (1 << 32) - 1):
        head = struct.pack("<BI", 0, runs)
        yield (
            f"a mask of {runs} runs",
            _tensor(Datatype.UINT8, (32 << 20,), "mask", head + blocks["2 GiB claimed in 14 bytes"]),
        )


def _tensor(
    datatype: Datatype, shape: tuple[int, ...], encoding: str, data: bytes, parameters: dict[str, Any] | None = None
) -> Callable[[], object]:
    return lambda: decode_tensor(EncodedTensor("x", datatype, shape, encoding, data, parameters or {}))


def picture_bombs() -> Iterator[Bomb]:
    """JPEGs and PNGs of a few bytes and many pixels; frames hidden from whoever looks; scans without end."""
    grey = np.zeros((16, 16), np.uint8)
    sizes = ((4000, 4000), (8000, 8000), (30_000, 30_000), (65_535, 65_535), (1, 65_535), (65_535, 1))
    for options, colour in product(([], [cv2.IMWRITE_JPEG_PROGRESSIVE, 1]), (False, True)):
        plain = bytes(cv2.imencode(".jpg", np.dstack([grey] * 3) if colour else grey, options)[1])
        kind = f"{'colour' if colour else 'grey'} {'progressive' if options else 'baseline'}"
        for size in sizes:
            large = _resized(plain, size)
            hidden = plain[:2] + b"\xff\0" + struct.pack(">H", len(large)) + large[2:] + plain[2:]
            yield f"{kind} of {size}", _picture(large)
            yield f"{kind} of {size}, cut", _picture(large[:-2])
            yield f"{kind} of {size} behind FF 00", _picture(hidden)
        if options:
            scan = plain[plain.rindex(b"\xff\xda") : -2]
            yield f"{kind} of 5000 scans", _picture(plain[:-2] + scan * 5000 + b"\xff\xd9")
    for width, height, bits in product((4, 8000, 1 << 30), (4, 8000, 1 << 30), (8, 16)):
        pixels = zlib.compress(bytes(64 << 20 if width == height == 4 else 1000), 9)
        yield f"PNG of {width}x{height} of {bits} bits", _picture(_png(width, height, bits, pixels))


def video_bombs() -> Iterator[Bomb]:
    """Units without end before, within and behind a picture; pictures that claim more, or are several."""
    encoded = {side: encode_tensor("x", np.zeros((side, side, 3), np.uint8), "h264").data for side in (64, 2048)}
    small, large = (bytes(each) for each in encoded.values())
    begin = small.rindex(b"\0\0\1")
    kinds = {
        "empty": b"",
        "filler": b"\x0c",
        "delimiters": b"\x09\x10",
        "texts": b"\x06\x05\x01\0\x80",
        "parameter sets": small[small.index(b"\0\0\1") + 3 :][:20],
        "slices": small[begin + 3 :][:12],
        "undefined": b"\x1f\x80",
    }
    for (kind, unit), count in product(kinds.items(), (2000, 300_000)):
        units = (b"\0\0\1" + unit) * count
        yield f"{count} {kind} units before", _video(units + small)
        yield f"{count} {kind} units within", _video(small[:begin] + units + small[begin:])
        yield f"{count} {kind} units behind", _video(small + units)
    yield "of another size", _video(large)
    yield "declared larger", _video(small, 2048)
    yield "declared huge", _video(small, 1 << 20)
    yield "9 pictures in one", _video(large * 9, 2048)


def _video(data: bytes, side: int = 64) -> Callable[[], object]:
    return _tensor(Datatype.UINT8, (side, side, 3), "h264", data)


def _resized(jpeg: bytes, size: tuple[int, int]) -> bytes:
    at = max(jpeg.find(b"\xff\xc0"), jpeg.find(b"\xff\xc2"))
    return jpeg[: at + 5] + struct.pack(">HH", *size) + jpeg[at + 9 :]


def _png(width: int, height: int, bits: int, pixels: bytes) -> bytes:
    head = struct.pack(">IIBBBBB", width, height, bits, 0, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", pixels), (b"IEND", b""))
    made = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(made)


def _picture(data: bytes) -> Callable[[], object]:
    return lambda: decode_tensor(encoded_image("x", data))


def packet_bombs() -> Iterator[Bomb]:
    """MQTT packets whose lengths lie."""
    bodies = {
        "a topic that goes on": b"\xff\xff",
        "properties that go on": b"\0\1t\xff\xff\xff\x7f",
        "a length of five bytes": b"\0\1t\xff\xff\xff\xff\x7f",
        "a property that does not exist": b"\0\1t\2\x7f\0",
        "a text that goes on": b"\0\1t\3\x03\xff\xff",
        "half a pair": b"\0\1t\3\x26\0\0",
    }
    for what, body in bodies.items():
        yield what, lambda body=body: _read(bytes((0x30, len(body))) + body)  # type: ignore[misc]  # bound now
    yield "a packet's length of five bytes", lambda: _read(b"\x30\xff\xff\xff\xff\x7f")
    yield "QoS 3", lambda: _read(b"\x36\x05\0\1t\0\0")


def _read(stream: bytes) -> None:
    reader = PacketReader(version5=True)
    reader.space()[: len(stream)] = stream
    reader.advance(len(stream))
    list(reader.packets())


LISTS = (msgpack_bombs, json_bombs, lz4_bombs, picture_bombs, video_bombs, packet_bombs)


def test_there_are_enough() -> None:
    """At least 200, no two alike."""
    names = [f"{bombs.__name__}: {name}" for bombs in LISTS for name, _ in bombs()]
    assert len(names) == len(set(names)) >= 200


@pytest.mark.parametrize("bombs", LISTS, ids=lambda bombs: bombs.__name__)
def test_each_is_a_typed_error_and_takes_little(bombs: Callable[[], Iterator[Bomb]]) -> None:
    """None is read, none takes a second, none makes the process 64 MiB larger."""
    for name, explode in bombs():
        before, started = _reset_peak(), time.thread_time()
        with pytest.raises(MqinferError):
            explode()
        spent, more = time.thread_time() - started, _memory("VmHWM") - before
        assert spent < _MOST_SECONDS, f"{name}: {spent:.2f} s"
        assert more < _MOST_BYTES, f"{name}: {more >> 20} MiB"


def _reset_peak() -> int:
    """Forget the peak of memory so far, and say what is taken now (see proc(5), clear_refs)."""
    Path("/proc/self/clear_refs").write_text("5")
    return _memory("VmRSS")


def _memory(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) << 10
