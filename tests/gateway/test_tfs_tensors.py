"""TensorProtos to arrays and back: each datatype, each form of the values, and shapes that lie."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from mqinfer.errors import BadTensor, InvalidRequest, LimitExceeded
from mqinfer.gateway import varints
from mqinfer.gateway.tfs.messages import parse, tfs_class
from mqinfer.gateway.tfs.tensors import NUMBERS, read_tensor, read_tensors, write_tensor
from mqinfer.gateway.varints import pack_varints, unpack_varints
from mqinfer.protobuf_wire import delimited
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of

MOST = 1 << 20
FIELDS = {"FP32": "float_val", "FP64": "double_val", "FP16": "half_val", "BYTES": "string_val", "BOOL": "bool_val"} | {
    name: f"{name.lower()}_val" for name in ("INT64", "UINT32", "UINT64")
}
TYPED: Any = tfs_class("TypedTensorProto")
"""The values of a TensorProto, declared as TensorFlow declares them."""

numbers = st.sampled_from([each for each in NUMBERS if each is not Datatype.BYTES])
shapes = st_numpy.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    """Any array of numbers."""
    array: Array = draw(st_numpy.arrays(dtype_of(draw(numbers)), draw(shapes)))
    return array


def proto(datatype: Datatype, shape: tuple[int, ...], **fields: Any) -> Any:
    """Return a TensorProto of these fields."""
    tensor = tfs_class("TensorProto")(dtype=NUMBERS[datatype])
    for name, value in fields.items():
        if isinstance(value, bytes):
            setattr(tensor, name, value)
        else:
            getattr(tensor, name).extend(value)
    for size in shape:
        tensor.tensor_shape.dim.add(size=size)
    return tensor


def read(tensor: Any, most: int = MOST) -> Array:
    """Read one tensor."""
    return read_tensor("x", tensor, most)[0]


@given(array=arrays())
def test_numbers_come_back(array: Array) -> None:
    """An array that is written as typed values is read back bit by bit, with its shape."""
    tensor = tfs_class("TensorProto")()
    write_tensor(array, tensor)
    found = read(tfs_class("TensorProto").FromString(tensor.SerializeToString()))
    assert found.dtype == array.dtype
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()


@given(array=arrays())
def test_typed_values_are_those_of_tensorflow(array: Array) -> None:
    """The field of the type holds what TensorFlow's own declaration of it reads."""
    tensor = tfs_class("TensorProto")()
    write_tensor(array, tensor)
    datatype = next(each for each in NUMBERS if dtype_of(each) == array.dtype)
    typed = TYPED.FromString(tensor.SerializeToString())
    values = getattr(typed, FIELDS.get(datatype, "int_val"))
    expected = array.view(np.uint16) if datatype is Datatype.FP16 else array
    np.testing.assert_array_equal(np.array(values, expected.dtype), expected.reshape(-1))


@given(array=arrays())
def test_content_comes_back(array: Array) -> None:
    """`tensor_content` is the array's own bytes."""
    datatype = next(each for each in NUMBERS if dtype_of(each) == array.dtype)
    found = read(proto(datatype, array.shape, tensor_content=array.tobytes()))
    assert found.shape == array.shape
    assert found.tobytes() == array.tobytes()


@given(strings=st_numpy.arrays(np.object_, shapes, elements=st.binary(max_size=20)))
def test_strings_come_back(strings: Array) -> None:
    """Strings come back, from `string_val` and from the form of `tensor_content`."""
    tensor = tfs_class("TensorProto")()
    write_tensor(strings, tensor)
    assert read(tensor).tolist() == strings.tolist()
    flat = strings.reshape(-1).tolist()
    lengths = pack_varints(np.array([len(each) for each in flat], np.uint64))
    content = proto(Datatype.BYTES, strings.shape, tensor_content=lengths + b"".join(flat))
    assert read(content).tolist() == strings.tolist()


@given(values=st.lists(st.integers(0, 2**64 - 1), max_size=50))
def test_varints_come_back(values: list[int]) -> None:
    """Varints are those of protobuf."""
    packed = pack_varints(np.array(values, np.uint64))
    assert TYPED(uint64_val=values).SerializeToString().endswith(packed)
    assert unpack_varints(packed, Datatype.UINT64, "x").tolist() == values


