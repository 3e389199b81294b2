from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from msgspec.structs import fields

from mqinfer.protocol.datatypes import Array, Datatype, datatype_of, from_raw, little_endian, raw_bytes
from mqinfer.protocol.decoding import MAX_JSON_BYTES
from mqinfer.protocol.errors import BadEnvelope, BadTensor, InvalidRequest, LimitExceeded
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.oip_json import decode_request, decode_response, encode_response
from mqinfer.protocol.types import (
    Capture,
    EncodedTensor,
    ErrorInfo,
    InferRequest,
    InferResponse,
    Outcome,
    RequestedOutput,
    Timings,
    WorkerLoad,
)
from tests.json_requests import encode_request

text_arrays = hnp.arrays(np.object_, hnp.array_shapes(min_dims=0, min_side=0, max_dims=3), elements=st.text(max_size=5))
number_arrays = st.sampled_from(["?", "u1", "<u2", ">u4", "u8", "i1", "i2", ">i4", "i8", "<f4", ">f8"]).flatmap(
    lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, min_side=0, max_dims=3))
)
half_arrays = hnp.arrays("<f2", hnp.array_shapes(max_dims=2))


def tensor_of(name: str, array: Array) -> EncodedTensor:
    """Make a raw tensor."""
    return EncodedTensor(name, datatype_of(array.dtype), array.shape, "raw", raw_bytes(name, little_endian(array)))


def array_of(tensor: EncodedTensor) -> Array:
    """Make the array of a raw tensor."""
    assert tensor.encoding == "raw"
    return from_raw(tensor.name, tensor.datatype, tensor.shape, tensor.data)


def same(found: Array, expected: Array) -> bool:
    """Compare arrays, NaN equal to NaN, strings by their UTF-8."""
    if expected.dtype.kind == "O":
        wanted = [element.encode() for element in expected.ravel().tolist()]
        return found.shape == expected.shape and list(found.ravel()) == wanted
    return bool(np.array_equal(found, expected, equal_nan=expected.dtype.kind == "f"))


def body(**changes: Any) -> bytes:
    """Make a request of one FP32 tensor with some of its fields changed; None leaves a field out."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "data": [1.0, 2.0]} | changes
    return json.dumps({"inputs": [{key: value for key, value in tensor.items() if value is not None}]}).encode()


@given(number_arrays | text_arrays, st.booleans())
def test_request_round_trip(array: Array, binary: bool) -> None:  # noqa: FBT001 -- drawn by Hypothesis
    """Every datatype survives as JSON and in the binary tail, NaN and infinities too."""
    payload, length = encode_request(InferRequest("r", "m", (tensor_of("x", array),)), binary=binary)
    found = decode_request(payload, "m", header_length=length).inputs[0]
    assert found.datatype is datatype_of(array.dtype)
    assert same(array_of(found), array)


@given(number_arrays | text_arrays, st.booleans())
def test_reply_round_trip(array: Array, binary: bool) -> None:  # noqa: FBT001 -- drawn by Hypothesis
    """The same for outputs."""
    payload, length = encode_response(InferResponse("r", "m", "1"), arrays={"y": array}, binary=binary)
    assert same(array_of(decode_response(payload, length).outputs[0]), array)


@given(half_arrays)
def test_fp16_goes_only_by_the_tail(array: Array) -> None:
    """The protocol has no JSON form of FP16: the error says what to do, and the tail works."""
    request = InferRequest("r", "m", (tensor_of("x", array),))
    with pytest.raises(BadTensor, match="binary tail"):
        encode_request(request)
    payload, length = encode_request(request, binary=True)
    assert same(array_of(decode_request(payload, "m", header_length=length).inputs[0]), array)


def test_strings_that_are_no_utf8_go_only_by_the_tail() -> None:
    """JSON holds Unicode."""
    with pytest.raises(BadTensor, match="UTF-8"):
        encode_response(InferResponse("r", "m"), arrays={"y": np.array([b"\xff"], object)}, binary=False)


def test_fields_of_a_request_survive() -> None:
    """Parameters of the protocol land in the request's fields, others stay parameters."""
    sent = InferRequest(
        "r1",
        "m",
        (),
        "3",
        outputs=(RequestedOutput("y"),),
        timeout_us=5_000_000,
        priority=2,
        attempt=3,
        response_topic="a/b",
        capture=Capture("cam", 7, 123, "optical"),
        parameters={"x": 1.5, "binary_data_output": True},
    )
    payload, length = encode_request(sent)
    found = decode_request(payload, "m", "3")
    assert length is None
    for name in [field.name for field in fields(InferRequest)]:
        assert getattr(found, name) == getattr(sent, name), name


