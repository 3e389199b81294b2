from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import AbstractContextManager

import lz4.block
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec.structs import replace

from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import BadEncoding, LimitExceeded
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import EncodedTensor

Bound = Callable[[int], AbstractContextManager[None]]
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=7)
dense = st.sampled_from([1, 2, 3, 4, 9, 16, 17, 256]).flatmap(
    lambda classes: hnp.arrays(np.uint8, shapes, elements=st.integers(0, classes - 1))
)
runs = st.lists(st.tuples(st.integers(0, 255), st.integers(1, 70_000)), min_size=1, max_size=6).map(
    lambda pairs: np.repeat(np.array([value for value, _ in pairs], np.uint8), [length for _, length in pairs])
)


def mask(size: int, head: tuple[int, int], content: bytes, datatype: Datatype = Datatype.UINT8) -> EncodedTensor:
    """Make a tensor of one axis with a head and a block of whatever is given."""
    data = struct.pack("<II", *head) + (lz4.block.compress(content, store_size=False) if content else b"")
    return EncodedTensor("x", datatype, (size,), "mask", data)


@given(dense | runs | hnp.arrays(np.bool_, shapes), st.sampled_from(["mask", "mask:12"]))
def test_masks_survive(array: Array, encoding: str) -> None:
    """Any UINT8 or BOOL array comes back, whatever its shape, as runs or packed."""
    found = decode_tensor(encode_tensor("x", array, encoding))
    assert (found.dtype, found.shape) == (array.dtype, array.shape)
    assert np.array_equal(found, array)


def test_views_survive() -> None:
    """Strides and a transposition are no matter."""
    array = np.arange(600, dtype=np.uint8).reshape(20, 30) // 40
    for view in (array[::2, ::-1], array.T, array.astype(bool)[:, 5:]):
        assert np.array_equal(decode_tensor(encode_tensor("x", view, "mask")), view)


def test_the_bytes_are_those_of_the_specification() -> None:
    """docs/reference/protocol.md, section 6: two numbers, then planes of classes and lengths, or packed pixels."""
    data = encode_tensor("x", np.repeat(np.array([5, 0, 5], np.uint8), [300, 65_536, 1]), "mask").data
    assert bytes(data[:8]) == bytes([0, 0, 0, 0, 4, 0, 0, 0])
    planes = lz4.block.decompress(data[8:], uncompressed_size=12)
    assert planes == bytes([5, 0, 0, 5, 300 & 255, 255, 1, 1, 300 >> 8, 255, 0, 0])
    data = encode_tensor("x", np.array([3, 1, 0, 2, 1], np.uint8), "mask").data
    assert bytes(data[:8]) == bytes([2, 0, 0, 0, 0, 0, 0, 0])
    assert lz4.block.decompress(data[8:], uncompressed_size=2) == bytes([0b10_00_01_11, 0b01])


@pytest.mark.parametrize("size", [(968, 608), (2048, 1024)])
def test_a_scene_takes_less_than_half_of_lz4_and_of_png(size: tuple[int, int]) -> None:
    """What the codec is there for."""
    truth = SyntheticDrive(3, *size).scene(5).mask
    packed, lz4_block, png = (len(encode_tensor("x", truth, encoding).data) for encoding in ("mask", "lz4", "png"))
    assert packed < 0.5 * min(lz4_block, png)


def test_noise_takes_hardly_more_than_lz4() -> None:
    """Where runs don't pay, the head is all that is lost."""
    noise = np.random.default_rng(1).integers(0, 256, 10_000, np.uint8)
    assert len(encode_tensor("x", noise, "mask").data) <= len(encode_tensor("x", noise, "lz4").data) + 8


@pytest.mark.parametrize("array", [np.zeros(3, np.float32), np.zeros(3, np.int64), np.array([b"a"], object)])
def test_other_arrays_are_refused(array: Array) -> None:
    """The message says what to use instead."""
    with pytest.raises(BadEncoding, match="use lz4 or raw"):
        encode_tensor("x", array, "mask")


