from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.codecs import encode_tensor
from mqinfer.protocol.checksum import CHECKSUM, checksum, verify
from mqinfer.protocol.envelope import encode_request, request_pieces
from mqinfer.protocol.errors import ConfigError, Corrupted
from mqinfer.protocol.types import InferRequest


def flipped(data: bytes, *bits: int) -> bytes:
    """Flip these bits, counted from the start and around."""
    changed = bytearray(data)
    for bit in bits:
        changed[bit // 8 % len(data)] ^= 1 << bit % 8
    return bytes(changed)


def test_it_is_the_xxh3_that_everybody_has() -> None:
    """The value of nothing as xxHash's own sanity test has it, with seed 0, and one more."""
    assert checksum(()) == checksum((b"",)) == ("xxh3", "2d06800538d394c2")
    assert checksum((b"123456789",)) == ("xxh3", "72dcb18b67a17dff")


@given(st.lists(st.binary(max_size=40), max_size=6))
def test_pieces_count_as_what_they_make_together(pieces: list[bytes]) -> None:
    """However a payload lies in memory, it is what goes over the wire that counts; and it passes."""
    assert checksum(pieces) == checksum((b"".join(pieces),))
    verify(b"".join(pieces), (checksum(pieces),))


@given(
    st.lists(st.binary(max_size=300), min_size=1, max_size=4).filter(any), st.sets(st.integers(0, 1 << 16), min_size=1)
)
def test_any_flipped_bits_are_found(pieces: list[bytes], bits: set[int]) -> None:
    """One, two or many, in whatever piece; only where they undo each other all is well."""
    payload, stated = b"".join(pieces), checksum(pieces)
    damaged = flipped(payload, *bits)
    if damaged == payload:
        verify(damaged, (stated,))
    else:
        with pytest.raises(Corrupted, match=stated[1]):
            verify(damaged, (stated,))


def test_every_single_bit_of_a_request_is_covered() -> None:
    """Head, padding and tensor of a payload in pieces, bit by bit."""
    request = InferRequest("ab" * 16, "m", (encode_tensor("x", np.arange(5000, dtype=np.float32)),))
    pieces = request_pieces(request)
    assert len(pieces) > 1
    payload, stated = encode_request(request), checksum(pieces)
    verify(payload, (stated,))
    for bit in [*range(8 * 256), *range(8 * 256, 8 * len(payload), 61)]:
        with pytest.raises(Corrupted):
            verify(flipped(payload, bit), (stated,))


@given(st.binary(max_size=50), st.integers(0, 127))
def test_a_flip_in_the_checksum_itself_is_damage_too(payload: bytes, bit: int) -> None:
    """Nothing tells which of the two is wrong."""
    name, value = checksum((payload,))
    damaged = flipped(value.encode(), bit).decode("latin-1")
    with pytest.raises(Corrupted, match="send it again"):
        verify(payload, (("traceparent", "?"), (name, damaged)))


def test_a_message_without_one_passes() -> None:
    """A stranger's, or one that came over MQTT 3.1.1."""
    verify(b"anything", ())
    verify(b"anything", (("xxh", "00000000"), ("XXH3", "00000000")))


def test_of_two_both_must_be_right() -> None:
    """A second one does not hide the first."""
    good = checksum((b"a",))
    verify(b"a", (good, good))
    with pytest.raises(Corrupted):
        verify(b"a", (good, (CHECKSUM, "0" * 16)))


def test_arrays_are_summed_as_they_lie() -> None:
    """Memory of any form without a copy, as long as its bytes follow one another."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    assert checksum((array.data,)) == checksum((array.tobytes(),))
    with pytest.raises(ConfigError, match="contiguous"):
        checksum((array.T.data,))
