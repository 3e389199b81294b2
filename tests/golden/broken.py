"""Messages that every receiver refuses, `broken.json`: each breaks one rule, and has the error code that it gives.

An entry has the `payload` in base64, or a recipe: a golden file (`base`), bytes to put into it (`edits`, `[offset,
hex]`) and its `length` after that (cut, or lengthened by zeros). `kind` is the message to decode it as; the error comes
there or where a tensor is decoded. With `lenient` a receiver may also take the message.
"""

from __future__ import annotations

import base64
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from tests.golden.broken_tensors import broken_tensors, described, frame

FOLDER = Path(__file__).parent
_pack = msgspec.msgpack.encode
_NAMES = b"\xa2id\xa1r\xaamodel_name\xa1m"
"""The two fields that a request must have, without the head of their map."""
_VERSION = _pack("model_version")
_PARAMETERS = _pack("parameters")
_SMALL = "request_small.mqi"
_DEEP = 5000
Recipe = tuple[str, list[tuple[int, str]], int]


@dataclass(frozen=True, slots=True)
class Broken:
    """A message that breaks a rule.

    Attributes:
        name: Names it in tests.
        code: What a receiver gives.
        payload: The message, or a recipe for it.
        kind: `request` or `reply`.
        lenient: Whether a receiver may take it too.
    """

    name: str
    code: str
    payload: bytes | Recipe
    kind: str = "request"
    lenient: bool = False

    def record(self) -> dict[str, Any]:
        """Return the entry of broken.json."""
        found: dict[str, Any] = {"name": self.name, "kind": self.kind, "code": self.code}
        if isinstance(self.payload, bytes):
            found["payload"] = base64.b64encode(self.payload).decode()
        else:
            found |= dict(zip(("base", "edits", "length"), self.payload, strict=True))
        return found | ({"lenient": True} if self.lenient else {})


def payload_of(record: dict[str, Any]) -> bytes:
    """Return the payload of an entry."""
    if "payload" in record:
        return base64.b64decode(record["payload"])
    payload = bytearray((FOLDER / record["base"]).read_bytes())
    for offset, patch in record["edits"]:
        data = bytes.fromhex(patch)
        payload[offset : offset + len(data)] = data
    length = record["length"]
    return bytes(payload[:length]) + bytes(max(0, length - len(payload)))


def broken_messages() -> list[Broken]:
    """Return all of them."""
    tensors = (Broken(name, code, frame(header) + rest) for name, code, header, rest in broken_tensors())
    return [*_frames(), *_malformed(), *_fields(), *_parameters(), *_replies(), *tensors]


def _frames() -> Iterator[Broken]:
    bad = "bad_envelope"
    yield Broken("empty payload", bad, b"")
    yield Broken("shorter than its head", bad, b"MQI1\0\0\0")
    yield Broken("another magic", bad, (_SMALL, [(0, "4d514932")], 256))
    yield Broken("JSON instead", bad, b'{"id":"r"}')
    yield Broken("header longer than the payload", bad, (_SMALL, [(4, "ffffffff")], 256))
    yield Broken("header too short for its map", bad, (_SMALL, [(4, "b0000000")], 256))
    yield Broken("header too long for its map", bad, (_SMALL, [(4, "b2000000")], 256))
    yield Broken("header above header_bytes", "limit_exceeded", (_SMALL, [(4, "01000100")], 1 << 17))
    yield Broken("payload above payload_bytes", "limit_exceeded", (_SMALL, [], (64 << 20) + 64))
    yield Broken("no padding behind the tensor", bad, (_SMALL, [], 204))
    yield Broken("trailing bytes", bad, (_SMALL, [], 320))
    yield Broken("tensor cut off", "bad_tensor", (_SMALL, [], 192))
    yield Broken("padding cut off before the tensors", "bad_tensor", (_SMALL, [], 188))


