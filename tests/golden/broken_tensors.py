"""Messages whose tensors break a rule: their description, their size, or what their codec says."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from typing import Any

import lz4.block
import msgspec
import numpy as np

from mqinfer.codecs import encode_tensor

Found = tuple[str, str, bytes, bytes]
"""Name, error code, packed header, and what follows the header with its padding."""
_HUGE = b"\x1f" + b"a" + b"\x01\x00" + b"\xff" * 400 + b"\x00" + b"\x50aaaaa"
"""An LZ4 block of 412 bytes that makes 100 kB."""


def frame(header: bytes) -> bytes:
    """Return a packed header with magic, length and padding."""
    return b"MQI1" + struct.pack("<I", len(header)) + header + bytes(-(8 + len(header)) % 64)


def described(name: object, datatype: object, shape: object, size: object, **parameters: Any) -> dict[str, Any]:
    """Return the description of a tensor, right or wrong; `...` leaves a field out."""
    given = {"binary_data_size": size} | parameters
    fields = {"name": name, "datatype": datatype, "shape": shape}
    return {key: value for key, value in fields.items() if value is not ...} | {
        "parameters": {key: value for key, value in given.items() if value is not ...}
    }


def broken_tensors() -> Iterator[Found]:
    """Yield all of them."""
    for make in (_descriptions, _shapes, _raw, _lz4, _masks, _jpegs, _pngs):
        yield from make()


def _found(name: str, code: str, tensors: list[dict[str, Any]], *pieces: bytes) -> Found:
    header = msgspec.msgpack.encode({"id": "r", "model_name": "m", "inputs": tensors})
    return name, code, header, b"".join(piece + bytes(-len(piece) % 64) for piece in pieces)


def _one(name: str, code: str, datatype: str, shape: list[int], data: bytes, **parameters: Any) -> Found:
    return _found(name, code, [described("x", datatype, shape, len(data), **parameters)], data)


def _descriptions() -> Iterator[Found]:
    envelope, tensor = "bad_envelope", "bad_tensor"
    yield _found("tensor without a name", envelope, [described(..., "UINT8", [0], 0)])
    yield _found("tensor's name is an integer", envelope, [described(1, "UINT8", [0], 0)])
    yield _found("tensor without a datatype", tensor, [described("x", ..., [0], 0)])
    yield _found("unknown datatype", tensor, [described("x", "FP8", [0], 0)])
    yield _found("datatype is an integer", tensor, [described("x", 3, [0], 0)])
    yield _found("tensor without a shape", tensor, [described("x", "UINT8", ..., 0)])
    yield _found("shape is nil", tensor, [described("x", "UINT8", None, 0)])
    yield _found("binary_data_size missing", envelope, [described("x", "UINT8", [0], ...)])
    yield _found("binary_data_size is negative", envelope, [described("x", "UINT8", [0], -1)])
    yield _found("binary_data_size is a float", envelope, [described("x", "UINT8", [0], 0.0)])
    yield _found("binary_data_size is a boolean", envelope, [described("x", "UINT8", [1], True)])
    yield _found("binary_data_size of 4 EiB", tensor, [described("x", "UINT8", [1], 1 << 62)])
    yield _found("encoding is an integer", envelope, [described("x", "UINT8", [0], 0, encoding=1)])
    yield _found("tensor's parameter is an array", envelope, [described("x", "UINT8", [0], 0, q=[])])
    yield _found("two inputs of one name", "bad_tensor", [described("x", "UINT8", [0], 0)] * 2)
    many = [described(f"x{number}", "UINT8", [0], 0) for number in range(65)]
    yield _found("65 inputs", "limit_exceeded", many)
    no_parameters = {key: value for key, value in described("x", "UINT8", [0], 0).items() if key != "parameters"}
    yield _found("tensor without parameters", envelope, [no_parameters])


def _shapes() -> Iterator[Found]:
    wrong: dict[str, object] = {
        "negative side": [-1],
        "side is a string": ["1"],
        "side is a float": [1.0],
        "side is a boolean": [True],
        "side of 2**63": [1 << 63],
    }
    for name, shape in wrong.items():
        yield _found(name, "bad_tensor", [described("x", "UINT8", shape, 1)], b"\0")
    large: dict[str, tuple[str, list[int]]] = {
        "17 axes": ("UINT8", [1] * 17),
        "product beyond 2**64": ("UINT8", [1 << 40, 1 << 40]),
        "product that is 0 modulo 2**64": ("UINT8", [1 << 32, 1 << 32]),
        "side of 0 and a huge one": ("UINT8", [1 << 62, 0]),
        "one byte above tensor_bytes": ("UINT8", [(256 << 20) + 1]),
        "FP64 above tensor_bytes": ("FP64", [(32 << 20) + 1]),
        "BYTES with too many strings": ("BYTES", [(256 << 20) // 48 + 1]),
    }
    for name, (datatype, shape) in large.items():
        yield _found(name, "limit_exceeded", [described("x", datatype, shape, 1)], b"\0")


def _raw() -> Iterator[Found]:
    bad = "bad_tensor"
    yield _one("too few raw bytes", bad, "FP32", [3], bytes(11))
    yield _one("too many raw bytes", bad, "FP32", [3], bytes(13))
    yield _one("raw bytes for an empty shape", bad, "FP32", [0], b"\0")
    yield _one("a BOOL of 2", bad, "BOOL", [3], b"\0\1\2")
    yield _one("BYTES whose length goes beyond the end", bad, "BYTES", [1], b"\5\0\0\0ab")
    yield _one("BYTES whose length claims 4 GiB", bad, "BYTES", [1], b"\xff\xff\xff\xffab")
    yield _one("BYTES with half a length", bad, "BYTES", [2], b"\1\0\0\0a\1\0")
    yield _one("BYTES with bytes left over", bad, "BYTES", [1], b"\1\0\0\0ab")
    yield _one("BYTES with fewer strings than its shape", bad, "BYTES", [1_000_000], b"\0\0\0\0")
    yield _one("unknown encoding", "bad_encoding", "UINT8", [1], b"\0", encoding="zstd")
    yield _one("encoding with a level", "bad_encoding", "UINT8", [1], b"\0", encoding="lz4:9")


def _lz4() -> Iterator[Found]:
    bad, lz4 = "bad_encoding", {"encoding": "lz4"}
    block = _block(bytes(range(200)) * 5)
    yield _one("LZ4 that makes more than its shape", bad, "UINT8", [999], block, **lz4)
    yield _one("LZ4 that makes less than its shape", bad, "UINT8", [1001], block, **lz4)
    yield _one("LZ4 cut off", bad, "UINT8", [1000], block[:-1], **lz4)
    yield _one("LZ4 with a byte behind it", bad, "UINT8", [1000], block + b"\0", **lz4)
    yield _one("no LZ4 for a shape of 256 MiB", bad, "UINT8", [256 << 20], b"", **lz4)
    yield _one("LZ4 that can't hold its 256 MiB", bad, "UINT8", [1 << 28], block, **lz4)
    yield _one("LZ4 for an empty shape", bad, "UINT8", [0], b"\0", **lz4)
    yield _one("LZ4 bomb for a small shape", bad, "UINT8", [16], _HUGE, **lz4)
    yield _one("LZ4 whose match reaches before its output", bad, "UINT8", [64], b"\x1fa\xff\x00" + block[4:], **lz4)
    yield _one("LZ4 whose literals go beyond its end", bad, "UINT8", [300], b"\xf0\xff\xffabc", **lz4)
    yield _one("LZ4 that ends within a length", bad, "UINT8", [1000], b"\xf0" + b"\xff" * 20, **lz4)
    yield _one("LZ4 that ends within a distance", bad, "UINT8", [64], b"\x1fa\x01", **lz4)
    yield _one("shuffled LZ4 of half an element", bad, "FP32", [250], block[:-9], encoding="shuffle-lz4")
    yield _one("LZ4 of a BOOL of 2", "bad_tensor", "BOOL", [3], _block(b"\0\1\2"), **lz4)
    yield _one("LZ4 of BYTES without raw_size", bad, "BYTES", [1], _block(b"\1\0\0\0a"), **lz4)
    negative = {"raw_size": -1, **lz4}
    yield _one("LZ4 of BYTES with a negative raw_size", bad, "BYTES", [1], _block(b"\1\0\0\0a"), **negative)
    text = {"raw_size": "5", **lz4}
    yield _one("LZ4 of BYTES whose raw_size is a string", bad, "BYTES", [1], _block(b"\1\0\0\0a"), **text)
    huge = {"raw_size": 1 << 40, **lz4}
    yield _one("LZ4 of BYTES with a raw_size of 1 TiB", "limit_exceeded", "BYTES", [1], _block(b"\1\0\0\0a"), **huge)
    other = {"raw_size": 6, **lz4}
    yield _one("LZ4 of BYTES with another raw_size", bad, "BYTES", [1], _block(b"\1\0\0\0a"), **other)
    right = {"raw_size": 5, **lz4}
    yield _one("LZ4 of BYTES whose lengths are wrong", "bad_tensor", "BYTES", [2], _block(b"\1\0\0\0a"), **right)


def _masks() -> Iterator[Found]:
    def mask(name: str, shape: list[int], head: tuple[int, int], content: bytes, datatype: str = "UINT8") -> Found:
        data = struct.pack("<II", *head) + _block(content)
        return _one(name, "bad_encoding", datatype, shape, data, encoding="mask")

    def runs(*lengths: int) -> bytes:
        return bytes(len(lengths)) + bytes(n & 255 for n in lengths) + bytes(n >> 8 for n in lengths)

    yield mask("mask whose runs are too long", [100], (0, 2), runs(60, 41))
    yield mask("mask whose runs are too short", [100], (0, 2), runs(60, 39))
    yield mask("mask with more runs than it may have", [100], (0, 13), runs(*[7] * 12, 16))
    yield mask("mask that claims 4 billion runs", [100], (0, 0xFFFFFFFF), runs(100))
    yield mask("mask of 256 MiB of runs in a few bytes", [256 << 20], (0, 1 << 25), runs(1))
    yield mask("mask that claims 65535 runs of 65535 pixels", [1 << 20], (0, 65535), runs(65535))
    yield mask("mask with neither runs nor bits", [100], (0, 0), runs(100))
    yield mask("mask with runs and bits", [100], (1, 1), bytes(13))
    yield mask("mask of 3 bits a pixel", [8], (3, 0), bytes(3))
    yield mask("mask of 16 bits a pixel", [8], (16, 0), bytes(16))
    yield mask("mask with too few packed pixels", [100], (1, 0), bytes(12))
    yield mask("mask with too many packed pixels", [100], (1, 0), bytes(14))
    yield mask("mask for an empty shape", [0], (1, 0), b"\0")
    yield mask("mask of UINT16", [8], (8, 0), bytes(8), "UINT16")
    yield mask("mask of a BOOL of 2", [4], (2, 0), b"\x02", "BOOL")
    yield _one("mask without a head", "bad_encoding", "UINT8", [8], b"\1\0\0\0", encoding="mask")
    yield _one("mask of no bytes", "bad_encoding", "UINT8", [8], b"", encoding="mask")
    too_many = struct.pack("<II", 1, 0) + b"\x00"
    yield _one("mask of 100 GB", "limit_exceeded", "UINT8", [100_000, 1_000_000], too_many, encoding="mask")


def _jpegs() -> Iterator[Found]:
    picture = np.full((16, 16), 90, np.uint8)
    jpeg = bytes(encode_tensor("x", picture, "jpeg").data)
    frame_at = jpeg.index(b"\xff\xc0")

    def one(name: str, shape: list[int], data: bytes, code: str = "bad_encoding", datatype: str = "UINT8") -> Found:
        return _one(name, code, datatype, shape, data, encoding="jpeg")

    def framed(height: int, width: int, bits: int = 8, channels: int = 1, marker: int = 0xC0) -> bytes:
        head = struct.pack(">BHHB", bits, height, width, channels)
        return (
            jpeg[: frame_at + 1] + bytes((marker,)) + jpeg[frame_at + 2 : frame_at + 4] + head + jpeg[frame_at + 10 :]
        )

    yield one("JPEG of another size", [16, 17], jpeg)
    yield one("JPEG declared in colour", [16, 16, 3], jpeg)
    yield one("JPEG declared as UINT16", [16, 16], jpeg, datatype="UINT16")
    yield one("JPEG of 12 bits", [16, 16], framed(16, 16, bits=12))
    yield one("JPEG of four colours", [16, 16, 4], framed(16, 16, channels=4))
    yield one("JPEG that is lossless", [16, 16], framed(16, 16, marker=0xC3))
    yield one("JPEG with arithmetic coding", [16, 16], framed(16, 16, marker=0xC9))
    yield one("JPEG of no height", [0, 16], framed(0, 16))
    yield one("JPEG of too many pixels for its bytes", [8000, 8000], framed(8000, 8000))
    yield one("JPEG above image_pixels", [8193, 8193], framed(8193, 8193), "limit_exceeded")
    yield one("JPEG above tensor_bytes", [65500, 65500], framed(65500, 65500), "limit_exceeded")
    yield one("JPEG without its end", [16, 16], jpeg[:-2])
    yield one("JPEG cut off within its header", [16, 16], jpeg[: frame_at + 6])
    scans = framed(16, 16, marker=0xC2)[:-2] + b"\xff\xda\x00\x08" * 40 + b"\xff\xd9"
    yield one("JPEG of 41 scans", [16, 16], scans)
    yield one("PNG declared as JPEG", [16, 16], bytes(encode_tensor("x", picture, "png").data))
    yield one("neither JPEG nor PNG", [16, 16], b"GIF89a" + bytes(20))


def _pngs() -> Iterator[Found]:
    def png(width: int, height: int, bits: int = 8, colour: int = 0, *, before: bytes = b"", end: bytes = b"") -> bytes:
        header = struct.pack(">IIBBBBB", width, height, bits, colour, 0, 0, 0)
        pixels = _chunk(b"IDAT", zlib.compress(bytes(17 * 16)))
        return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", header) + before + pixels + (end or _chunk(b"IEND", b""))

    def one(name: str, shape: list[int], data: bytes, code: str = "bad_encoding", datatype: str = "UINT8") -> Found:
        return _one(name, code, datatype, shape, data, encoding="png")

    plain = png(16, 16)
    yield one("PNG of another size", [16, 15], plain)
    yield one("PNG declared as UINT16", [16, 16], plain, datatype="UINT16")
    yield one("PNG of 16 bits declared as UINT8", [16, 16], png(16, 16, 16))
    yield one("PNG with alpha", [16, 16, 4], png(16, 16, colour=6))
    yield one("PNG that is grey with alpha", [16, 16, 2], png(16, 16, colour=4))
    yield one("PNG of colour type 5", [16, 16], png(16, 16, colour=5))
    yield one("PNG of 3 bits", [16, 16], png(16, 16, 3))
    yield one("PNG of no width", [16, 0], png(0, 16))
    yield one("PNG of 2**31 columns", [1, 1], png(1 << 31, 1))
    yield one("PNG of too many pixels for its bytes", [8000, 8000], png(8000, 8000))
    yield one("PNG above image_pixels", [8193, 8193], png(8193, 8193), "limit_exceeded")
    yield one("PNG that is animated", [16, 16], png(16, 16, before=_chunk(b"acTL", struct.pack(">II", 2, 0))))
    yield one("PNG with a wrong checksum", [16, 16], plain[:-1] + b"\0")
    yield one("PNG without its end", [16, 16], plain[:-12])
    yield one("PNG cut off within its pixels", [16, 16], plain[:-20])
    yield one("PNG with a chunk that claims 4 GiB", [16, 16], png(16, 16, before=b"\xff\xff\xff\xfftEXt"))
    yield one("PNG cut off within its header", [16, 16], plain[:20])
    yield one("JPEG declared as PNG", [16, 16], bytes(encode_tensor("x", np.zeros((16, 16), np.uint8), "jpeg").data))


def _block(data: bytes) -> bytes:
    packed: bytes = lz4.block.compress(data, store_size=False)
    return packed


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