def test_varints_that_are_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A boolean may be any number; bytes that end no number, for longer than a piece, are refused."""
    assert unpack_varints(pack_varints(np.array([300, 0, 1], np.uint64)), Datatype.BOOL, "x").tolist() == [1, 0, 1]
    monkeypatch.setattr(varints, "_PART", 16)
    with pytest.raises(BadTensor, match="more than 64 bits"):
        unpack_varints(b"\xff" * 40 + b"\x01", Datatype.INT64, "x")


def test_varints_are_unpacked_in_pieces() -> None:
    """More than one piece's worth of varints of all lengths comes back."""
    values = np.random.default_rng(1).integers(0, 2**63, 200_000, np.uint64) >> np.arange(200_000, dtype=np.uint64) % 64
    np.testing.assert_array_equal(unpack_varints(pack_varints(values), Datatype.UINT64, "x"), values)


@pytest.mark.parametrize(
    ("datatype", "field", "values", "expected"),
    [
        (Datatype.FP32, "float_val", [2.5, 3.5], [2.5, 3.5, 3.5, 3.5]),
        (Datatype.INT8, "int_val", [-1], [-1, -1, -1, -1]),
        (Datatype.FP16, "half_val", [15360, 16384], [1.0, 2.0, 2.0, 2.0]),
        (Datatype.BOOL, "bool_val", [True, False], [True, False, False, False]),
        (Datatype.INT64, "int64_val", [], [0, 0, 0, 0]),
        (Datatype.BYTES, "string_val", [b"a", b"b"], [b"a", b"b", b"b", b"b"]),
        (Datatype.BYTES, "string_val", [], [b"", b"", b"", b""]),
    ],
)
def test_last_value_repeats(datatype: Datatype, field: str, values: list[Any], expected: list[Any]) -> None:
    """Fewer values than elements repeat the last one; none stand for zeros."""
    packed = values
    if field != "string_val":
        packed = [_packed(field, values)]
    found = read(proto(datatype, (2, 2), **{field: packed}))
    assert found.shape == (2, 2)
    assert found.reshape(-1).tolist() == expected


def _packed(field: str, values: list[Any]) -> bytes:
    """Return values as the content of a packed field."""
    whole: bytes = TYPED(**{field: values}).SerializeToString()
    packed: bytes = tfs_class("TensorProto").FromString(whole)
    return b"".join(getattr(packed, field))


def test_unpacked_values_are_read() -> None:
    """Values that came one by one, which protobuf allows, are the same as packed ones, also of both kinds together."""
    tag = (5 << 3 | 5).to_bytes(1, "little")
    one_by_one = b"".join(tag + np.float32(value).tobytes() for value in (1.5, 2.5))
    packed = b"\x2a\x04" + np.float32(3.5).tobytes()
    tensor = tfs_class("TensorProto")(dtype=1)
    tensor.tensor_shape.dim.add(size=3)
    content = tensor.SerializeToString() + one_by_one + packed
    request = b"\x12" + bytes([len(content) + 5]) + b"\x0a\x01x\x12" + bytes([len(content)]) + content
    found = parse("PredictRequest", request).inputs["x"]
    assert read(found).tolist() == [1.5, 2.5, 3.5]


@pytest.mark.parametrize(
    ("tensor", "error"),
    [
        (proto(Datatype.FP32, (2,), tensor_content=b"123"), "takes 8 bytes; got 3"),
        (proto(Datatype.FP32, (1,), float_val=[b"12345"]), "no multiple of 4"),
        (proto(Datatype.FP32, (1,), float_val=[bytes(8)]), "2 values, and its shape has 1 elements"),
        (proto(Datatype.FP32, (-1,), float_val=[bytes(4)]), "every entry of a shape"),
        (proto(Datatype.FP32, (2**62, 2**62, 0), float_val=[bytes(4)]), "takes"),
        (proto(Datatype.INT8, (1,), int_val=[b"\x80\x02"]), "a number beyond INT8"),
        (proto(Datatype.UINT8, (1,), int_val=[pack_varints(np.array([2**64 - 1], np.uint64))]), "beyond UINT8"),
        (proto(Datatype.INT32, (2,), int_val=[b"\x01\x80"]), "end within a number"),
        (proto(Datatype.INT64, (2,), int64_val=[b"\x80" * 11 + b"\x00"]), "more than 64 bits"),
        (proto(Datatype.INT64, (2,), int64_val=[b"\x01" * 3]), "3 values, and its shape has 2"),
        (proto(Datatype.BYTES, (1,), string_val=[b"a", b"b"]), "2 values, and its shape has 1"),
        (proto(Datatype.BYTES, (2,), tensor_content=b"\x01\x01a"), "don't add up"),
        (proto(Datatype.BYTES, (2,), tensor_content=b"\x80"), "a number without an end"),
        (proto(Datatype.BYTES, (1,), tensor_content=b"\xff" * 40), "a number without an end"),
        (tfs_class("TensorProto")(dtype=14), "datatype number 14 is not supported"),
        (tfs_class("TensorProto")(), "datatype number 0 is not supported"),
        (tfs_class("TensorProto")(dtype=1, tensor_shape={"unknown_rank": True}), "unknown_rank"),
    ],
)
def test_lies_are_refused(tensor: Any, error: str) -> None:
    """What contradicts itself is an error that says what."""
    with pytest.raises(InvalidRequest, match=error):
        read(tensor)


