"""What a worker keeps of streams: bounded, named by contents, and never a wrong picture."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from mqinfer.cloud_worker.serving.stream_states import StreamStates
from mqinfer.codecs import codecs_for, encode_tensor
from mqinfer.codecs.difference import array_name, take_difference
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadEncoding, MqinferError, ReferenceLost
from mqinfer.protocol.limits import DEFAULT_LIMITS
from mqinfer.protocol.types import EncodedTensor

KEY = ("car-1", "/front", "x")
CODECS = codecs_for("cpu")
RANDOM = np.random.default_rng(7)
FIRST = RANDOM.integers(0, 256, (1, 6, 8, 3), np.uint8)
SECOND = FIRST + RANDOM.integers(0, 2, FIRST.shape, np.uint8)


def whole(array: Array, codec: str = "png") -> EncodedTensor:
    """Encode a picture on its own, to be kept."""
    return encode_tensor("x", array, codec, {"keep": array_name(array)})


def difference(array: Array, reference: Array, codec: str = "png") -> EncodedTensor:
    """Encode a picture as a difference."""
    return take_difference("x", array, {}, reference, array_name(reference), codec)


def decode(states: StreamStates, tensor: EncodedTensor, key: tuple[str, str, str] = KEY) -> Array:
    """Decode a picture as a worker does."""
    return states.decode(tensor, key, DEFAULT_LIMITS, CODECS)


@pytest.mark.parametrize("codec", ["raw", "lz4", "shuffle-lz4", "png"])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_a_difference_brings_the_same_samples(codec: str, dtype: type) -> None:
    """Integers wrap around, NaN and infinities of depth keep their bits, and nothing is lost."""
    before: Array = RANDOM.integers(0, 256, (1, 5, 7, 1)).astype(dtype)
    after: Array = RANDOM.integers(0, 256, (1, 5, 7, 1)).astype(dtype)
    if dtype is np.float32:
        before[0, 0, 0], after[0, 1, 1], after[0, 2, 2] = np.nan, np.inf, -0.0
        codec = "lz4" if codec == "png" else codec
    states = StreamStates()
    decode(states, whole(before, "lz4"))
    assert decode(states, difference(after, before, codec)).tobytes() == after.tobytes()


def test_a_reference_that_never_was_or_is_anothers() -> None:
    """Only the same client, stream, input, contents and shape will do; each miss is counted."""
    counts: Counter[str] = Counter()
    states = StreamStates(lambda what: counts.update([what]))
    with pytest.raises(ReferenceLost, match="no picture"):
        decode(states, difference(SECOND, FIRST))
    decode(states, whole(FIRST))
    for key in (("car-2", "/front", "x"), ("car-1", "/rear", "x"), ("car-1", "/front", "y")):
        with pytest.raises(ReferenceLost):
            decode(states, difference(SECOND, FIRST), key)
    with pytest.raises(ReferenceLost):
        decode(states, replace(difference(SECOND, FIRST), shape=(1, 8, 6, 3)))
    np.testing.assert_array_equal(decode(states, difference(SECOND, FIRST)), SECOND)
    assert counts == {"references_lost": 5}


def test_a_picture_is_kept_under_its_own_name() -> None:
    """A sender that names its picture wrongly can't have another one taken for it."""
    states = StreamStates()
    decode(states, encode_tensor("x", SECOND, "png", {"keep": array_name(FIRST)}))
    with pytest.raises(ReferenceLost):
        decode(states, difference(SECOND, FIRST))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"data": b""}, BadEncoding),
        ({"data": b"\x00" * 5}, BadEncoding),
        ({"parameters": {"reference": array_name(FIRST)}}, BadEncoding),
        ({"parameters": {"reference": array_name(FIRST), "inner_encoding": "jpeg"}}, BadEncoding),
        ({"parameters": {"reference": array_name(FIRST), "inner_encoding": "difference"}}, BadEncoding),
        ({"parameters": {"reference": 7, "inner_encoding": "png"}}, ReferenceLost),
    ],
)
def test_bad_differences_are_refused(changes: dict[str, object], error: type[MqinferError]) -> None:
    """A truncated difference, an inner codec that loses something or is none: a typed error, and the state stays."""
    states = StreamStates()
    decode(states, whole(FIRST))
    good = difference(SECOND, FIRST)
    with pytest.raises(error):
        decode(states, replace(good, **changes))  # type: ignore[arg-type] # fields of the tensor
    with pytest.raises(BadEncoding):
        decode(states, replace(good, data=bytes(good.data)[:-9]))
    np.testing.assert_array_equal(decode(states, good), SECOND)


def test_memory_is_bounded() -> None:
    """Three pictures a stream are kept, so many bytes and streams; what was used longest ago goes, and is counted."""
    counts: Counter[str] = Counter()
    states = StreamStates(lambda what: counts.update([what]), most_bytes=4 * FIRST.nbytes, most_streams=3)
    pictures = [FIRST + np.uint8(number) for number in range(4)]
    for picture in pictures:
        decode(states, whole(picture))
    with pytest.raises(ReferenceLost):
        decode(states, difference(SECOND, pictures[0]))
    decode(states, difference(SECOND, pictures[1]))
    assert counts == {"references_lost": 1}
    decode(states, whole(FIRST), ("car-2", "", "x"))
    decode(states, whole(FIRST), ("car-3", "", "x"))  # the fifth picture: the first stream goes as a whole
    assert counts["streams_forgotten"] == 1
    with pytest.raises(ReferenceLost):
        decode(states, difference(SECOND, pictures[3]))
    for number in range(4, 7):
        decode(states, whole(FIRST), (f"car-{number}", "", "x"))
    assert counts["streams_forgotten"] == 3
    huge = np.zeros((1, 40, 40, 3), np.uint8)
    decode(states, whole(huge), KEY)  # larger than the bound: not kept, and nothing fails
    with pytest.raises(ReferenceLost):
        decode(states, difference(huge, huge))


def test_text_is_not_kept() -> None:
    """Arrays of strings have no difference: asking for that keeps nothing, and finds nothing."""
    states = StreamStates()
    text = np.array([b"a", b"b"], object)
    decode(states, encode_tensor("x", text, "raw", {"keep": "1"}))
    tensor = encode_tensor("x", text, "raw", {"reference": array_name(text), "inner_encoding": "raw"})
    with pytest.raises(ReferenceLost):
        decode(states, replace(tensor, encoding="difference"))
