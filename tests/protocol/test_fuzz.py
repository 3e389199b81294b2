from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from mqinfer.protocol import envelope, oip_json
from mqinfer.protocol.card import card_from_json
from mqinfer.protocol.control import Cancellation
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import InvalidRequest, LimitExceeded
from mqinfer.protocol.states import ServerState, WorkerState
from mqinfer.protocol.types import (
    Capture,
    EncodedTensor,
    InferRequest,
    InferResponse,
    RequestedOutput,
    Timings,
    WorkerLoad,
)
from tests import json_requests

Bound = Callable[[int], AbstractContextManager[None]]
TENSORS = (
    EncodedTensor("x", Datatype.FP32, (2, 3), "raw", bytes(24), {"more": 1}),
    EncodedTensor("y", Datatype.BYTES, (1,), "raw", b"\3\0\0\0abc"),
)
REQUEST = InferRequest(
    "r1",
    "m",
    TENSORS,
    "1",
    (RequestedOutput("y", "lz4", 5),),
    5_000_000,
    1,
    2,
    "a/b",
    Capture("cam", 1, 2, "f"),
    {"x": 1.5},
)
RESPONSE = InferResponse("r1", "m", "1", outputs=TENSORS, worker="w", timings=Timings(1, 2, 3), load=WorkerLoad(1, 2))
REQUEST_JSON, _ = json_requests.encode_request(REQUEST)
REQUEST_TAIL, TAIL_AT = json_requests.encode_request(REQUEST, binary=True)

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=5) | st.just("FP32"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=10,
)
KEYS = """
id model_name model_version parameters inputs outputs outcome error timings load
ids server worker timeout priority sequence name
datatype shape data code message encoding binary_data_size image classes versions platform status boot counters
classification
"""
keys = st.sampled_from(KEYS.split())
maps = st.recursive(
    st.dictionaries(keys, values, max_size=6),
    lambda inner: st.dictionaries(keys, inner | st.lists(inner, max_size=3), max_size=6),
    max_leaves=8,
)
json_decoders: list[Callable[[bytes], object]] = [
    lambda text: oip_json.decode_request(text, "m"),
    oip_json.decode_response,
    card_from_json,
    WorkerState.from_json,
    ServerState.from_json,
    Cancellation.from_json,
]


def mutated(draw: st.DrawFn, payload: bytes) -> bytes:
    """Flip some bytes, and often cut or repeat a part."""
    changed = bytearray(payload)
    for _ in range(draw(st.integers(1, 5))):
        changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    start, end = draw(st.integers(0, len(changed))), draw(st.integers(0, len(changed)))
    return bytes(draw(st.sampled_from([changed, changed[:end], changed[:start] + changed[end:]])))


mutated_payload = st.composite(mutated)


@given(mutated_payload(envelope.encode_request(REQUEST)) | mutated_payload(envelope.encode_response(RESPONSE)))
@settings(max_examples=500)
def test_mutated_envelopes_raise_nothing_but_typed_errors(payload: bytes) -> None:
    """Flipped, cut and doubled bytes."""
    for decode in (envelope.decode_request, envelope.decode_response):
        with suppress(InvalidRequest):
            decode(payload)


@given(maps, st.binary(max_size=130))
@settings(max_examples=300)
def test_any_header_raises_nothing_but_typed_errors(header: object, tail: bytes) -> None:
    """Well-formed MessagePack with our keys and any values."""
    with suppress(OverflowError):
        packed = msgpack.packb(header)
        payload = envelope.MAGIC + len(packed).to_bytes(4, "little") + packed + tail
        for decode in (envelope.decode_request, envelope.decode_response):
            with suppress(InvalidRequest):
                decode(payload)


@given(mutated_payload(REQUEST_JSON))
@settings(max_examples=300)
def test_mutated_json_raises_nothing_but_typed_errors(payload: bytes) -> None:
    """The same for JSON."""
    for decode in json_decoders:
        with suppress(InvalidRequest):
            decode(payload)


@given(mutated_payload(REQUEST_TAIL), st.sampled_from([TAIL_AT, None, 0, 5, 10**9, -1]))
@settings(max_examples=200)
def test_mutated_tails_raise_nothing_but_typed_errors(payload: bytes, header_length: int | None) -> None:
    """The same with a binary tail and any length."""
    with suppress(InvalidRequest):
        oip_json.decode_request(payload, "m", header_length=header_length)
    with suppress(InvalidRequest):
        oip_json.decode_response(payload, header_length)


@given(maps)
@example({"inputs": [{"name": "x", "datatype": "FP32", "shape": [10**4000] * 16}]})
@settings(max_examples=300)
def test_any_json_raises_nothing_but_typed_errors(body: object) -> None:
    """Well-formed JSON with our keys and any values."""
    text = json.dumps(body).encode()
    for decode in json_decoders:
        with suppress(InvalidRequest):
            decode(text)


def bomb(header: bytes) -> bytes:
    """Make a payload around a packed header."""
    start = envelope.MAGIC + len(header).to_bytes(4, "little") + header
    return start + bytes(-len(start) % 64)


BOMBS = {
    "8 MB of empty maps": bomb(b"\xdd\x00\x7a\x12\x00" + b"\x80" * 8_000_000),
    "an array that claims 4 billion": bomb(b"\x81\xa2id\xdd\xff\xff\xff\xff"),
    "a map that claims 4 billion": bomb(b"\x81\xa2id\xdf\xff\xff\xff\xff"),
    "a string that claims 4 GB": bomb(b"\x81\xa2id\xdb\xff\xff\xff\xff"),
    "binary that claims 4 GB": bomb(b"\x81\xa2id\xc6\xff\xff\xff\xff"),
    "a tensor that claims 100 GB": bomb(
        msgpack.packb(
            {
                "id": "r",
                "model_name": "m",
                "inputs": [
                    {
                        "name": "x",
                        "datatype": "UINT8",
                        "shape": [10**11],
                        "parameters": {"encoding": "lz4", "binary_data_size": 64},
                    }
                ],
            }
        )
    ),
}


@pytest.mark.parametrize("case", BOMBS)
def test_bombs_take_no_memory(case: str, takes_at_most: Bound) -> None:
    """What a header claims costs a typed error, and less than 256 KiB."""
    payload = BOMBS[case]
    with takes_at_most(256 << 10), pytest.raises(InvalidRequest):
        envelope.decode_request(payload)


def test_the_densest_header_takes_little_memory(takes_at_most: Bound) -> None:
    """Even 64 KiB of nested empty arrays, all that a header may hold, take less than 16 MiB."""
    row = b"\xdc\x00\x40" + b"\x90" * 64
    block = b"\xdc\x00\x0f" + row * 15
    payload = bomb(b"\x81\xa1x\xdc\x00\x3f" + block * 63)
    with takes_at_most(16 << 20), pytest.raises(InvalidRequest):
        envelope.decode_request(payload)


def test_a_long_json_is_refused_unparsed(takes_at_most: Bound) -> None:
    """Nine megabytes of `[]` would take two hundred in Python."""
    text = b"[" + b"[]," * (3 << 20) + b"[]]"
    with takes_at_most(256 << 10), pytest.raises(LimitExceeded):
        oip_json.decode_request(text, "m")
