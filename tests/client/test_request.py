"""What a client publishes, from entries made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import fields, replace

from mqinfer.broker.link import Message
from mqinfer.client.dispatch.lane import Lane
from mqinfer.client.dispatch.pending import PendingRequest
from mqinfer.client.request import Messages
from mqinfer.codecs import encode_tensor
from mqinfer.protocol.checksum import checksum, verify
from mqinfer.protocol.control import Cancellation
from mqinfer.protocol.envelope import CONTENT_TYPE, decode_request
from mqinfer.protocol.errors import BadTopic, Cancelled, Corrupted, Superseded
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import InferRequest, Outcome

ID = "ab" * 16
MESSAGES = Messages("car-1", Topics("site"))
REQUEST = MESSAGES.own(InferRequest("", "model", (encode_tensor("x", np.zeros(3, np.float32)),)), ID, 2.0)


def entry(
    request: InferRequest = REQUEST, *, after: float = 0.0, attempts: int = 1, left: float = 2.0
) -> PendingRequest:
    """An entry that is sent so many seconds after it was asked for, with so many left."""
    made = PendingRequest(request, lambda _: None, submitted=0.0, deadline=after + left, attempts=attempts)
    made.sent = after
    MESSAGES.encode(made)
    return made


def received(message: Message) -> InferRequest:
    """What a worker reads."""
    return decode_request(message.joined().payload)


def content(request: InferRequest) -> dict[str, Any]:
    """All fields of a request, which itself compares as the object that it is."""
    return {field.name: getattr(request, field.name) for field in fields(request)}


def test_a_request_becomes_the_clients_own() -> None:
    """It has an id, its time in microseconds, and a topic for its reply; all else stays."""
    asked = InferRequest("", "model", REQUEST.inputs, model_version="3", priority=2, parameters={"k": 1})
    request = MESSAGES.own(asked, ID, 1.5)
    topic = f"site/results/model/car-1/{ID}"
    assert content(request) == content(asked) | {"id": ID, "timeout_us": 1_500_000, "response_topic": topic}


def test_a_time_that_is_over_is_none() -> None:
    """A deadline in the past leaves no microsecond, and never less."""
    assert MESSAGES.own(REQUEST, ID, -1.0).timeout_us == 0


def test_a_model_without_a_name_of_the_rule_is_refused() -> None:
    """It would end up in a topic."""
    with pytest.raises(BadTopic, match="a/b"):
        MESSAGES.own(replace(REQUEST, model_name="a/b"), ID, 1.0)


@pytest.mark.parametrize("after", [0.0, 0.001])
def test_a_first_sending_at_once_keeps_its_request(after: float) -> None:
    """Within a millisecond nothing is to be said anew."""
    first = entry(after=after)
    message = MESSAGES.publication(first)
    assert first.request is REQUEST
    assert (received(message).attempt, received(message).timeout_us) == (1, 2_000_000)


@pytest.mark.parametrize(("after", "attempts"), [(0.002, 1), (0.0, 2), (1.25, 3)])
def test_a_later_sending_says_its_attempt_and_what_is_left(after: float, attempts: int) -> None:
    """A first one that had to wait, or any further one: on the wire and in the entry."""
    later = entry(after=after, attempts=attempts, left=0.75)
    message = MESSAGES.publication(later)
    for request in (received(message), later.request):
        assert (request.attempt, request.timeout_us) == (attempts, 750_000)
    assert content(later.request) == content(REQUEST) | {"attempt": attempts, "timeout_us": 750_000}


def test_a_sending_at_the_deadline_has_no_time_left() -> None:
    """Less than nothing is nothing, and the broker keeps it for a second, the least that MQTT can say."""
    late = entry(attempts=2, left=-0.5)
    message = MESSAGES.publication(late)
    assert (received(message).timeout_us, message.expiry_s) == (0, 1)


@pytest.mark.parametrize(
    ("lane", "version", "topic"),
    [
        (None, None, "site/models/model/infer/car-1"),
        (None, "3", "site/models/model/versions/3/infer/car-1"),
        (Lane("w-1"), None, "site/workers/w-1/infer/model/car-1"),
        (Lane("w-1"), "3", "site/workers/w-1/infer/model/car-1"),
    ],
)
def test_the_topic(lane: Lane | None, version: str | None, topic: str) -> None:
    """The worker's lane where one was chosen, or else the channel of the model or of its version."""
    sent = entry(replace(REQUEST, model_version=version))
    sent.lane = lane
    message = MESSAGES.publication(sent)
    assert message.topic == topic
    assert received(message).model_version == version


def test_the_properties_repeat_what_the_header_says() -> None:
    """Content type, where the reply goes, and the id as sixteen bytes."""
    message = MESSAGES.publication(entry())
    assert (message.content_type, message.correlation_data) == (CONTENT_TYPE, bytes.fromhex(ID))
    assert message.response_topic == received(message).response_topic == f"site/results/model/car-1/{ID}"
    assert (message.qos, message.retain) == (1, False)


def test_the_checksum_covers_the_tail() -> None:
    """A large tensor travels as it lies in memory, behind the payload; a bit of it that flips is found."""
    large = encode_tensor("x", np.ones(1 << 18, np.float32))
    message = MESSAGES.publication(entry(replace(REQUEST, inputs=(large,))))
    assert message.tail
    payload = bytearray(message.joined().payload)
    assert message.user_properties == (checksum((payload,)),)
    payload[-1] ^= 1
    with pytest.raises(Corrupted):
        verify(payload, message.user_properties)


@given(st.floats(0.001, 1e6))
def test_a_message_expires_with_its_request(left: float) -> None:
    """In whole seconds, rounded up: the broker drops it no sooner, and less than a second later."""
    expiry = MESSAGES.publication(entry(left=left)).expiry_s
    assert expiry is not None
    assert left <= expiry < left + 1


@pytest.mark.parametrize(
    ("why", "outcome"), [(Cancelled("no more"), Outcome.CANCELLED), (Superseded("newer"), Outcome.SUPERSEDED)]
)
def test_a_cancellation_says_why(why: Cancelled | Superseded, outcome: Outcome) -> None:
    """Every worker of the model hears the id, and what its client counted it as."""
    message = MESSAGES.cancellation(REQUEST, why)
    assert message.topic == "site/models/model/cancel/car-1"
    assert Cancellation.from_json(message.payload) == Cancellation((ID,), outcome)
