"""How deep maps and arrays may be nested: the same on every Python, before anything recurses."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.protocol import decoding
from mqinfer.protocol.decoding import MAX_NESTING, is_deep_json, is_deep_msgpack, parse_json
from mqinfer.protocol.errors import BadEnvelope
from mqinfer.toml_files import is_deep

LEAVES = st.none() | st.booleans() | st.integers(-(1 << 63), (1 << 64) - 1) | st.floats(allow_nan=False) | st.text()
BINARY = st.binary(max_size=70_000) | st.binary(max_size=20).map(lambda data: msgpack.ExtType(5, data))
KEYS = st.text(max_size=40)


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for lists and dicts within each other."""
    return st.recursive(
        leaves, lambda within: st.lists(within, max_size=20) | st.dictionaries(KEYS, within, max_size=20), max_leaves=30
    )


def depth_of(value: Any) -> int:
    """Return how many lists and dicts lie within each other at most."""
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


def wrapped(value: Any, times: int) -> Any:
    """Put a value into lists and dicts, in turn."""
    for number in range(times):
        value = [number, value, "]"] if number % 2 else {"[": "]]", "k": value, "behind": "{"}
    return value


@given(value=trees(LEAVES | BINARY), edge=st.integers(-2, 2))
def test_messagepack(value: Any, edge: int) -> None:
    """Of whatever a value consists, it is deep from 101 containers on, and not before."""
    whole = wrapped(value, MAX_NESTING + edge - depth_of(value))
    assert is_deep_msgpack(msgpack.packb(whole)) is (edge > 0) is is_deep(whole)


@given(value=trees(LEAVES), edge=st.integers(-2, 2), ascii_only=st.booleans(), indent=st.sampled_from([None, 1]))
def test_json(*, value: Any, edge: int, ascii_only: bool, indent: int | None) -> None:
    """Brackets and quotes in strings do not count, in either direction."""
    whole = wrapped(value, MAX_NESTING + edge - depth_of(value))
    text = json.dumps(whole, ensure_ascii=ascii_only, indent=indent).encode()
    assert is_deep_json(text) is (edge > 0)


@given(data=st.binary(max_size=3000), head=st.sampled_from([b"", b"\x91" * 99, b"\xdd\xff\xff\xff\xff" * 99]))
def test_any_bytes(data: bytes, head: bytes) -> None:
    """Bytes that are no MessagePack or JSON at all get an answer too."""
    is_deep_msgpack(head + data)
    is_deep_json(head + data)


@pytest.mark.parametrize(
    "item", [b"\x91", b"\xdc\x00\x01", b"\xdd\x00\x00\x00\x01", b"\x81\xa1k", b"\xdf\xff\xff\xff\xff\x01"]
)
def test_a_flood_of_containers(item: bytes) -> None:
    """A whole header of containers within each other is found at the 101st of them."""
    assert is_deep_msgpack(item * 5000)
    assert not is_deep_msgpack(item * MAX_NESTING)
    assert not is_deep_msgpack(b"\xdc\xff\xff" + b"\x90" * 0xFFFF), "beside each other"


def test_json_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The depth is followed through the pieces that a long text is looked at in."""
    monkeypatch.setattr(decoding, "_CHUNK", 7)
    for depth in (MAX_NESTING, MAX_NESTING + 1):
        text = b"[[],[]," * (depth - 1) + b"[]" + b"]" * (depth - 1)
        assert is_deep_json(text) is (depth > MAX_NESTING)


@pytest.mark.parametrize("string", [b'""', b'"[\\\\"', rb'"\"{"', b'"a"'])
def test_strings_take_no_memory_of_their_own(string: bytes) -> None:
    """However many strings JSON has, its depth is found in less than three times its bytes."""
    text = b"[" * 99 + b"[" + (string + b",") * 200_000 + b"0]" + b"]" * 99
    tracemalloc.start()
    try:
        assert not is_deep_json(text)
        assert is_deep_json(b"[" + text)
        assert tracemalloc.get_traced_memory()[1] < 3 * len(text) + (1 << 20)
    finally:
        tracemalloc.stop()


def test_states_and_cards() -> None:
    """JSON that travels over MQTT is refused in words that name the bound."""
    parse_json(b"[" * 100 + b"]" * 100, "worker state")
    with pytest.raises(BadEnvelope, match="worker state: JSON is nested more than 100 deep"):
        parse_json(b"[" * 101 + b"]" * 101, "worker state")