def test_memory_is_bounded() -> None:
    """A few bytes that claim a large array are refused before it is made: also strings, and many tensors together."""
    with pytest.raises(LimitExceeded, match="takes 1048580 bytes, and 1048576 are left"):
        read(proto(Datatype.FP32, (MOST // 4 + 1,), float_val=[bytes(4)]))
    with pytest.raises(LimitExceeded, match="are left"):
        read(proto(Datatype.BYTES, (2000,), string_val=[b"x" * 1000]))
    half = proto(Datatype.FP32, (MOST // 8,), float_val=[bytes(4)])
    assert read_tensors({"a": half, "b": half}, MOST)["b"].nbytes == MOST // 2
    with pytest.raises(LimitExceeded, match="'c' takes"):
        read_tensors({"a": half, "b": half, "c": half}, MOST)
    with pytest.raises(LimitExceeded, match="65 inputs"):
        read_tensors({str(number): half for number in range(65)}, MOST)


HOLLOW = {  # fields that contain nothing, each two bytes
    "tensors": ("PredictRequest", b"\x12\x00"),
    "filters": ("PredictRequest", b"\x1a\x00"),
    "examples": ("RegressionRequest", b"\x0a\x00"),
    "tasks": ("MultiInferenceRequest", b"\x0a\x00"),
    "unknown numbers": ("GetModelStatusRequest", b"\x78\x00"),
}


@pytest.mark.parametrize(("kind", "field"), HOLLOW.values(), ids=HOLLOW)
def test_hollow_fields_are_counted(monkeypatch: pytest.MonkeyPatch, kind: str, field: bytes) -> None:
    """Fields that contain nothing are refused before Protocol Buffers makes an object of each."""
    monkeypatch.setattr("mqinfer.gateway.tfs.messages._MOST_VALUES", 40_000)
    tracemalloc.start()
    try:
        with pytest.raises(LimitExceeded, match="or 2500 names and messages in it"):
            parse(kind, field * 50_000)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("inner", ["strings", "axes", "unpacked numbers"])
def test_fields_of_a_tensor_are_counted(monkeypatch: pytest.MonkeyPatch, inner: str) -> None:
    """The fields of messages within a message count too; as many as the bound are read."""
    monkeypatch.setattr("mqinfer.gateway.tfs.messages._MOST_VALUES", 40_000)
    monkeypatch.setattr("mqinfer.gateway.tfs.messages._WEIGHT", 1)
    content = {"strings": b"\x42\x01a", "axes": b"\x12\x00", "unpacked numbers": b"\x38\x01"}[inner]

    def request(count: int) -> bytes:
        content_of = content * count
        if inner == "axes":
            content_of = delimited(2, len(content_of)) + content_of
        tensor = delimited(1, 1) + b"x" + delimited(2, len(content_of)) + content_of
        return delimited(2, len(tensor)) + tensor

    outer = 4 if inner == "axes" else 3
    assert "x" in parse("PredictRequest", request(40_000 - outer)).inputs
    with pytest.raises(LimitExceeded):
        parse("PredictRequest", request(40_001 - outer))


@given(data=st.binary(max_size=200), kind=st.sampled_from(["PredictRequest", "ClassificationRequest"]))
def test_any_bytes_are_a_message_or_an_error(data: bytes, kind: str) -> None:
    """Whatever comes, it is read or refused; and so are its tensors."""
    with suppress(InvalidRequest):
        read_tensors(getattr(parse(kind, data), "inputs", {}), MOST)


@given(
    field=st.sampled_from(sorted({*FIELDS.values(), "int_val", "tensor_content"})),
    data=st.binary(max_size=64),
    number=numbers,
)
def test_any_values_are_an_array_or_an_error(field: str, data: bytes, number: Datatype) -> None:
    """Whatever a field of values holds, it is read or refused."""
    tensor = proto(number, (3,), **{field: data if field == "tensor_content" else [data]})
    with suppress(BadTensor):
        assert read(tensor).shape == (3,)