@pytest.mark.parametrize(
    "tensor",
    [
        mask(16, (0, 2), bytes([1, 2, 8, 7, 0, 0])),
        mask(16, (0, 2), bytes([1, 2, 8, 9, 0, 0])),
        mask(16, (0, 2), bytes([1, 2, 8, 8, 0])),
        mask(15, (0, 2), bytes([1, 2, 8, 7, 0, 0])),
        mask(16, (0, 0), b""),
        mask(16, (0, 0xFFFFFFFF), bytes(9)),
        mask(16, (3, 0), bytes(6)),
        mask(16, (4, 2), bytes(8)),
        mask(16, (4, 0), bytes(7)),
        mask(16, (4, 0), bytes(9)),
        mask(16, (0x0400_0000, 0), bytes(8)),
        mask(0, (8, 0), b""),
        mask(9, (8, 0), b""),
        mask(16, (0, 2), bytes([1, 2, 8, 8, 0, 0]), Datatype.BOOL),
        mask(16, (2, 0), bytes([2, 0, 0, 0]), Datatype.BOOL),
        mask(16, (8, 0), bytes(16), Datatype.INT8),
        replace(mask(16, (8, 0), b""), data=b"\x08\0\0\0\0\0\0"),
        replace(mask(16, (8, 0), b""), data=b""),
    ],
)
def test_bytes_that_do_not_make_the_declared_mask_are_refused(tensor: EncodedTensor) -> None:
    """Runs that add up to more or less, a head that says both or neither, too little, too much, a BOOL of 2."""
    with pytest.raises(BadEncoding, match="'x'"):
        decode_tensor(tensor)


@pytest.mark.parametrize(
    "tensor",
    [mask(1 << 28, (0, 1 << 25), bytes(99)), mask(1 << 28, (1, 0), bytes(99)), mask(1 << 28, (8, 0), bytes(99))],
)
def test_a_mask_that_claims_a_quarter_of_a_gigabyte_takes_no_memory(
    tensor: EncodedTensor, takes_at_most: Bound
) -> None:
    """A claim that its bytes can't make costs a typed error, and less than 64 KiB."""
    with takes_at_most(64 << 10), pytest.raises(BadEncoding):
        decode_tensor(tensor)


def test_expanding_runs_takes_a_bounded_multiple_of_the_mask(takes_at_most: Bound) -> None:
    """The shortest runs that are allowed: at most three times the memory of the pixels."""
    size = 1 << 20
    tensor = mask(size, (0, size // 8), bytes(size // 8) + bytes([8]) * (size // 8) + bytes(size // 8))
    with takes_at_most(3 * size):
        assert decode_tensor(tensor).shape == (size,)


def test_the_limits_hold() -> None:
    """A mask that is larger than the receiver's limit is refused, however few bytes it has."""
    tensor = encode_tensor("x", np.zeros(1000, np.uint8), "mask")
    with pytest.raises(LimitExceeded):
        decode_tensor(tensor, Limits(tensor_bytes=999))


def test_ten_thousand_mutated_masks_give_an_array_or_bad_encoding() -> None:
    """With a fixed seed, runs and packed pixels: flipped, cut, and content changed before packing."""
    rng = np.random.default_rng(11)
    originals = [encode_tensor("x", (np.arange(500) // part).astype(np.uint8), "mask") for part in (3, 50, 260)]
    refused = 0
    for number in range(12_000):
        tensor = originals[number % 3]
        changed = bytearray(tensor.data)
        if number % 2:  # an intact block with other content gets past LZ4
            bits, count = struct.unpack_from("<II", changed)
            size = 3 * count or -(-500 * bits // 8)
            content = bytearray(lz4.block.decompress(changed[8:], uncompressed_size=size))
            content[rng.integers(size)] = rng.integers(256)
            changed[8:] = lz4.block.compress(content[: rng.integers(1, 2 * size)], store_size=False)
        else:
            for place in rng.integers(0, len(changed), 1 + number % 5):
                changed[place] = rng.integers(256)
            if number % 4:
                del changed[rng.integers(len(changed) + 1) :]
        refused += _try(tensor, bytes(changed))
    assert refused > 1000


def _try(tensor: EncodedTensor, data: bytes) -> bool:
    """Decode changed bytes; tells whether they were refused. Anything but BadEncoding is a failure."""
    try:
        assert decode_tensor(replace(tensor, data=data)).shape == tensor.shape
    except BadEncoding:
        return True
    return False
