from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress

import lz4.block
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import BadEncoding, InvalidRequest, LimitExceeded
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import EncodedTensor, Scalar

Bound = Callable[[int], AbstractContextManager[None]]
ZEROS = lz4.block.compress(bytes(1000), store_size=False)


def block(size: int, data: bytes, datatype: Datatype = Datatype.UINT8, **parameters: Scalar) -> EncodedTensor:
    """Make a tensor of one axis with an LZ4 block of whatever is given."""
    return EncodedTensor("x", datatype, (size,), "lz4", data, parameters)


@pytest.mark.parametrize(
    "tensor",
    [
        block(999, ZEROS),
        block(1001, ZEROS),
        block(1000, ZEROS[:-1]),
        block(1000, ZEROS + b"\0"),
        block(1000, b""),
        block(1000, b"\xff" * 100),
        block(0, b"\0"),
        block(1 << 28, b"\xff" * 14),
        block(1, lz4.block.compress(b"a")),
        block(1, ZEROS, Datatype.BYTES),
        block(1, ZEROS, Datatype.BYTES, raw_size="9"),
        block(1, ZEROS, Datatype.BYTES, raw_size=-1),
        block(1, ZEROS, Datatype.BYTES, raw_size=True),
        block(1, ZEROS, Datatype.BYTES, raw_size=1001),
    ],
)
def test_blocks_that_do_not_make_the_declared_array_are_refused(tensor: EncodedTensor) -> None:
    """Too short, too long, corrupt, or claiming more than its bytes can make."""
    with pytest.raises(BadEncoding, match="'x'"):
        decode_tensor(tensor)


@pytest.mark.parametrize(
    "tensor",
    [
        block(100_000_000_000, ZEROS),
        block(1 << 28, ZEROS),
        block(1, b"\x1f\x00" + b"\xff" * 12, Datatype.BYTES, raw_size=100_000_000_000),
        block(1, (100_000_000_000).to_bytes(8, "little") + ZEROS, Datatype.UINT64),
    ],
)
def test_a_block_that_claims_100_gb_takes_no_memory(tensor: EncodedTensor, takes_at_most: Bound) -> None:
    """A claim costs a typed error, and less than 64 KiB."""
    with takes_at_most(64 << 10), pytest.raises(InvalidRequest):
        decode_tensor(tensor)


def test_the_size_of_strings_is_bounded_by_the_limits() -> None:
    """`raw_size` is a stranger's word, too."""
    tensor = encode_tensor("x", np.array([b"a" * 100], object), "lz4")
    assert decode_tensor(tensor, Limits(tensor_bytes=104)).tolist() == [b"a" * 100]
    with pytest.raises(LimitExceeded, match="raw_size"):
        decode_tensor(tensor, Limits(tensor_bytes=103))


def test_a_better_level_makes_less() -> None:
    """The high-compression mode is used where a level is given, and any receiver reads it."""
    array = np.tile(np.arange(500, dtype=np.uint16), 20) * np.uint16(7)
    fast, small = (encode_tensor("x", array, encoding) for encoding in ("lz4", "lz4:12"))
    assert len(small.data) <= len(fast.data)
    assert decode_tensor(small).tolist() == array.tolist()


@given(st.sampled_from(["lz4", "shuffle-lz4"]), st.booleans(), st.data())
@settings(max_examples=300)
def test_mutated_blocks_give_an_array_or_a_typed_error(encoding: str, strings: bool, data: st.DataObject) -> None:  # noqa: FBT001 -- drawn by Hypothesis
    """Flipped bytes and cut ends: an array of the declared shape, or one of our errors."""
    array: Array = np.array([b"abc" * 9, b"abc" * 9], object) if strings else np.arange(50, dtype=np.float32)
    tensor = encode_tensor("x", array, encoding)
    changed = bytearray(tensor.data)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(changed) - 1))] = data.draw(st.integers(0, 255))
    end = data.draw(st.sampled_from([len(changed), data.draw(st.integers(0, len(changed)))]))
    with suppress(InvalidRequest):
        assert decode_tensor(replace(tensor, data=bytes(changed[:end]))).shape == array.shape
