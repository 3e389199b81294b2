from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.envelope import (
    ALIGNMENT,
    MAGIC,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    request_pieces,
    response_pieces,
)
from mqinfer.protocol.errors import BadEnvelope, BadTensor, InvalidRequest, LimitExceeded
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.types import (
    NO_CAPTURE,
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

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
whole = st.integers(0, 2**63 - 1)
scalars = st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | texts
further = st.dictionaries(st.from_regex(r"x_[a-z]{1,8}", fullmatch=True), scalars, max_size=3)
captures = st.builds(Capture, texts, st.none() | whole, st.none() | st.integers(-(2**63), 2**63 - 1), texts)


@st.composite
def tensors(draw: st.DrawFn) -> tuple[EncodedTensor, ...]:
    """Draw up to four tensors with names of their own; the envelope does not look into an encoded one's bytes."""
    names = draw(st.lists(texts, unique=True, max_size=4))
    return tuple(
        EncodedTensor(
            name,
            draw(st.sampled_from(Datatype)),
            tuple(draw(st.lists(st.integers(0, 9), max_size=4))),
            draw(st.sampled_from(["raw", "lz4", "jpeg", "of-a-later-release"])),
            draw(st.binary(max_size=200)),
            draw(further),
        )
        for name in names
    )


requests = st.builds(
    InferRequest,
    id=texts,
    model_name=texts,
    inputs=tensors(),
    model_version=st.none() | texts,
    outputs=st.lists(
        st.builds(RequestedOutput, texts, st.none() | st.just("lz4"), st.integers(0, 2**63 - 1)), max_size=2
    ).map(tuple),
    timeout_us=st.none() | whole,
    priority=st.integers(0, 9),
    attempt=st.integers(1, 9),
    response_topic=st.none() | texts,
    capture=captures,
    parameters=further,
)
responses = st.builds(
    InferResponse,
    id=texts,
    model_name=texts,
    model_version=texts,
    outcome=st.sampled_from(Outcome),
    outputs=tensors(),
    error=st.none() | st.builds(ErrorInfo, texts, texts),
    model_hash=texts,
    worker=texts,
    stage=texts,
    timings=st.builds(Timings, *[whole] * 8),
    load=st.builds(WorkerLoad, whole, whole),
    attempt=st.integers(1, 9),
    capture=captures,
    parameters=further,
)


def plain(message: InferRequest | InferResponse) -> list[Any]:
    """List everything that a message holds, comparably."""
    values = {field.name: getattr(message, field.name) for field in fields(message)}
    found = values.pop("inputs" if isinstance(message, InferRequest) else "outputs")
    parts = [[getattr(t, name) for name in ("name", "datatype", "shape", "encoding", "parameters")] for t in found]
    return [values, parts, [bytes(tensor.data) for tensor in found]]


def a_tensor(**changes: Any) -> EncodedTensor:
    """Make a tensor of two floats."""
    return replace(EncodedTensor("x", Datatype.FP32, (2,), "raw", np.array([1, 2], np.float32).tobytes()), **changes)


def a_request(**changes: Any) -> InferRequest:
    """Make a request with that tensor."""
    return replace(InferRequest("r1", "m", (a_tensor(),)), **changes)


DEEP: list[Any] = []
for _ in range(95):
    DEEP = [DEEP]


def payload_of(header: object, tail: bytes = b"") -> bytes:
    """Make a payload around any header."""
    return packed(msgpack.packb(header), tail)


def packed(header: bytes, tail: bytes = b"") -> bytes:
    """Make a payload around the bytes of a header."""
    start = MAGIC + len(header).to_bytes(4, "little") + header
    return start + bytes(-len(start) % ALIGNMENT) + tail + bytes(-len(tail) % ALIGNMENT)


def described(**changes: Any) -> dict[str, Any]:
    """Make the header of a request whose only tensor has some fields changed; None leaves a field out."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}} | changes
    given = {key: value for key, value in tensor.items() if value is not None}
    return {"id": "r1", "model_name": "m", "inputs": [given]}


@given(requests)
def test_request_round_trip(request: InferRequest) -> None:
    """A request loses nothing, and its payload is a whole number of 64-byte blocks."""
    payload = encode_request(request)
    assert len(payload) % ALIGNMENT == 0
    assert plain(decode_request(payload)) == plain(request)


@given(responses)
def test_response_round_trip(response: InferResponse) -> None:
    """A reply loses nothing."""
    assert plain(decode_response(encode_response(response))) == plain(response)


@pytest.mark.parametrize("size", [0, 1, 63, 64, 65, 1000])
def test_tensors_start_at_multiples_of_64_and_are_views(size: int) -> None:
    """Decoding copies no tensor, and each starts where SIMD code likes it."""
    data = np.arange(size, dtype=np.uint8)
    inputs = tuple(EncodedTensor(name, Datatype.UINT8, (size,), "raw", data.data) for name in "ab")
    payload = encode_request(a_request(inputs=inputs))
    whole_payload = np.frombuffer(payload, np.uint8)
    for tensor in decode_request(payload).inputs:
        view = np.frombuffer(tensor.data, np.uint8)
        assert isinstance(tensor.data, memoryview)
        assert tensor.data.readonly
        assert view.tobytes() == data.tobytes()
        if size:
            offset = view.__array_interface__["data"][0] - whole_payload.__array_interface__["data"][0]
            assert offset % ALIGNMENT == 0
            assert np.shares_memory(view, whole_payload)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_buffer_is_decoded_read_only(kind: Callable[[bytes], bytes | bytearray | memoryview]) -> None:
    """Payloads of every buffer type give read-only tensors."""
    found = decode_request(kind(encode_request(a_request()))).inputs[0].data
    assert isinstance(found, memoryview)
    assert found.readonly


def test_wide_memoryviews_are_measured_in_bytes() -> None:
    """A view on floats is as long as its bytes, not as its elements."""
    array = np.array([1, 2], np.float32)
    decoded = decode_request(encode_request(a_request(inputs=(a_tensor(data=array.data),))))
    assert bytes(decoded.inputs[0].data) == array.tobytes()


def test_defaults_do_not_travel() -> None:
    """A bare request's header holds what it must and nothing else."""
    header = msgpack.unpackb(encode_request(a_request())[8:-64].rstrip(b"\0"))
    assert header == {
        "id": "r1",
        "model_name": "m",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2], "parameters": {"binary_data_size": 8}}],
    }


