"""The PUBLISH and PUBACK packets of MQTT 5 and 3.1.1: the two that carry the load (MQTT 5, sections 3.3 and 3.4).

paho has its own code for them; this one copies no large payload and takes a quarter of the time on small messages.
"""

from __future__ import annotations

import struct
from itertools import chain
from typing import Any, NamedTuple

from mqinfer.broker.link import Message, ReasonCode
from mqinfer.broker.routes import check_topic, is_suitable
from mqinfer.protocol.errors import BadEnvelope, ConfigError, MessageTooLarge
from mqinfer.protocol.limits import PACKET_HEAD_BYTES
from mqinfer.protocol.types import Buffer

PUBLISH, PUBACK = 0x30, 0x40

_LARGEST = 268_435_455  # what four bytes of seven bits hold
_EXPIRY, _CORRELATION_DATA, _USER_PROPERTY = 0x02, 0x09, 0x26
_NAMES = {0x03: "content_type", 0x08: "response_topic", _CORRELATION_DATA: "correlation_data"}
_PAYLOAD_FORMAT, _SUBSCRIPTION_IDENTIFIER = 0x01, 0x0B

_WILDCARDS = str.maketrans("+#", "\0\0")  # what has one is looked at closely, as what is not printable

_u16 = struct.Struct("!H")
_u32 = struct.Struct("!I")


class Head(NamedTuple):
    """All of a PUBLISH packet but its payload.

    Attributes:
        data: The bytes; the packet identifier in them is still 0.
        identifier_at: Where the packet identifier stands; 0 for none.
        size: Of the whole packet in bytes, which is what a broker's Maximum Packet Size bounds.
    """

    data: bytearray
    identifier_at: int
    size: int


class Received(NamedTuple):
    """A received PUBLISH.

    Attributes:
        message: The message.
        identifier: Packet identifier; 0 with QoS 0.
        payload_at: Where the payload starts, counted from the end of the fixed header.
    """

    message: Message
    identifier: int
    payload_at: int


def encode_head(message: Message, *, version5: bool = True) -> Head:
    """Encode all of a message but its payload.

    Args:
        message: What will be published.
        version5: Whether the connection speaks MQTT 5; without it the properties are left out.

    Raises:
        BadTopic: The topic or the response topic can't be published to.
        ConfigError: QoS is not 0 or 1, a property is too long or is no text, or the payload is no bytes.
        MessageTooLarge: Above what MQTT can carry at all.
    """
    qos = message.qos
    if qos not in {0, 1}:
        raise ConfigError(f"topic {message.topic!r}: QoS {qos} is not supported; use 0 or 1")
    topic = check_topic(message.topic)
    properties = _encode_properties(message) if version5 else b""
    payload = payload_size(message)
    remaining = 2 + len(topic) + 2 * qos + len(properties) + payload
    if remaining > _LARGEST:
        raise MessageTooLarge(f"topic {message.topic!r}: {remaining} bytes; an MQTT packet holds at most {_LARGEST}")
    data = bytearray((PUBLISH | qos << 1 | message.retain,))
    data += encode_variable_integer(remaining)
    data += len(topic).to_bytes(2, "big")
    data += topic
    identifier_at = 0
    if qos:
        identifier_at = len(data)
        data += b"\0\0"
    data += properties
    return Head(data, identifier_at, len(data) + payload)


def payload_size(message: Message) -> int:
    """Return the bytes of a message's payload and its tail.

    Raises:
        ConfigError: A piece is a view whose bytes are not contiguous in memory.
    """
    payload = message.payload
    size = len(payload) if type(payload) is bytes else buffer_size(payload)
    return size + sum(map(buffer_size, message.tail)) if message.tail else size


def buffer_size(buffer: Buffer) -> int:
    """Return the bytes of one piece of a payload.

    Raises:
        ConfigError: It is no bytes-like object, or its bytes are not contiguous in memory.
    """
    if type(buffer) is bytes:
        return len(buffer)
    try:
        view = memoryview(buffer)
    except (TypeError, ValueError, BufferError) as error:
        raise ConfigError(f"a payload must be bytes, a bytearray or a memoryview: {error}") from error
    if not view.c_contiguous:
        raise ConfigError("a payload's memory must be contiguous; copy the array first")
    return view.nbytes


def decode_publish(command: int, body: memoryview, *, version5: bool, payload: Buffer | None = None) -> Received:
    """Decode a PUBLISH.

    Args:
        command: First byte of the fixed header.
        body: What follows the fixed header; with `payload` it may end anywhere behind the properties.
        version5: Whether the connection speaks MQTT 5.
        payload: In place of a copy of what follows the properties.

    Raises:
        BadEnvelope: It is malformed, ends too early, or has QoS 2.
    """
    qos = command >> 1 & 3
    if qos > 1:
        raise BadEnvelope(f"PUBLISH with QoS {qos}; only 0 and 1 were subscribed to")
    identifier, properties = 0, {}
    try:
        at = 2 + (body[0] << 8 | body[1])
        topic = str(body[2:at], "utf-8")
        if qos:
            identifier = body[at] << 8 | body[at + 1]
            at += 2
        if version5:
            length, start = decode_variable_integer(body, at)
            at = start + length
            if length <= PACKET_HEAD_BYTES:  # nothing counts those that are kept with a message
                properties = _decode_properties(bytes(body[start:at]))
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadEnvelope(f"malformed PUBLISH: {error}") from error
    if at > len(body):
        raise BadEnvelope("PUBLISH ends within its topic or its properties")
    found = bytes(body[at:]) if payload is None else payload
    return Received(Message(topic, found, qos, bool(command & 1), **properties), identifier, at)


