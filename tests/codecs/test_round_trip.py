from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mqinfer.codecs import decode_tensor, encode_tensor
from mqinfer.protocol.datatypes import Array, Datatype, datatype_of
from mqinfer.protocol.errors import BadTensor, LimitExceeded
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import EncodedTensor

DTYPES = ["?", "u1", "<u2", ">u2", "<u4", ">u4", "<u8", "i1", "<i2", "<i4", ">i8", "<f2", ">f2", "<f4", ">f4", "<f8"]
LOSSLESS = ["raw", "lz4", "lz4:9", "shuffle-lz4", "shuffle-lz4:3"]
shapes = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)
arrays = st.sampled_from(DTYPES).flatmap(lambda dtype: hnp.arrays(dtype, shapes))
string_arrays = hnp.arrays(np.object_, shapes, elements=st.binary(max_size=9))


@st.composite
def views(draw: st.DrawFn) -> Array:
    """Draw arrays of any dtype that often are no plain blocks of memory: reversed, strided, transposed."""
    array: Array = draw(arrays)
    steps = draw(st.tuples(*[st.sampled_from([1, -1, 2, -2])] * array.ndim))
    view: Array = array[tuple(slice(None, None, step) for step in steps)]
    return view.T if draw(st.booleans()) else view


def same_bits(found: Array, expected: Array) -> bool:
    """Compare bit by bit, so that each NaN counts."""
    wanted = expected.astype(expected.dtype.newbyteorder("<"))
    return found.shape == wanted.shape and found.dtype == wanted.dtype and found.tobytes() == wanted.tobytes()


@given(views(), st.sampled_from(LOSSLESS))
def test_numbers_survive_bit_by_bit(array: Array, encoding: str) -> None:
    """Every datatype, byte order, shape and stride comes back with the same bits, little-endian."""
    tensor = encode_tensor("x", array, encoding)
    assert (tensor.datatype, tensor.shape) == (datatype_of(array.dtype), array.shape)
    assert same_bits(decode_tensor(tensor), array)


@given(string_arrays, st.sampled_from(LOSSLESS))
def test_strings_survive(array: Array, encoding: str) -> None:
    """BYTES tensors come back as object arrays of bytes, zero bytes at the end included."""
    found = decode_tensor(encode_tensor("x", array, encoding))
    assert found.shape == array.shape
    assert found.ravel().tolist() == array.ravel().tolist()


@pytest.mark.parametrize("array", [np.array(["a", "ü"]), np.array(["a", "ü"], object), np.array([b"a", "ü".encode()])])
def test_text_travels_as_utf8(array: Array) -> None:
    """Text of every NumPy kind becomes BYTES in UTF-8."""
    assert decode_tensor(encode_tensor("x", array)).tolist() == [b"a", "ü".encode()]


def test_raw_bytes_of_strings_are_the_protocols() -> None:
    """Each element is its length in four bytes, little-endian, and its bytes."""
    assert bytes(encode_tensor("x", np.array([b"ab", b""], object)).data) == b"\x02\0\0\0ab\0\0\0\0"


def test_raw_copies_nothing() -> None:
    """Raw encoding of a contiguous array is a view on it, and decoding is a read-only view on that."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = encode_tensor("x", array)
    found = decode_tensor(tensor)
    assert isinstance(tensor.data, memoryview)
    assert (tensor.data.format, tensor.data.nbytes) == ("B", 48)
    assert np.shares_memory(array, found)
    assert not found.flags.writeable


def test_shuffle_groups_bytes_of_equal_significance() -> None:
    """Smooth floats compress better shuffled."""
    array = np.linspace(0, 1, 10_000, dtype=np.float32)
    sizes = [len(encode_tensor("x", array, encoding).data) for encoding in ("raw", "lz4", "shuffle-lz4")]
    assert sizes[2] < 0.7 * min(sizes[:2])


def test_parameters_are_kept_beside_the_codecs() -> None:
    """The caller's parameters travel, the codec adds its own, the caller's map stays as it was."""
    parameters = {"image_encoding": "rgb8"}
    tensor = encode_tensor("x", np.array([b"abc"], object), "lz4", parameters)
    assert tensor.parameters == {"image_encoding": "rgb8", "raw_size": 7}
    assert parameters == {"image_encoding": "rgb8"}


@pytest.mark.parametrize(
    "array", [np.array([1j]), np.array(["2020"], "M8[Y]"), np.array([object()]), np.array([1, "a"], object)]
)
def test_arrays_without_a_datatype_are_refused(array: Array) -> None:
    """What the protocol has no datatype for is refused when sending."""
    with pytest.raises(BadTensor):
        encode_tensor("x", array)


def raw(datatype: Datatype, shape: tuple[int, ...], data: bytes) -> EncodedTensor:
    """Make a raw tensor of whatever is claimed."""
    return EncodedTensor("x", datatype, shape, "raw", data)


@pytest.mark.parametrize(
    "tensor",
    [
        raw(Datatype.FP32, (2,), bytes(7)),
        raw(Datatype.FP32, (2,), bytes(9)),
        raw(Datatype.FP32, (2,), b""),
        raw(Datatype.FP32, (0,), bytes(4)),
        raw(Datatype.BOOL, (2,), b"\0\2"),
        raw(Datatype.BYTES, (1,), b""),
        raw(Datatype.BYTES, (1,), b"\1\0\0"),
        raw(Datatype.BYTES, (1,), b"\2\0\0\0a"),
        raw(Datatype.BYTES, (1,), b"\xff\xff\xff\xffa"),
        raw(Datatype.BYTES, (1,), b"\1\0\0\0ab"),
        raw(Datatype.BYTES, (2,), b"\1\0\0\0a"),
        raw(Datatype.BYTES, (0,), b"a"),
    ],
)
def test_raw_bytes_that_do_not_fit_are_refused(tensor: EncodedTensor) -> None:
    """Too short, too long, lengths that don't add up, a BOOL of 2."""
    with pytest.raises(BadTensor, match="'x'"):
        decode_tensor(tensor)


@pytest.mark.parametrize("encoding", ["raw", "lz4", "shuffle-lz4", "mask", "jpeg", "png"])
@pytest.mark.parametrize("shape", [(2**62, 2**62), (0, 2**62), (1,) * 17, (2**28 + 1,)])
def test_shapes_beyond_the_limits_are_refused_by_every_codec(encoding: str, shape: tuple[int, ...]) -> None:
    """The shape's product is checked, without overflow, before a codec is asked."""
    with pytest.raises(LimitExceeded, match="'x'"):
        decode_tensor(EncodedTensor("x", Datatype.UINT8, shape, encoding, b"abc"), Limits())


@pytest.mark.parametrize("encoding", ["raw", "lz4"])
def test_many_short_strings_are_encoded_in_little_memory(
    takes_at_most: Callable[[int], AbstractContextManager[None]], encoding: str
) -> None:
    """Not in an object for each length and string: 200,000 of one byte make a megabyte."""
    strings = np.full(200_000, b"x", np.object_)
    with takes_at_most(8 << 20):
        assert len(encode_tensor("x", strings, encoding).data) <= 1_000_000