def test_unknown_header_fields_are_ignored() -> None:
    """A newer peer may add fields at every level; parameters that it adds are kept."""
    header = described(parameters={"binary_data_size": 8, "new": 1}, novel={"a": [1]})
    decoded = decode_request(payload_of({**header, "novel": None, "parameters": {"later": True}}, bytes(8)))
    assert decoded.parameters == {"later": True}
    assert decoded.inputs[0].parameters == {"new": 1}


def test_an_absent_capture_is_the_shared_one() -> None:
    """No capture, no object made for it."""
    assert decode_request(encode_request(a_request())).capture is NO_CAPTURE


@pytest.mark.parametrize("name", ["timeout", "source", "response_topic"])
def test_parameters_must_not_hide_fields(name: str) -> None:
    """A further parameter with a field's name is refused when sending, instead of getting lost."""
    with pytest.raises(BadEnvelope, match=name):
        encode_request(a_request(parameters={name: 1}))


def test_tensor_parameters_must_not_hide_fields() -> None:
    """The same for a tensor."""
    with pytest.raises(BadEnvelope, match="encoding"):
        encode_request(a_request(inputs=(a_tensor(parameters={"encoding": "lz4"}),)))


@pytest.mark.parametrize("value", [object(), 1 << 70, "\ud800"])
def test_what_can_not_be_packed_is_refused(value: object) -> None:
    """A value that MessagePack lacks is refused with a typed error."""
    with pytest.raises(BadEnvelope, match="packed"):
        encode_request(a_request(parameters={"x": value}))


