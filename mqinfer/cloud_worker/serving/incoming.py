"""One request in a worker's hands: read from a message, and the message that answers it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mqinfer.broker.link import Message
from mqinfer.protocol import envelope, oip_json
from mqinfer.protocol.checksum import checksum, verify
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadEnvelope, BadTopic
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.topics import InferAddress, Topics, may_reply
from mqinfer.protocol.types import Buffer, InferRequest, InferResponse

__all__ = ["ReplyPath", "Ticket", "read_ticket", "reply_path", "write_reply"]

_LENGTH = re.compile(r"[0-9]{1,12}")  # more digits than any payload has bytes


@dataclass(frozen=True, slots=True)
class ReplyPath:
    """Where a reply goes, and in which form.

    Attributes:
        topic: The request's Response Topic.
        correlation_data: The request's, repeated.
        is_json: Whether the request came as JSON; the reply goes the same way.
        binary: Whether a JSON reply carries its tensors in a binary tail.
    """

    topic: str
    correlation_data: bytes | None
    is_json: bool
    binary: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Ticket:
    """A request that can be answered.

    Attributes:
        request: What was asked.
        address: Who asked whom, from the topic.
        path: Where the reply goes.
        received: When it came, in seconds by the worker's clock.
        deadline: By the same clock; infinite without a timeout.
    """

    request: InferRequest
    address: InferAddress
    path: ReplyPath
    received: float
    deadline: float

    @property
    def key(self) -> tuple[str, str] | None:
        """What makes a request the same one again: the client and the id; None in JSON, where ids need not be unique.

        A script that sends everything under one id is to get an answer to each.
        """
        return None if self.path.is_json else (self.address.client, self.request.id)


def reply_path(topics: Topics, message: Message) -> ReplyPath:
    """Find where the reply to a message goes, from its properties alone.

    Raises:
        BadTopic: It came on no request topic, or its Response Topic is missing or not the sender's own.
    """
    return _path(topics, topics.parse_infer(message.topic), message, message.response_topic)


def _path(
    topics: Topics, address: InferAddress, message: Message, topic: str | None, *, binary: bool = False
) -> ReplyPath:
    if not topic or not may_reply(topics, topic, address.model, address.client):
        own = topics.result(address.model, address.client, "ID")
        raise BadTopic(f"the request's Response Topic is {topic!r}; it is to be like {own!r}")
    return ReplyPath(topic, message.correlation_data, _is_json(message), binary)


def read_ticket(topics: Topics, message: Message, received: float, limits: Limits) -> Ticket:
    """Make a ticket of a message.

    Raises:
        Corrupted: The payload is not what was sent.
        BadTopic: It came on no request topic, or its Response Topic is missing or not the sender's own.
        InvalidRequest: The payload is neither of the two content types, or breaks the protocol or a limit.
    """
    verify(message.payload, message.user_properties)
    address = topics.parse_infer(message.topic)
    request = _read_json(message, address, limits) if _is_json(message) else _read_binary(message, limits)
    binary = request.parameters.get(oip_json.BINARY_OUTPUT) is True
    path = _path(topics, address, message, message.response_topic or request.response_topic, binary=binary)
    if not request.id:  # JSON may leave it out; the reply topic tells the sender's requests apart as well
        request = replace(request, id=path.topic.rpartition("/")[2])
    deadline = float("inf") if request.timeout_us is None else received + request.timeout_us / 1e6
    return Ticket(request, address, path, received, deadline)


def write_reply(path: ReplyPath, response: InferResponse, arrays: Mapping[str, Array]) -> Message:
    """Make the message that answers a request, in the form in which the request came.

    Args:
        path: Where it goes.
        response: What it says; its outputs are used for the binary form.
        arrays: The outputs before encoding; used for the JSON form.
    """
    properties: tuple[tuple[str, str], ...] = ()
    payload: Buffer
    tail: list[Buffer] = []
    if path.is_json:
        payload, length = oip_json.encode_response(response, arrays=arrays, binary=path.binary)
        if length is not None:
            properties = ((oip_json.HEADER_LENGTH, str(length)),)
    else:
        payload, *tail = envelope.response_pieces(response)
    return Message(
        topic=path.topic,
        payload=payload,
        content_type=oip_json.CONTENT_TYPE if path.is_json else envelope.CONTENT_TYPE,
        correlation_data=path.correlation_data,
        user_properties=(*properties, checksum((payload, *tail))),
        tail=tuple(tail),
    )


def _is_json(message: Message) -> bool:
    """Tell JSON by its Content Type, or by its first byte where there is none (`mosquitto_pub` without options)."""
    if message.content_type:
        return message.content_type.startswith(oip_json.CONTENT_TYPE)
    return bytes(message.payload[:16]).lstrip()[:1] == b"{"


def _length(text: str) -> int:
    if not _LENGTH.fullmatch(text):
        raise BadEnvelope(f"user property {oip_json.HEADER_LENGTH} is {text[:40]!r}; it is to be a number of bytes")
    return int(text)


def _read_binary(message: Message, limits: Limits) -> InferRequest:
    return envelope.decode_request(message.payload, limits)


def _read_json(message: Message, address: InferAddress, limits: Limits) -> InferRequest:
    length = dict(message.user_properties).get(oip_json.HEADER_LENGTH)
    return oip_json.decode_request(
        message.payload,
        address.model,
        address.version,
        header_length=None if length is None else _length(length),
        limits=limits,
    )
