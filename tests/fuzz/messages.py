"""What comes in messages: requests, replies, states, cards, control, and the MQTT packets around them."""

from __future__ import annotations

from contextlib import suppress

from msgspec.structs import replace

from mqinfer.broker.link import Message
from mqinfer.broker.packets import decode_puback
from mqinfer.broker.paho.packet_reader import OtherPacket, PacketReader
from mqinfer.client.control import read_reply
from mqinfer.cloud_worker.serving.incoming import accept, read_request
from mqinfer.cloud_worker.serving.replies import write_reply
from mqinfer.codecs import decode_tensor
from mqinfer.protocol import envelope, oip_json
from mqinfer.protocol.card import card_from_json, card_to_json
from mqinfer.protocol.control import Cancellation, read_body, read_path
from mqinfer.protocol.errors import BadTopic, MqinferError
from mqinfer.protocol.limits import Limits
from mqinfer.protocol.states import ServerState, WorkerState
from mqinfer.protocol.topics import Topics, answer_topic, may_reply
from mqinfer.protocol.types import ErrorInfo, InferRequest, InferResponse, Outcome

__all__ = [
    "SMALL",
    "cancellation",
    "card",
    "control",
    "envelopes",
    "message",
    "oip",
    "packets",
    "server_state",
    "topics",
    "worker_state",
]

SMALL = Limits(payload_bytes=1 << 20, tensor_bytes=4 << 20, image_pixels=1 << 20)
"""Bounds under which a broken promise shows at once."""
_TOPICS = Topics()


def envelopes(data: bytes) -> None:
    """Read both kinds; what is read must be written so that it reads the same."""
    try:
        written = envelope.encode_request(envelope.decode_request(data, SMALL))
        assert envelope.encode_request(envelope.decode_request(written, SMALL)) == written
    except MqinferError:
        pass
    written = envelope.encode_response(envelope.decode_response(data, SMALL))
    assert envelope.encode_response(envelope.decode_response(written, SMALL)) == written


def oip(data: bytes) -> None:
    """Read both kinds, behind two bytes that say how long the JSON is: 0 for all, 65535 for no tail's length at all."""
    stated, body = int.from_bytes(data[:2], "little"), data[2:]
    length = {0: None, 65535: len(body)}.get(stated, stated - 1)
    try:
        request = oip_json.decode_request(body, "m", header_length=length, limits=SMALL)
        for tensor in request.inputs:
            decode_tensor(tensor, SMALL)
    except MqinferError:
        pass
    oip_json.decode_response(body, length, SMALL)


def card(data: bytes) -> None:
    """Read a card; what is read can be written."""
    card_to_json(card_from_json(data))


def worker_state(data: bytes) -> None:
    """Likewise a worker's state."""
    WorkerState.from_json(data).to_json()


def server_state(data: bytes) -> None:
    """Likewise a server's."""
    ServerState.from_json(data).to_json()


def cancellation(data: bytes) -> None:
    """Likewise a cancellation, whose ids are looked up."""
    found = Cancellation.from_json(data)
    assert frozenset(found.ids) is not None
    found.to_json()


def topics(data: bytes) -> None:
    """Parse a topic in every way; the names found could have been written there."""
    topic = data.decode("utf-8", "surrogateescape")
    orders = _TOPICS.control
    for parse in (
        _TOPICS.parse_infer,
        _TOPICS.result.parse,
        _TOPICS.cancel.parse,
        orders.parse,
        _TOPICS.control_state.parse,
        _TOPICS.worker_state.parse,
        _TOPICS.card.parse,
    ):
        try:
            parse(topic)
        except BadTopic:
            continue
        assert not {"+", "#", "\0"} & set(topic) or parse == orders.parse, topic
    if may_reply(_TOPICS, topic, "seg", "car"):
        found = _TOPICS.result.parse(topic)
        assert (found["model"], found["client"]) == ("seg", "car")
    with suppress(BadTopic):
        assert answer_topic(_TOPICS.control_result, topic, "car").count("/") == 5
    read_path(topic).path.encode()


def control(data: bytes) -> None:
    """Read an order, topic and body with a zero byte between, and the same body as a server's reply."""
    topic, _, body = data.partition(b"\0")
    order = Message(topic.decode("utf-8", "replace"), body)
    try:
        read_path(_TOPICS.control.parse(order.topic)["path"])
        read_body(order.payload)
    except MqinferError:
        pass
    str(read_reply(order).error).encode()


def message(data: bytes) -> None:
    """Read a request as a worker does, five fields with zero bytes between, decode it, and write the refusal."""
    topic, kind, reply_to, length, payload = (data.split(b"\0", 4) + [b""] * 5)[:5]
    properties = ((oip_json.HEADER_LENGTH, length.decode("utf-8", "replace")),) if length else ()
    _answer(
        Message(
            topic.decode("utf-8", "replace"),
            payload,
            content_type=kind.decode("utf-8", "replace") or None,
            response_topic=reply_to.decode("utf-8", "replace") or None,
            user_properties=properties,
        )
    )


def packets(data: bytes) -> None:
    """Read a stream of MQTT packets in pieces as two bytes say; of requests, the payload too."""
    if len(data) < 2:
        return
    reader = PacketReader(version5=bool(data[0] & 1), capacity=64 << (data[0] >> 1 & 3))
    stream, step = memoryview(data)[2:], data[1] + 8
    while stream:
        space = reader.space()[:step]
        count = min(len(space), len(stream))
        space[:count] = stream[:count]
        stream = stream[count:]
        reader.advance(count)
        for packet in reader.packets():
            if isinstance(packet, OtherPacket):
                if packet.command & 0xF0 == 0x40:
                    decode_puback(packet.body)
                continue
            try:
                _answer(packet.message)
            except MqinferError:
                continue


def _answer(found: Message) -> None:
    incoming = read_request(_TOPICS, accept(_TOPICS, found, 0.0), SMALL)
    try:
        for tensor in incoming.request.inputs:
            decode_tensor(tensor, SMALL)
        reply = _refusal(incoming.request, MqinferError("done"))
    except MqinferError as error:
        reply = _refusal(incoming.request, error)
    write_reply(incoming.path, reply, {})


def _refusal(request: InferRequest, error: MqinferError) -> InferResponse:
    reply = InferResponse(request.id, "m", "1", Outcome.ERROR, error=ErrorInfo(error.code, str(error)))
    return replace(reply, attempt=request.attempt, capture=request.capture)