def test_fields_of_a_reply_survive() -> None:
    """What mqinfer adds stands under `parameters`, where other readers of the protocol expect extensions."""
    sent = InferResponse(
        "r1",
        "m",
        "3",
        model_hash="sha256:00",
        worker="w",
        stage="edge",
        timings=Timings(1, 2, 3, 4, 5, 6, 7, 8),
        load=WorkerLoad(2, 900),
        attempt=2,
        capture=Capture("cam", 7, 123, "optical"),
        parameters={"x": "y"},
    )
    payload, length = encode_response(sent, arrays={}, binary=True)
    found = decode_response(payload, length)
    for name in [field.name for field in fields(InferResponse)]:
        assert getattr(found, name) == getattr(sent, name), name
    parameters = json.loads(payload)["parameters"]
    assert parameters["outcome"] == "ok"
    assert parameters["timings"]["inference"] == 6


def test_an_error_has_the_protocols_form() -> None:
    """A reply without a result is `{"error": ...}`, with its outcome and code under `parameters`."""
    sent = InferResponse("r1", "m", outcome=Outcome.EXPIRED, error=ErrorInfo("expired", "too late"))
    payload, length = encode_response(sent, arrays={}, binary=False)
    body = json.loads(payload)
    assert (body["error"], body["id"]) == ("too late", "r1")
    assert body["parameters"] == {"outcome": "expired", "error_code": "expired"}
    found = decode_response(payload, length)
    assert (found.outcome, found.error) == (sent.outcome, sent.error)


def test_a_foreign_servers_error_is_read() -> None:
    """A bare `{"error": ...}` of the REST protocol is an error too."""
    found = decode_response(b'{"error": "no such model"}')
    assert (found.outcome, found.error) == (Outcome.ERROR, ErrorInfo("internal", "no such model"))


@pytest.mark.parametrize("data", [[1, 2, 3, 4], [[1, 2], [3, 4]]])
def test_data_may_be_flat_or_nested(data: list[Any]) -> None:
    """Both forms of the protocol give the same tensor; whole numbers will do for floats."""
    found = decode_request(body(shape=[2, 2], data=data), "m").inputs[0]
    assert array_of(found).tolist() == [[1.0, 2.0], [3.0, 4.0]]


def test_bare_nan_literals_are_read() -> None:
    """Python's `json` writes NaN and Infinity bare; such requests are understood."""
    found = array_of(decode_request(body(data=[float("nan"), float("-inf")]), "m").inputs[0])
    assert np.isnan(found[0])
    assert found[1] == -np.inf


def test_an_output_that_wants_binary_data_asks_for_the_tail() -> None:
    """A per-output `binary_data` (Triton's clients send it) counts for the whole reply."""
    outputs = [{"name": "y", "parameters": {"binary_data": True}}]
    request = decode_request(json.dumps({"inputs": [], "outputs": outputs}).encode(), "m")
    assert request.parameters == {"binary_data_output": True}
    assert request.outputs == (RequestedOutput("y"),)


def test_encoded_tensors_travel_in_the_tail() -> None:
    """A codec's bytes have no JSON form, and are read from the tail, with the encoding's name."""
    tensor = EncodedTensor("x", Datatype.UINT8, (1,), "lz4", b"abc", {"more": 1})
    payload, length = encode_request(InferRequest("r", "m", (tensor,)), binary=True)
    found = decode_request(payload, "m", header_length=length).inputs[0]
    assert (found.encoding, bytes(found.data), found.parameters) == ("lz4", b"abc", {"more": 1})


