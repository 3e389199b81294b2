"""Mutations that keep a message well-formed where bytes alone would not get beyond its first check.

Each takes bytes, a source of randomness and the fuzzer's own mutation of bytes, and gives bytes. What is not of the
expected form is left to the fuzzer's own mutation.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

import lz4.block
import msgpack

from mqinfer.protocol.envelope import ALIGNMENT, MAGIC

__all__ = ["Mutate", "Mutator", "in_envelope", "in_json", "in_lz4", "in_packets", "in_png", "in_tail_json", "in_units"]

Mutate = Callable[[bytes], bytes]
Mutator = Callable[[bytes, Random, Mutate], bytes]

_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2, 64, 255, 65535, 2**31, 2**32 - 1, 2**63 - 1, 2**63, -(2**63), 10**18),
    *(0.0, -0.0, 1e308, float("inf"), float("nan"), "", "x", "ok", "error", "rejected", "\0", "é", "\ud800"),
    *("a/b", "+", "#", "..", "x" * 300, "raw", "lz4", "shuffle-lz4", "mask", "jpeg", "png", "FP16", "FP32", "BYTES"),
    *("BOOL", "UINT8", "INT64", [], {}, [[]], [0], [2, 3], [1 << 31, 1 << 31], [0, 1 << 62], [1] * 17, ["x"], [{}]),
)
_FIELDS = """
id model_name model_version parameters inputs outputs outcome error timings load worker timeout priority attempt
sequence capture_time_ns source frame_id response_topic name datatype shape data code message encoding binary_data_size
binary_data raw_size image image_encoding classes versions platform status boot counters classification ids server ready
"""
_KEYS = tuple(_FIELDS.split())


def in_envelope(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change a field of the header, the header's bytes, or the tensors' bytes; lengths and padding fit again."""
    parts = _split(data)
    if parts is None or random.random() < 0.2:
        return mutate(data)
    header, tail = parts
    choice = random.random()
    if choice < 0.3:
        return join(mutate(header), tail)
    if choice < 0.5:
        return join(header, _padded(mutate(tail)))
    try:
        fields = msgpack.unpackb(header, strict_map_key=False)
        return join(msgpack.packb(_changed(fields, random, mutate), unicode_errors="surrogatepass"), tail)
    except (ValueError, TypeError, OverflowError, RecursionError):
        return mutate(data)


