"""Typed contents and large requests are read as protobuf reads them, and tensors are not copied."""

from __future__ import annotations

import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mqinfer.client.result import InferResult
from mqinfer.gateway import varints
from mqinfer.gateway.calls import LARGE
from mqinfer.gateway.grpc.contents import raw_contents
from mqinfer.gateway.grpc.infer import response
from mqinfer.gateway.grpc.requests import read_call, read_request
from mqinfer.gateway.grpc_calls import GrpcCaller
from mqinfer.gateway.messages import message_class
from mqinfer.protocol.datatypes import Datatype, dtype_of, join_strings
from mqinfer.protocol.errors import BadTensor, InvalidRequest, LimitExceeded, MqinferError
from mqinfer.protocol.types import Outcome

FIELDS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents", "INT32": "int_contents",
    "INT64": "int64_contents", "UINT8": "uint_contents", "UINT16": "uint_contents", "UINT32": "uint_contents",
    "UINT64": "uint64_contents", "FP32": "fp32_contents", "FP64": "fp64_contents", "BYTES": "bytes_contents",
}  # fmt: skip
CONTENTS = message_class("inference.InferTensorContents")
"""The message as the field's clients have it."""
CALLER = GrpcCaller("me", "", {}, None)


def typed(field: str, values: list[Any]) -> memoryview:
    """Return the bytes of contents, as a client encodes them."""
    return memoryview(CONTENTS(**{field: values}).SerializeToString())


def values_of(datatype: str) -> st.SearchStrategy[Any]:
    """Return all values of a datatype."""
    if datatype == "BYTES":
        return st.binary(max_size=300)
    if datatype == "BOOL":
        return st.booleans()
    if datatype.startswith("FP"):
        return st.floats(width=int(datatype[2:]), allow_nan=False)  # type: ignore[arg-type]  # 32 or 64
    bounds = np.iinfo(datatype.lower())
    return st.integers(int(bounds.min), int(bounds.max))


@pytest.mark.parametrize("datatype", FIELDS)
@given(data=st.data(), part=st.integers(1, 64))
@settings(max_examples=40, deadline=None)
def test_typed_contents_are_what_protobuf_wrote(datatype: str, data: st.DataObject, part: int) -> None:
    """Numbers and strings that protobuf has written come out as raw bytes, whatever part is read at once."""
    values = data.draw(st.lists(values_of(datatype), max_size=40))
    kind, whole = Datatype(datatype), varints._PART
    varints._PART = part + 9  # at least one whole number
    try:
        raw = raw_contents("x", "m", kind, (len(values),), typed(FIELDS[datatype], values))
    finally:
        varints._PART = whole
    expected = join_strings(values, "x") if datatype == "BYTES" else np.array(values, dtype_of(kind)).tobytes()
    assert bytes(raw) == expected


def test_numbers_in_fields_of_their_own() -> None:
    """Unpacked numbers, and numbers in several packed fields, are read as protobuf reads them."""
    packed = bytes(typed("int64_contents", [5, -1]))
    unpacked = b"\x18\x07\x18" + b"\xff" * 9 + b"\x01"
    raw = raw_contents("x", "m", Datatype.INT64, (4,), memoryview(packed + unpacked))
    assert np.frombuffer(raw, "<i8").tolist() == [5, -1, 7, -1]
    floats = b"\x35" + np.float32(1.5).tobytes()
    assert np.frombuffer(raw_contents("x", "m", Datatype.FP32, (1,), memoryview(floats)), "<f4").tolist() == [1.5]


@pytest.mark.parametrize(
    ("datatype", "field", "values", "shape", "text"),
    [
        ("FP16", "fp32_contents", [1.0], (1,), "of type 'FP32', expected datatype 'FP16'"),
        ("INT8", "int_contents", [300], (1,), "beyond INT8"),
        ("UINT16", "uint_contents", [1 << 16], (1,), "beyond UINT16"),
        ("INT32", "int_contents", [1, 2, 3], (2,), "unexpected additional input data for model 'm'"),
        ("BYTES", "bytes_contents", [b"a", b"b"], (1,), "unexpected additional input data for model 'm'"),
        ("INT32", "int64_contents", [1], (1,), "of type 'INT64', expected datatype 'INT32'"),
        ("BYTES", "fp32_contents", [1.0], (1,), "of type 'FP32', expected datatype 'BYTES'"),
    ],
)
def test_contents_that_are_refused(
    datatype: str, field: str, values: list[Any], shape: tuple[int, ...], text: str
) -> None:
    """Contents of another datatype, beyond their range or beyond the shape are refused, with Triton's words first."""
    with pytest.raises(BadTensor, match=text):
        raw_contents("x", "m", Datatype(datatype), shape, typed(field, values))


BROKEN = {
    "number without an end": b"\x08",
    "field beyond the end": b"\x0a\x05\x01",
    "number of 12 bytes": b"\x10" + b"\xff" * 11,
    "last number without an end": b"\x12\x01\xff",
    "packed number of 11 bytes": b"\x12\x0b" + b"\xff" * 10 + b"\x01",
    "group": b"\x13",
    "field 0": b"\x00\x01",
}