def test_a_long_or_odd_error_message_still_travels() -> None:
    """An error message is cut to what receivers accept, and half a surrogate in it does no harm."""
    error = ErrorInfo("internal", "\ud800" + "ä" * 100_000)
    decoded = decode_response(encode_response(InferResponse("r", "m", outcome=Outcome.ERROR, error=error)))
    assert decoded.error is not None
    assert decoded.error.message.startswith("\\ud800ää")
    assert len(decoded.error.message.encode()) <= Limits().string_bytes


GOOD = encode_request(a_request())
BAD_PAYLOADS: dict[str, tuple[bytes, type[InvalidRequest], str]] = {
    "empty": (b"", BadEnvelope, "0 bytes"),
    "magic": (b"MQI2" + GOOD[4:], BadEnvelope, "MQI2"),
    "json": (b'{"inputs": []}' * 9, BadEnvelope, "Content Type"),
    "only the magic": (MAGIC, BadEnvelope, "4 bytes"),
    "header beyond the payload": (MAGIC + b"\xff\xff\xff\xff" + GOOD[8:], BadEnvelope, "4294967295"),
    "truncated": (GOOD[:-1], BadEnvelope, "truncated"),
    "trailing": (GOOD + bytes(64), BadEnvelope, "trailing"),
    "header is an array": (payload_of([1]), BadEnvelope, "map"),
    "header is empty": (payload_of({}), BadEnvelope, "'id' is missing"),
    "two headers": (packed(msgpack.packb(described()) + b"\x80"), BadEnvelope, "MessagePack"),
    "extension": (payload_of({"id": msgpack.ExtType(5, b"")}), BadEnvelope, "extension"),
    "timestamp": (
        payload_of({"id": msgpack.Timestamp(1)}),
        BadEnvelope,
        "'id' must be a string, not an ext",
    ),
    "binary": (payload_of({"id": b"abc"}), BadEnvelope, "'id' must be a string, not binary"),
    "integer key": (payload_of({1: 2}), BadEnvelope, "every key must be a string"),
    "deep": (packed(b"\x91" * 5000), BadEnvelope, "more than 100 deep"),
    "deep in an unknown field": (packed(b"\x81\xa1x" + b"\x91" * 5000 + b"\x90"), BadEnvelope, "more than 100 deep"),
    "long string": (payload_of(described() | {"id": "x" * 5000}), BadEnvelope, "5000 bytes; at most 4096"),
    "not UTF-8": (packed(b"\x81\xa2id\xa1\xff"), BadEnvelope, "MessagePack"),
    "a datatype of 95 nested arrays": (payload_of(described(datatype=DEEP), bytes(8)), BadTensor, "array"),
    "id a number": (
        payload_of(described() | {"id": 1}, bytes(8)),
        BadEnvelope,
        "'id' must be a string, not an integer",
    ),
    "inputs a map": (payload_of(described() | {"inputs": {}}), BadEnvelope, "'inputs' must be an array"),
    "an input a string": (
        payload_of(described() | {"inputs": ["x"]}),
        BadEnvelope,
        r"'inputs\[0\]' must be a map, not a string",
    ),
    "parameters an array": (payload_of(described() | {"parameters": []}, bytes(8)), BadEnvelope, "parameters"),
    "parameter a map": (payload_of(described() | {"parameters": {"a": {}}}, bytes(8)), BadEnvelope, "'a'"),
    "negative timeout": (payload_of(described() | {"parameters": {"timeout": -1}}, bytes(8)), BadEnvelope, "timeout"),
    "attempt 0": (payload_of(described() | {"parameters": {"attempt": 0}}, bytes(8)), BadEnvelope, "attempt"),
    "true as a number": (
        payload_of(described() | {"parameters": {"priority": True}}, bytes(8)),
        BadEnvelope,
        "boolean",
    ),
    "no name": (payload_of(described(name=None), bytes(8)), BadEnvelope, "name"),
    "no datatype": (payload_of(described(datatype=None), bytes(8)), BadTensor, "datatype"),
    "unknown datatype": (payload_of(described(datatype="FP8"), bytes(8)), BadTensor, "FP8.*FP32"),
    "datatype a list": (payload_of(described(datatype=["FP8"]), bytes(8)), BadTensor, "datatype"),
    "no shape": (payload_of(described(shape=None), bytes(8)), BadTensor, "shape"),
    "shape a number": (payload_of(described(shape=2), bytes(8)), BadTensor, "shape"),
    "negative shape": (payload_of(described(shape=[-1]), bytes(8)), BadTensor, "shape"),
    "fractional shape": (payload_of(described(shape=[2.0]), bytes(8)), BadTensor, "shape"),
    "overflow": (payload_of(described(shape=[2**62, 2**62, 16]), bytes(8)), LimitExceeded, "tensor_bytes"),
    "overflow beside 0": (payload_of(described(shape=[0, 2**62])), LimitExceeded, "tensor_bytes"),
    "many axes": (payload_of(described(shape=[1] * 17), bytes(8)), LimitExceeded, "17 axes"),
    "many strings": (payload_of(described(datatype="BYTES", shape=[10**7]), bytes(8)), LimitExceeded, "BYTES"),
    "no size": (payload_of(described(parameters=None), bytes(8)), BadEnvelope, "binary_data_size"),
    "negative size": (payload_of(described(parameters={"binary_data_size": -8})), BadEnvelope, "binary_data_size"),
    "size beyond the payload": (payload_of(described(parameters={"binary_data_size": 2**60})), BadTensor, "fit"),
    "sizes too small": (payload_of(described(), bytes(65)), BadEnvelope, "trailing"),
    "the same name twice": (
        payload_of(described() | {"inputs": described()["inputs"] * 2}, bytes(128)),
        BadTensor,
        "same",
    ),
}