def encode_puback(identifier: int) -> bytes:
    """Encode a PUBACK with the reason code for success."""
    return b"\x40\x02" + identifier.to_bytes(2, "big")


def decode_puback(body: bytes) -> tuple[int, int]:
    """Return packet identifier and reason code of a PUBACK.

    Raises:
        BadEnvelope: It is too short.
    """
    if len(body) < 2:
        raise BadEnvelope("PUBACK without a packet identifier")
    return body[0] << 8 | body[1], body[2] if len(body) > 2 else ReasonCode.SUCCESS


def decode_variable_integer(body: bytes | memoryview, at: int) -> tuple[int, int]:
    """Decode an integer of seven bits a byte; return it and where the next field starts.

    Raises:
        IndexError: It goes on behind the end.
        BadEnvelope: It is longer than four bytes.
    """
    value = body[at]
    if value < 0x80:
        return value, at + 1
    value = 0
    for shift in (0, 7, 14, 21):
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
    raise BadEnvelope("a variable byte integer is longer than four bytes")


def encode_variable_integer(value: int) -> bytes:
    """Encode an integer of seven bits a byte."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def _encode_properties(message: Message) -> bytes:
    fields = bytearray()
    texts: list[str] = []
    try:
        if message.expiry_s is not None:
            fields += b"\x02" + _u32.pack(message.expiry_s)
        if message.content_type is not None:
            value = message.content_type.encode()
            texts.append(message.content_type)
            fields += b"\x03" + _u16.pack(len(value)) + value
        if message.response_topic is not None:
            value = message.response_topic.encode()
            texts.append(message.response_topic.translate(_WILDCARDS))
            fields += b"\x08" + _u16.pack(len(value)) + value
        if message.correlation_data is not None:
            fields += b"\x09" + _u16.pack(len(message.correlation_data)) + message.correlation_data
        for pair in message.user_properties:
            name, value = pair[0].encode(), pair[1].encode()
            texts += pair
            fields += b"\x26" + _u16.pack(len(name)) + name + _u16.pack(len(value)) + value
        if not "".join(texts).isprintable():
            _check_texts(message)
    except (struct.error, ValueError) as error:
        raise ConfigError(
            f"topic {message.topic!r}: an MQTT property can't be sent: {error}; it holds at most 65,535 bytes of text "
            "without control characters, and the expiry is 0 to 2**32 - 1 s"
        ) from error
    return encode_variable_integer(len(fields)) + fields


def _check_texts(message: Message) -> None:
    """Look closely at texts of which one is not printable: a space of another script is, a control character not."""
    pairs = chain.from_iterable(message.user_properties)
    for text in (message.content_type or "", message.response_topic or "", *pairs):
        if not is_suitable(text):
            raise ValueError(f"{text[:200]!r} has a control character")
    if message.response_topic is not None:
        check_topic(message.response_topic)


def _decode_properties(body: bytes) -> dict[str, Any]:
    """Decode the properties of a PUBLISH into the fields of a `Message`."""
    found: dict[str, Any] = {}
    pairs: list[tuple[str, str]] = []  # there may be a hundred thousand of them
    at, end = 0, len(body)
    while at < end:
        identifier, start = body[at], at + 1
        if identifier in _NAMES:
            at = start + 2 + (body[start] << 8 | body[start + 1])
            value = body[start + 2 : at]
            found[_NAMES[identifier]] = value if identifier == _CORRELATION_DATA else value.decode()
        elif identifier == _EXPIRY:
            (found["expiry_s"],) = _u32.unpack_from(body, start)
            at = start + 4
        elif identifier == _USER_PROPERTY:
            at = _decode_pair(body, start, pairs)
        else:
            at = _skip(body, start, identifier)
    if at > end:
        raise BadEnvelope("PUBLISH has a property that goes on behind the end of its properties")
    if pairs:
        found["user_properties"] = tuple(pairs)
    return found


def _decode_pair(body: bytes, at: int, pairs: list[tuple[str, str]]) -> int:
    middle = at + 2 + (body[at] << 8 | body[at + 1])
    end = middle + 2 + (body[middle] << 8 | body[middle + 1])
    pairs.append((body[at + 2 : middle].decode(), body[middle + 2 : end].decode()))
    return end


def _skip(body: bytes, at: int, identifier: int) -> int:
    """Return where the next property starts, behind one that mqinfer does not use."""
    if identifier == _PAYLOAD_FORMAT:
        return at + 1
    if identifier == _SUBSCRIPTION_IDENTIFIER:
        return decode_variable_integer(body, at)[1]
    # Topic Alias too: this client allows none.
    raise BadEnvelope(f"PUBLISH has a property 0x{identifier:02x} that does not belong there")