@pytest.mark.parametrize("octets", BROKEN.values(), ids=BROKEN)
def test_contents_that_are_no_message(octets: bytes) -> None:
    """Broken bytes are an error of the request."""
    with pytest.raises(InvalidRequest):
        raw_contents("x", "m", Datatype.INT32, (8,), memoryview(octets))


@given(octets=st.binary(max_size=200), datatype=st.sampled_from(list(Datatype)))
@settings(max_examples=300, deadline=None)
def test_any_contents_end_in_raw_bytes_or_a_known_error(octets: bytes, datatype: Datatype) -> None:
    """No bytes cause anything but the errors that have a status."""
    try:
        raw_contents("x", "m", datatype, (4,), memoryview(octets))
    except MqinferError:
        return


def request_bytes(*raws: bytes, **fields: Any) -> bytes:
    """Return a request with these raw tensors."""
    message = message_class("inference.ModelInferRequest")(model_name="m", id="one", **fields)
    for place, raw in enumerate(raws):
        message.inputs.add(name=f"x{place}", datatype="UINT8", shape=[len(raw)])
        message.raw_input_contents.append(raw)
    octets: bytes = message.SerializeToString()
    return octets


def test_large_requests_and_small_ones_are_read_alike() -> None:
    """The id, the order of the inputs, parameters and outputs of a large request are those of a small one."""
    for size in (10, LARGE * 2):
        raws = [bytes([number]) * (size + number) for number in range(3)]
        octets = request_bytes(*raws, outputs=[{"name": "y"}], parameters={"priority": {"uint64_param": 2}})
        request = read_request(octets)
        call = read_call(request, CALLER)
        assert request.message.id == "one"
        assert [bytes(tensor.data) for tensor in call.inputs] == raws
        assert (call.model, call.priority, [output.name for output in call.outputs]) == ("m", 2, ["y"])
        assert [tensor.name for tensor in call.inputs] == ["x0", "x1", "x2"]


def test_many_small_typed_inputs_of_a_large_request() -> None:
    """As many inputs as are accepted, each of some kilobytes of contents, are read in order."""
    inputs = [
        {"name": f"x{number}", "datatype": "FP32", "shape": [750], "contents": [bytes(floats)]}
        for number, floats in ((number, typed("fp32_contents", [number] * 750)) for number in range(64))
    ]
    octets = message_class("inference.ModelInferRequest")(model_name="m", inputs=inputs).SerializeToString()
    assert len(octets) > LARGE
    tensors = read_call(read_request(octets), CALLER).inputs
    assert [(tensor.name, np.frombuffer(tensor.data, "<f4")[-1]) for tensor in tensors] == [
        (f"x{number}", number) for number in range(64)
    ]


def test_large_tensors_are_not_copied_on_the_way_in() -> None:
    """A raw tensor of 16 MB, and one of typed FP32, take no memory beside the request's bytes."""
    raw = request_bytes(bytes(16 << 20))
    message = message_class("inference.ModelInferRequest")(model_name="m")
    floats = typed("fp32_contents", np.zeros(4 << 20, "<f4").tolist())
    message.inputs.add(name="x", datatype="FP32", shape=[4 << 20], contents=[bytes(floats)])
    for octets in (raw, message.SerializeToString()):
        tracemalloc.start()
        call = read_call(read_request(octets), CALLER)
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert most < 1 << 20
        assert memoryview(call.inputs[0].data).nbytes == 16 << 20
        assert memoryview(call.inputs[0].data).obj is octets


def test_large_tensors_are_copied_once_into_the_reply() -> None:
    """A result of 16 MB takes 16 MB: the reply that gRPC gets."""
    result = InferResult("id", Outcome.OK, "m", "1", outputs={"y": np.zeros(4 << 20, "<f4")})
    tracemalloc.start()
    reply = response(result, "one")
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 16 << 20 <= len(reply) <= most < 17 << 20


def test_numbers_beyond_the_bounds_take_no_memory() -> None:
    """Millions of empty tensors, or of names, are refused where the most has been read."""
    for octets in (b"\x3a\x00" * LARGE, b"\x2a\x00" * LARGE, b"\x32\x00" * LARGE, b"\x0a\x00" * LARGE):
        with pytest.raises(LimitExceeded):
            read_request(octets)
    inner = b"\x2a\x00" * LARGE  # contents of one input
    with pytest.raises(LimitExceeded):
        read_request(
            b"\x2a" + bytes([0x80 | len(inner) & 0x7F, 0x80 | len(inner) >> 7 & 0x7F, len(inner) >> 14]) + inner
        )
    with pytest.raises(LimitExceeded):
        raw_contents("x", "m", Datatype.BOOL, (1 << 28,), memoryview(b"\x08\x01" * (1 << 17)))


@given(octets=st.binary(max_size=300), pad=st.sampled_from([0, LARGE]))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_a_request_or_a_known_error(octets: bytes, pad: int) -> None:
    """No bytes, short or long, cause anything but the errors that have a status."""
    try:
        read_call(read_request(octets + b"\x3a\x80\x80\x04" * bool(pad) + bytes(pad)), CALLER)
    except MqinferError:
        return