def in_json(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change a field of a JSON object, or the text."""
    if random.random() < 0.25:
        return mutate(data)
    try:
        return json.dumps(_changed(json.loads(data), random, mutate), separators=(",", ":")).encode()
    except (ValueError, TypeError, RecursionError):
        return mutate(data)


def in_tail_json(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """The same behind two bytes that say how long the JSON is, with whatever follows it."""
    stated, body = int.from_bytes(data[:2], "little"), data[2:]
    length = stated - 1 if 0 < stated < 65535 else len(body)
    text, tail = body[:length], body[length:]
    if random.random() < 0.3:
        tail = mutate(tail)
    else:
        text = in_json(text, random, mutate)
    said = len(text) + 1 if tail or random.random() < 0.3 else 0
    if random.random() < 0.1:
        said = random.randrange(65536)
    return min(said, 65535).to_bytes(2, "little") + text + tail


def in_png(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change what a chunk holds, drop one or write one twice; checksums fit again."""
    chunks = list(_chunks(data))
    if not chunks or random.random() < 0.2:
        return mutate(data)
    at = random.randrange(len(chunks))
    kind, content = chunks[at]
    match random.randrange(5):
        case 0:
            del chunks[at]
        case 1:
            chunks.insert(random.randrange(len(chunks)), (kind, content))
        case 2 if kind == b"IDAT":
            chunks[at] = (kind, zlib.compress(mutate(_inflated(content)), 1))
        case 3:
            name = random.choice(
                (b"PLTE", b"tRNS", b"iCCP", b"zTXt", b"iTXt", b"eXIf", b"acTL", b"fcTL", b"fdAT", b"gAMA")
            )
            chunks.insert(1, (name, mutate(content)))
        case _:
            chunks[at] = (kind, mutate(content))
    return data[:8] + b"".join(_chunk(*each) for each in chunks)


def in_lz4(start: int) -> Mutator:
    """Change what an LZ4 block at `start` holds, so that another valid block comes of it; or any of the bytes."""

    def change(data: bytes, random: Random, mutate: Mutate) -> bytes:
        if random.random() < 0.6:
            return mutate(data)
        try:
            content = lz4.block.decompress(data[start:], uncompressed_size=1 << 14)
        except lz4.block.LZ4BlockError:
            return mutate(data)
        block: bytes = lz4.block.compress(mutate(content), store_size=False)
        return data[:start] + block

    return change


def in_units(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change a unit of a byte stream of video, drop one, move one, or write one many times."""
    first, *units = data.split(b"\0\0\1")
    if not units or random.random() < 0.2:
        return mutate(data)
    at = random.randrange(len(units))
    match random.randrange(5):
        case 0:
            del units[at]
        case 1:
            units.insert(random.randrange(len(units)), units.pop(at))
        case 2:
            units[at:at] = [random.choice((b"", b"\x0c", b"\x09\x10", units[at][:8]))] * random.choice(
                (1, 30, 1100, 9000)
            )
        case 3:
            units.insert(random.randrange(len(units)), units[at])
        case _:
            units[at] = mutate(units[at]).replace(b"\0\0\1", b"\0\1")
    return b"\0\0\1".join((first, *units))


def in_packets(data: bytes, random: Random, mutate: Mutate) -> bytes:
    """Change an envelope within a stream of packets, where there is one, or the stream."""
    at = data.find(MAGIC)
    if at < 0 or random.random() < 0.6:
        return mutate(data)
    return data[:at] + in_envelope(data[at:], random, mutate)[: len(data) - at].ljust(len(data) - at, b"\0")


def join(header: bytes, tail: bytes) -> bytes:
    """Make an envelope of a packed header and padded tensors."""
    return _padded(MAGIC + len(header).to_bytes(4, "little") + header) + tail


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % ALIGNMENT)


def _split(data: bytes) -> tuple[bytes, bytes] | None:
    end = 8 + int.from_bytes(data[4:8], "little")
    return (data[8:end], data[end + -end % ALIGNMENT :]) if data[:4] == MAGIC and end <= len(data) else None


def _changed(tree: Any, random: Random, mutate: Mutate) -> Any:
    """Change something somewhere in nested maps and lists."""
    node = tree
    while isinstance(node, dict | list) and node:
        key: Any = random.choice(list(node)) if isinstance(node, dict) else random.randrange(len(node))
        child = node[key]
        if isinstance(child, dict | list) and child and random.random() < 0.75:
            node = child
            continue
        _change(node, key, random, mutate)
        break
    return tree


def _change(node: Any, key: Any, random: Random, mutate: Mutate) -> None:
    match random.randrange(6):
        case 0:
            del node[key]
        case 1 if isinstance(node, dict):
            node[random.choice(_KEYS)] = random.choice(_VALUES)
        case 1:
            node.insert(key, random.choice(node))
        case 2 if isinstance(node[key], str):
            node[key] = mutate(node[key].encode("utf-8", "surrogatepass")).decode("utf-8", "replace")
        case 3 if isinstance(node[key], int):
            node[key] += random.choice((-64, -1, 1, 64))
        case 4:
            for _ in range(random.choice((1, 2, 30, 1100))):
                node[key] = [node[key]]
        case _:
            node[key] = random.choice(_VALUES)


def _chunks(data: bytes) -> list[tuple[bytes, bytes]]:
    found, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        found.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    return found


def _inflated(content: bytes) -> bytes:
    try:
        return zlib.decompressobj().decompress(content, 2048)
    except zlib.error:
        return content


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
