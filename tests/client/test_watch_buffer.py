"""The buffer of a watch and the reading of messages, without a link."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mqinfer.broker.link import Message
from mqinfer.client.watching.buffer import Buffer
from mqinfer.client.watching.seen import (
    PREVIEW_BYTES,
    DropReason,
    Reader,
    SeenPreview,
    SeenResult,
    arrival_of,
    drop_reason,
)
from mqinfer.codecs import encode_tensor
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.envelope import encode_response
from mqinfer.protocol.errors import BadEnvelope, BadTensor, BadTopic, Corrupted, LimitExceeded, MqinferError
from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Capture, EncodedTensor, InferResponse, Outcome

T = Topics()
X = np.arange(8, dtype=np.float32).reshape(2, 4)
REPLY = InferResponse(
    "r1", "seg", "3", outputs=(encode_tensor("y", X, "lz4"),), worker="gpu.0", capture=Capture("/camera", 7, 123, "c")
)
PICTURE = np.full((12, 16, 3), 200, np.uint8)
PREVIEW = InferResponse(
    "p1",
    "seg",
    outputs=(encode_tensor("preview", PICTURE, "jpeg"),),
    capture=Capture("/camera", 7, 123, "c"),
    parameters={"picture_width": 64, "picture_height": 48},
)
RESULT_TOPIC, PREVIEW_TOPIC = T.result("seg", "car-1", "r1"), T.preview("car-1", "/camera")


def reader(model: str | None = None, limits: Limits = DEFAULT_LIMITS) -> Reader:
    """A reader of the default root."""
    return Reader(T, model, limits)


def read(topic: str, payload: bytes, model: str | None = None, **properties: object) -> SeenResult | SeenPreview | None:
    """Read one message."""
    return reader(model).read(arrival_of(Message(topic, payload, **properties), 5))  # type: ignore[arg-type]


SIZES = st.integers(0, 400)
STEPS = st.lists(
    st.one_of(
        SIZES.map(lambda size: ("put", size)),
        st.sampled_from([("take", True), ("take", False), *(("take", reason) for reason in DropReason)]),
        st.sampled_from([("refuse", DropReason.RETAINED), ("ignore", None)]),
    ),
    max_size=60,
)


@given(STEPS, st.integers(1, 6), st.integers(1, 4000))
def test_the_books_are_right_at_any_time(steps: list[tuple[str, object]], most: int, most_bytes: int) -> None:
    """Whatever comes and is taken: both bounds hold, the oldest go first, and each message is in one column."""
    buffer = Buffer(most, most_bytes)
    expected: list[int] = []
    for number, (step, value) in enumerate(steps):
        if step == "put":
            assert isinstance(value, int)
            arrival = arrival_of(Message("t", bytes(value)), number)
            buffer.put(arrival)
            if arrival.size <= most_bytes:
                expected.append(number)
        elif step == "refuse":
            buffer.refuse(DropReason.RETAINED)
        elif step == "ignore":
            buffer.ignore()
        elif (taken := buffer.take()) is not None:
            assert taken.received_ns == expected[-buffer.counters().buffered]  # the oldest that is left
            buffer.settle(value)  # type: ignore[arg-type]
            expected = expected[len(expected) - len(buffer) :]
        expected = expected[len(expected) - len(buffer) :]
        counters = buffer.counters()
        assert len(buffer) <= most
        assert counters.buffered_bytes <= most_bytes
        gone = counters.yielded + counters.ignored + counters.buffered + sum(counters.dropped.values())
        assert counters.received == gone


def test_what_is_being_read_counts_as_buffered() -> None:
    """Between taking and settling no message is missing from the books."""
    buffer = Buffer(2, 10_000)
    buffer.put(arrival_of(Message("t", b""), 0))
    assert buffer.take()
    assert (buffer.counters().received, buffer.counters().buffered, len(buffer)) == (1, 1, 0)
    buffer.settle(outcome=True)
    assert (buffer.counters().yielded, buffer.counters().buffered) == (1, 0)


def test_a_message_above_the_whole_buffer() -> None:
    """It is dropped, and does not push the others out."""
    buffer = Buffer(8, 2000)
    buffer.put(arrival_of(Message("t", bytes(100)), 0))
    buffer.put(arrival_of(Message("t", bytes(5000)), 1))
    assert buffer.counters().dropped == {DropReason.TOO_LARGE: 1}
    assert len(buffer) == 1


def test_properties_that_nothing_reads_take_no_memory() -> None:
    """Ten thousand user properties are left out; those that are kept count."""
    many = tuple((f"name-{number}", "x" * 50) for number in range(10_000))
    arrival = arrival_of(Message("t", b"abc", user_properties=(*many, ("xxh3", "0" * 16))), 0)
    assert arrival.message.user_properties == (("xxh3", "0" * 16),)
    assert arrival.size < 2000
    floods = arrival_of(Message("t", b"abc", user_properties=(("xxh3", "0" * 16),) * 10_000), 0)
    assert floods.size > 10_000 * 16


def test_a_result() -> None:
    """It has its client, its request, and a result as the client gets it; tensors are decoded on demand."""
    payload = encode_response(REPLY)
    seen = read(RESULT_TOPIC, payload, user_properties=(checksum([payload]),))
    assert isinstance(seen, SeenResult)
    assert (seen.client, seen.request_id, seen.received_ns) == ("car-1", "r1", 5)
    assert seen.response.outputs[0].encoding == "lz4"
    result = seen.decode()
    assert (result.outcome, result.worker, result.capture) == (Outcome.OK, "gpu.0", REPLY.capture)
    np.testing.assert_array_equal(result.outputs["y"], X)


def test_a_result_in_json() -> None:
    """Clients in other languages ask in JSON, and get their replies in it."""
    payload = (
        b'{"id": "r1", "model_name": "seg", "model_version": "3", "outputs": '
        b'[{"name": "y", "datatype": "FP32", "shape": [2], "data": [1.5, 2.5]}]}'
    )
    for how in ({}, {"content_type": "application/json"}):
        seen = read(RESULT_TOPIC, payload, **how)
        assert isinstance(seen, SeenResult)
        np.testing.assert_array_equal(seen.decode().outputs["y"], np.array([1.5, 2.5], np.float32))


def test_tensors_that_cannot_be_decoded() -> None:
    """The result says so, as that of a client does; nothing is raised."""
    broken = EncodedTensor("y", Datatype.FP32, (2, 4), "lz4", b"no lz4 block")
    seen = read(RESULT_TOPIC, encode_response(replace(REPLY, outputs=(broken,))))
    assert isinstance(seen, SeenResult)
    result = seen.decode()
    assert (result.outcome, result.outputs) == (Outcome.ERROR, {})
    assert result.error
    assert result.error.code == "bad_encoding"


def test_a_preview() -> None:
    """It has the size of the picture that the model got, and its own pixels on demand."""
    seen = read(PREVIEW_TOPIC, encode_response(PREVIEW), "seg")
    assert isinstance(seen, SeenPreview)
    assert (seen.client, seen.picture, seen.response.capture.sequence) == ("car-1", (64, 48), 7)
    assert seen.decode().shape == (12, 16, 3)
    assert seen.tensor.encoding == "jpeg"
    assert read(PREVIEW_TOPIC, encode_response(PREVIEW), "other") is None


@pytest.mark.parametrize(
    ("topic", "reply", "expected"),
    [
        (T.result("other", "car-1", "r1"), REPLY, BadTopic),
        (T.result("seg", "car-1", "r2"), REPLY, BadTopic),
        ("mqinfer/v1/results/seg/Car 1/r1", REPLY, BadTopic),
        ("mqinfer/v1/results/seg/car-1/r1/more", REPLY, BadTopic),
        ("mqinfer/v1/clients/car-1/state/x", PREVIEW, BadTopic),
        ("mqinfer/v1/clients/CAR/preview/x", PREVIEW, BadTopic),
        (PREVIEW_TOPIC, replace(PREVIEW, outputs=()), BadTensor),
        (PREVIEW_TOPIC, replace(PREVIEW, outputs=(encode_tensor("preview", PICTURE, "png"),)), BadTensor),
        (PREVIEW_TOPIC, replace(PREVIEW, outputs=(encode_tensor("preview", X, "raw"),)), BadTensor),
        (PREVIEW_TOPIC, replace(PREVIEW, capture=Capture("/camera")), BadTensor),
        (PREVIEW_TOPIC, replace(PREVIEW, parameters={}), BadTensor),
        (PREVIEW_TOPIC, replace(PREVIEW, parameters={"picture_width": 0, "picture_height": 5}), BadTensor),
        (PREVIEW_TOPIC, replace(PREVIEW, parameters={"picture_width": "1", "picture_height": 5}), BadTensor),
    ],
)
def test_what_breaks_the_rules(topic: str, reply: InferResponse, expected: type[MqinferError]) -> None:
    """Topic and payload must agree, and a preview is what the protocol says."""
    with pytest.raises(expected):
        read(topic, encode_response(reply))


def test_what_claims_too_much() -> None:
    """A mask that claims 100 GB, and a preview of more pixels than previews have, are refused before any memory."""
    huge = EncodedTensor("mask", Datatype.UINT8, (1, 320_000, 320_000), "mask", b"1234")
    with pytest.raises(LimitExceeded):
        read(RESULT_TOPIC, encode_response(replace(REPLY, outputs=(huge,))))
    large = EncodedTensor("preview", Datatype.UINT8, (4000, 4000, 3), "jpeg", b"1234")
    with pytest.raises(LimitExceeded):
        read(PREVIEW_TOPIC, encode_response(replace(PREVIEW, outputs=(large,))))


def test_damage() -> None:
    """A payload that differs from its checksum is counted as corrupted, whatever it looks like."""
    payload = encode_response(REPLY)
    with pytest.raises(Corrupted) as raised:
        read(RESULT_TOPIC, payload[:-1] + b"\1", user_properties=(checksum([payload]),))
    assert drop_reason(raised.value) is DropReason.CORRUPTED


@pytest.mark.parametrize("length", ["x", "-1", "9" * 30, "٣", "10000"])
def test_a_wrong_header_length(length: str) -> None:
    """The length of the JSON part is a number within the payload."""
    with pytest.raises(BadEnvelope):
        read(RESULT_TOPIC, b'{"id": "r1"}', user_properties=(("Inference-Header-Content-Length", length),))


@given(st.binary(max_size=300), st.sampled_from([RESULT_TOPIC, PREVIEW_TOPIC]), st.booleans())
def test_any_bytes(noise: bytes, topic: str, is_cut: bool) -> None:  # noqa: FBT001
    """Whatever comes is a result or one error of ours."""
    whole = encode_response(REPLY if topic == RESULT_TOPIC else PREVIEW)
    payload = whole[: len(noise)] + noise if is_cut else noise
    seen = None
    with suppress(MqinferError):
        seen = read(topic, payload)
    assert seen is None or seen.client == "car-1"


def test_what_is_refused_as_it_comes() -> None:
    """What the broker had kept, and previews above their bound; a result of that size is welcome."""
    each = reader()
    assert each.refuse(arrival_of(Message(RESULT_TOPIC, b"x", retain=True), 0)) is DropReason.RETAINED
    assert each.refuse(arrival_of(Message(PREVIEW_TOPIC, bytes(PREVIEW_BYTES + 1)), 0)) is DropReason.TOO_LARGE
    assert each.refuse(arrival_of(Message(PREVIEW_TOPIC, bytes(PREVIEW_BYTES)), 0)) is None
    assert each.refuse(arrival_of(Message(RESULT_TOPIC, bytes(PREVIEW_BYTES + 1)), 0)) is None
    assert each.is_control(T.control_result("ann", "r1"))
    assert not each.is_control(RESULT_TOPIC)


def test_filters() -> None:
    """A filter covers what is asked for."""
    assert reader().result_filter(None) == "mqinfer/v1/results/+/+/+"
    assert reader("seg").result_filter("car-1") == "mqinfer/v1/results/seg/car-1/+"
    assert reader().preview_filter(None) == T.previews.filter()
    assert reader().preview_filter("car-1") == "mqinfer/v1/clients/car-1/preview/+"