BAD_BODIES: dict[str, tuple[bytes, int | None, type[InvalidRequest], str]] = {
    "empty": (b"", None, BadEnvelope, "0 bytes"),
    "no JSON": (b"hello", None, BadEnvelope, "not JSON"),
    "not UTF-8": (b'{"id": "\xff"}', None, BadEnvelope, "UTF-8"),
    "an array": (b"[]", None, BadEnvelope, "must be a map, not an array"),
    "deep": (b"[" * 200_000, None, BadEnvelope, "JSON"),
    "huge integer": (b'{"id": ' + b"9" * 5000 + b"}", None, BadEnvelope, "JSON"),
    "half a surrogate": (b'{"id": "\\ud800", "inputs": []}', None, BadEnvelope, "Unicode"),
    "half a surrogate in a parameter": (b'{"parameters": {"x": "a\\uDFFF"}}', None, BadEnvelope, "Unicode"),
    "half a surrogate, not escaped": (b'{"id": "\xed\xa0\x80"}', None, BadEnvelope, "UTF-8"),
    "UTF-16": ('{"id": "r"}'.encode("utf-16"), None, BadEnvelope, "UTF-8"),
    "huge timeout": (b'{"parameters": {"timeout": ' + b"9" * 400 + b"}}", None, BadEnvelope, "timeout"),
    "id a number": (b'{"id": 5}', None, BadEnvelope, "'id'"),
    "inputs a map": (b'{"inputs": {}}', None, BadEnvelope, "inputs"),
    "no shape": (body(shape=None), None, BadTensor, "shape|data"),
    "no data": (body(data=None), None, BadTensor, "elements"),
    "data a string": (body(data="1,2"), None, BadEnvelope, "data"),
    "too few": (body(data=[1]), None, BadTensor, "2 elements"),
    "ragged": (body(shape=[2, 2], data=[[1, 2, 3], [4]]), None, BadTensor, "nested"),
    "half nested": (body(shape=[2, 2], data=[[1, 2], 3]), None, BadTensor, "nested"),
    "nested too deep": (body(data=[[1], [2]]), None, BadTensor, "number"),
    "strings for numbers": (body(data=["1", "2"]), None, BadTensor, "NaN"),
    "booleans for numbers": (body(data=[True, False]), None, BadTensor, "number"),
    "null": (body(data=[None, 1]), None, BadTensor, "number"),
    "too large for FP32": (body(data=[1e300, 1]), None, BadTensor, "fit"),
    "too large for FP64": (body(datatype="FP64", data=[10**400, 1]), None, BadTensor, "fit"),
    "too large for INT8": (body(datatype="INT8", data=[128, 1]), None, BadTensor, "-128 to 127"),
    "negative UINT8": (body(datatype="UINT8", data=[-1, 1]), None, BadTensor, "0 to 255"),
    "fractions for integers": (body(datatype="INT8", data=[1.0, 2.5]), None, BadTensor, "integer"),
    "numbers for booleans": (body(datatype="BOOL", data=[0, 1]), None, BadTensor, "true or false"),
    "numbers for strings": (body(datatype="BYTES", data=[0, 1]), None, BadTensor, "string"),
    "FP16": (body(datatype="FP16"), None, BadTensor, "binary tail"),
    "unknown datatype": (body(datatype="BF16"), None, BadTensor, "BF16"),
    "overflow": (body(shape=[2**40, 2**40]), None, LimitExceeded, "tensor_bytes"),
    "huge axis": (body(shape=[10**300]), None, BadTensor, "2\\*\\*63"),
    "raw single input": (b"abcd", 0, BadEnvelope, "not supported"),
    "negative length": (b"{}", -1, BadEnvelope, "-1"),
    "length beyond": (b"{}", 3, BadEnvelope, "3"),
    "tail that nobody wants": (b"{}ab", 2, BadEnvelope, "2 bytes are left"),
    "no tail": (body(parameters={"binary_data_size": 8}), None, BadTensor, "Inference-Header-Content-Length"),
    "negative size": (body(parameters={"binary_data_size": -8}), None, BadEnvelope, "binary_data_size"),
    "long": (b" " * (MAX_JSON_BYTES + 1), None, LimitExceeded, "binary"),
}


def test_whole_surrogate_pairs_and_a_byte_order_mark_are_fine() -> None:
    """What JSON libraries write for an emoji, and what Windows puts before a text."""
    text = b'\xef\xbb\xbf{"id": "a\\ud83d\\ude00", "parameters": {"note": "\\\\ud800"}}'
    found = decode_request(text, "m")
    assert (found.id, found.parameters) == ("a\N{GRINNING FACE}", {"note": "\\ud800"})


@pytest.mark.parametrize("case", BAD_BODIES)
def test_bad_bodies_get_a_typed_error_that_names_the_fault(case: str) -> None:
    """Each fault has its class, and a message that says what and where."""
    payload, length, error, message = BAD_BODIES[case]
    with pytest.raises(error, match=message):
        decode_request(payload, "m", header_length=length)


def test_limits_hold() -> None:
    """A receiver's own limits hold."""
    for limits in (Limits(payload_bytes=5), Limits(tensors=0), Limits(tensor_bytes=7), Limits(dimensions=0)):
        with pytest.raises(LimitExceeded):
            decode_request(body(), "m", limits=limits)