@pytest.mark.parametrize("case", BAD_PAYLOADS)
def test_bad_payloads_get_a_typed_error_that_names_the_fault(case: str) -> None:
    """Each fault has its class, and a message that says what and where."""
    payload, error, message = BAD_PAYLOADS[case]
    with pytest.raises(error, match=message):
        decode_request(payload)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (Limits(payload_bytes=100), "payload"),
        (Limits(header_bytes=10), "header"),
        (Limits(tensors=0), "inputs"),
        (Limits(dimensions=0), "axes"),
        (Limits(tensor_bytes=7), "tensor_bytes"),
    ],
)
def test_every_limit_is_kept(limits: Limits, message: str) -> None:
    """A receiver's own limits hold."""
    with pytest.raises(LimitExceeded, match=message):
        decode_request(GOOD, limits)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("outcome", "maybe"),
        ("outcome", 1),
        ("timings", {"inference": -1}),
        ("timings", {"inference": 1.5}),
        ("load", []),
        ("error", "text"),
        ("error", {"message": "without a code"}),
        ("worker", 5),
        ("model_hash", None),
    ],
)
def test_bad_fields_of_replies_are_refused(field: str, value: object) -> None:
    """A reply with a wrong field is refused by its name."""
    with pytest.raises(BadEnvelope):
        decode_response(payload_of({"id": "r", "model_name": "m", field: value}))


@given(tensors(), st.sampled_from([0, 40_000]))
def test_pieces_make_the_payload(parts: tuple[EncodedTensor, ...], more: int) -> None:
    """The pieces make the payload; large tensors are not copied, and few bytes come as one piece."""
    parts = tuple(replace(tensor, data=bytes(tensor.data) + bytes(more)) for tensor in parts)
    request, response = InferRequest("i", "m", parts), InferResponse("i", "m", outputs=parts)
    pieces = request_pieces(request)
    assert b"".join(pieces) == encode_request(request)
    assert b"".join(response_pieces(response)) == encode_response(response)
    if more:
        assert all(piece is tensor.data for piece, tensor in zip(pieces[1::2], parts, strict=True))
    else:
        assert len(pieces) == 1
