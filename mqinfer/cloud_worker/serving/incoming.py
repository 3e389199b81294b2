"""One request as a worker receives it: read from a message, with what the reply to it needs."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from mqinfer.broker.link import Message
from mqinfer.cloud_worker.serving.pictures import EVERYTHING, STREAM, Wanted, read_picture, read_wanted
from mqinfer.images.sending import begins_picture
from mqinfer.protocol import envelope, header, oip_json
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.checksum import CHECKSUM, verify
from mqinfer.protocol.errors import BadTopic
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.topics import InferAddress, Topics, may_reply
from mqinfer.protocol.trace import TraceContext, trace_of
from mqinfer.protocol.types import InferRequest
from mqinfer.value_object import value_object

_INFINITE = float("inf")


@value_object(eq=False)
class Delivery:
    """A message on a request topic, not read yet.

    Attributes:
        message: As it came.
        address: Who asks whom, from the topic; None where the topic is no request topic.
        client: The sender; empty where the topic does not say.
        received: When it came, in seconds by the worker's clock.
        size: Bytes of the payload.
    """

    message: Message
    address: InferAddress | None
    client: str
    received: float
    size: int

    @property
    def correlation_data(self) -> bytes | None:
        """The message's."""
        return self.message.correlation_data


@value_object()
class ReplyPath:
    """Where a reply goes, and in which form.

    Attributes:
        topic: The request's Response Topic.
        correlation_data: The request's, repeated.
        is_json: Whether the request came as JSON; the reply goes the same way.
        binary: Whether a JSON reply carries its tensors in a binary tail.
        words: What the answer in words to a picture lists; None for the reply to another request.
        trace: The request's place in a trace, repeated; None where it states none.
    """

    topic: str
    correlation_data: bytes | None
    is_json: bool
    binary: bool = False
    trace: TraceContext | None = None
    words: Wanted | None = None


@value_object(eq=False)
class IncomingRequest:
    """A request that can be replied to.

    Attributes:
        request: What is asked.
        client: The sender.
        path: Where the reply goes.
        key: Names the request among those of all clients; None in JSON and of pictures as they are, where ids need not
            be unique: a script that sends everything under one id gets a reply to each.
        received: When it came, in seconds by the worker's clock.
        deadline: By the same clock; infinite without a timeout.
        size: Bytes of its payload.
        topic: On which it came.
    """

    request: InferRequest
    client: str
    path: ReplyPath
    key: tuple[str, str] | None
    received: float
    deadline: float
    size: int
    topic: str = ""


def accept(topics: Topics, message: Message, received: float) -> Delivery:
    """Return a message with the time of its receipt, in seconds by the worker's clock, and the sender that it names."""
    try:
        address = topics.parse_infer(message.topic)
    except BadTopic:
        address = None  # `read_request` raises
    client = "" if address is None else address.client
    return Delivery(message, address, client, received, len(message.payload))


def reply_path(topics: Topics, delivery: Delivery) -> ReplyPath:
    """Find where the reply to a message goes, from its properties alone.

    Raises:
        BadTopic: It came on no request topic, or its Response Topic is missing or not the sender's own.
    """
    message = delivery.message
    address = delivery.address or topics.parse_infer(message.topic)
    trace = trace_of(message.user_properties)
    if _is_picture(topics, message):
        return _picture_path(topics, address, message, trace, EVERYTHING)
    topic = _own_topic(topics, address, message.response_topic)
    is_json = header.is_json(message.content_type, message.payload)
    return ReplyPath(topic, message.correlation_data, is_json, trace=trace)


def read_request(
    topics: Topics,
    delivery: Delivery,
    limits: Limits,
    queue_timeout_s: float | None = None,
    card: ModelCard | None = None,
) -> IncomingRequest:
    """Read a request.

    Args:
        topics: The site's topics.
        delivery: The message that brought it.
        limits: Bounds for what it holds.
        queue_timeout_s: Seconds from its receipt after which it expires at the latest; None for no such bound.
        card: Of the model, for pictures that come as they are.

    Raises:
        Corrupted: The payload is not what was sent.
        BadTopic: It came on no request topic, or its Response Topic is missing or not the sender's own.
        InvalidRequest: The payload is neither of the two content types, or breaks the protocol or a limit.
    """
    message, received = delivery.message, delivery.received
    verify(message.payload, message.user_properties)
    address = delivery.address or topics.parse_infer(message.topic)
    properties = message.user_properties  # most have a checksum alone: nothing to read
    trace = None if len(properties) == 1 and properties[0][0] == CHECKSUM else trace_of(properties)
    if _is_picture(topics, message):
        request = read_picture(message, address, card)
        path = _picture_path(topics, address, message, trace, read_wanted(message))
    else:
        request, path = _read(topics, address, message, limits, trace)
    if not request.id:  # JSON may leave it out; the reply topic tells the sender's requests apart as well
        request = replace(request, id=path.topic.rpartition("/")[2])
    deadline = _INFINITE if request.timeout_us is None else received + request.timeout_us / 1e6
    if queue_timeout_s is not None:
        deadline = min(deadline, received + queue_timeout_s)
    key = None if path.is_json or path.words else (address.client, request.id)
    return IncomingRequest(request, address.client, path, key, received, deadline, delivery.size, message.topic)


def _read(
    topics: Topics, address: InferAddress, message: Message, limits: Limits, trace: TraceContext | None
) -> tuple[InferRequest, ReplyPath]:
    """Read a request in one of the two content types."""
    is_json, binary = header.is_json(message.content_type, message.payload), False
    if is_json:
        length = oip_json.header_length(message.user_properties)
        request = oip_json.decode_request(
            message.payload, address.model, address.version, header_length=length, limits=limits
        )
        binary = request.parameters.get(oip_json.BINARY_OUTPUT) is True
    else:
        request = envelope.decode_request(message.payload, limits)
    topic = _own_topic(topics, address, message.response_topic or request.response_topic)
    return request, ReplyPath(topic, message.correlation_data, is_json, binary, trace)


def _own_topic(topics: Topics, address: InferAddress, topic: str | None) -> str:
    """Check that a Response Topic is the sender's own: a worker may write where its sender may not."""
    if not topic or not may_reply(topics, topic, address.model, address.client):
        own = topics.result(address.model, address.client, "ID")
        raise BadTopic(f"Response Topic {topic!r} is not the sender's own; expected one like {own!r}")
    return topic


def _picture_path(
    topics: Topics, address: InferAddress, message: Message, trace: TraceContext | None, wanted: Wanted
) -> ReplyPath:
    """Return where the answer in words to a picture goes: where its sender states, or else by convention."""
    topic, is_own = message.response_topic or topics.answers(address.model, address.client, STREAM), False
    with suppress(BadTopic):
        is_own = topic == topics.answers(address.model, address.client, topic.rpartition("/")[2])
    topic = topic if is_own else _own_topic(topics, address, topic)
    return ReplyPath(topic, message.correlation_data, is_json=False, trace=trace, words=wanted)


def _is_picture(topics: Topics, message: Message) -> bool:
    """Return whether a request is a picture as it is.

    Its Content Type says so or, where there is none, its first bytes do, or it asks for an answer among those in words.
    """
    if message.content_type:
        return message.content_type.lower().startswith("image/")
    return begins_picture(message.payload) or (message.response_topic or "").startswith(f"{topics.root}/answers/")