def _malformed() -> Iterator[Broken]:
    bad = "bad_envelope"
    contents = {
        "empty header": b"",
        "header is an array": b"\x92" + _NAMES,
        "header is nil": b"\xc0",
        "header is a string": _pack("header"),
        "invalid byte 0xc1": b"\x83" + _NAMES + b"\xa1q\xc1",
        "array that claims 4 billion entries": b"\x83" + _NAMES + b"\xa1q\xdd\xff\xff\xff\xff",
        "map that claims 4 billion entries": b"\x83" + _NAMES + b"\xa1q\xdf\xff\xff\xff\xff",
        "string that claims 4 GiB": b"\x83" + _NAMES + b"\xa1q\xdb\xff\xff\xff\xff",
        "binary that claims 4 GiB": b"\x83" + _NAMES + b"\xa1q\xc6\xff\xff\xff\xff",
        "extension that claims 4 GiB": b"\x83" + _NAMES + b"\xa1q\xc9\xff\xff\xff\xff\x01",
        "arrays that each claim 65535 entries": b"\x83" + _NAMES + b"\xa1q" + b"\xdc\xff\xff" * (_DEEP // 3),
        "arrays nested too deeply": b"\x83" + _NAMES + b"\xa1q" + b"\x91" * _DEEP + b"\x90",
        "maps nested too deeply": b"\x83" + _NAMES + b"\xa1q" + b"\x81\xa1k" * _DEEP + b"\x80",
        "key that is an integer": b"\x83" + _NAMES + b"\x01\x01",
        "key that is binary": b"\x83" + _NAMES + b"\xc4\x01q\x01",
        "string that is not UTF-8": b"\x83" + _NAMES + _VERSION + b"\xa1\xff",
        "half of a surrogate pair": b"\x83" + _NAMES + _VERSION + b"\xa3\xed\xa0\x80",
        "string above string_bytes": b"\x83" + _NAMES + _VERSION + _pack("x" * 4097),
        "key above string_bytes": b"\x83" + _NAMES + _pack("x" * 4097) + b"\x01",
    }
    yield from (Broken(name, bad, frame(header)) for name, header in contents.items())
    yield Broken("unknown key that is not UTF-8", bad, frame(b"\x83" + _NAMES + b"\xa1\xff\x01"), lenient=True)
    yield Broken("key that comes twice", bad, frame(b"\x83" + _NAMES + b"\xa2id\xa1s"), lenient=True)
    twice = b"\x83" + _NAMES + _PARAMETERS + b"\x82\xa1q\x01\xa1q\x02"
    yield Broken("parameter that comes twice", bad, frame(twice), lenient=True)


def _fields() -> Iterator[Broken]:
    wrong: dict[str, dict[str, Any]] = {
        "id missing": {"id": ...},
        "id is an integer": {"id": 1},
        "id is nil": {"id": None},
        "id is binary": {"id": b"r"},
        "model_name missing": {"model_name": ...},
        "model_name is an array": {"model_name": []},
        "model_version is an integer": {"model_version": 3},
        "inputs is a map": {"inputs": {}},
        "an input is an array": {"inputs": [["x"]]},
        "outputs is an integer": {"outputs": 1},
        "an output without a name": {"outputs": [{}]},
        "an output's encoding is an integer": {"outputs": [{"name": "y", "parameters": {"encoding": 1}}]},
        "an output's classification is negative": {"outputs": [{"name": "y", "parameters": {"classification": -1}}]},
        "parameters is an array": {"parameters": []},
    }
    for name, change in wrong.items():
        header = {"id": "r", "model_name": "m"} | change
        packed = _pack({key: value for key, value in header.items() if value is not ...})
        yield Broken(name, "bad_envelope", frame(packed))


def _parameters() -> Iterator[Broken]:
    wrong: dict[str, dict[str, Any]] = {
        "parameter is an array": {"q": []},
        "parameter is a map": {"q": {}},
        "parameter is nil": {"q": None},
        "parameter is binary": {"q": b"1"},
        "parameter is an extension type": {"q": msgspec.msgpack.Ext(1, b"1")},
        "timeout is a float": {"timeout": 1.0},
        "timeout is negative": {"timeout": -1},
        "timeout above 2**63 - 1": {"timeout": 1 << 63},
        "priority is a boolean": {"priority": True},
        "attempt is 0": {"attempt": 0},
        "response_topic is an integer": {"response_topic": 1},
        "source is nil": {"source": None},
        "sequence is negative": {"sequence": -1},
        "capture_time_ns is a string": {"capture_time_ns": "1"},
        "more than 128 parameters": {f"p{number}": number for number in range(129)},
    }
    for name, parameters in wrong.items():
        yield Broken(name, "bad_envelope", frame(b"\x83" + _NAMES + _PARAMETERS + _pack(parameters)))
    integer_key = b"\x83" + _NAMES + _PARAMETERS + b"\x81\x01\x01"
    yield Broken("parameter whose key is an integer", "bad_envelope", frame(integer_key))


def _replies() -> Iterator[Broken]:
    wrong: dict[str, dict[str, Any]] = {
        "unknown outcome": {"outcome": "fine"},
        "outcome is nil": {"outcome": None},
        "error without a code": {"error": {"message": "why"}},
        "error is a string": {"error": "why"},
        "stage is an integer": {"stage": 1},
        "worker is nil": {"worker": None},
        "model_hash is binary": {"model_hash": b"0f"},
        "timing is negative": {"timings": {"decode": -1}},
        "timing is nil": {"timings": {"decode": None}},
        "depth is a float": {"load": {"depth": 1.0}},
        "reply's attempt is 0": {"parameters": {"attempt": 0}},
    }
    for name, change in wrong.items():
        yield Broken(name, "bad_envelope", frame(_pack({"id": "r", "model_name": "m"} | change)), "reply")
    two = [described("y", "UINT8", [0], 0)] * 2
    yield Broken("two outputs of one name", "bad_tensor", frame(_pack({"id": "r", "outputs": two})), "reply")
    short = struct.pack("<4sI", b"MQI1", 8)
    yield Broken("reply that is only a head", "bad_envelope", short, "reply")
