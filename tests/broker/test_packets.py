"""PUBLISH and PUBACK against paho's own code, filters against its matcher, the reader against any cut of the stream."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import asdict
from paho.mqtt import _packet as paho_packets
from paho.mqtt.client import topic_matches_sub
from paho.mqtt.enums import MQTTProtocolVersion

from mqinfer.broker.link import Message
from mqinfer.broker.packets import (
    PUBACK,
    Received,
    decode_puback,
    decode_publish,
    decode_variable_integer,
    encode_head,
    encode_puback,
)
from mqinfer.broker.paho.packet_reader import OtherPacket, PacketReader
from mqinfer.broker.routes import check_topic, compile_filter, is_suitable
from mqinfer.protocol.errors import BadEnvelope, BadTopic, ConfigError, MessageTooLarge

suitable = st.characters(exclude_categories=["Cs", "Cc"]).filter(is_suitable)
texts = st.text(suitable, max_size=40)
topics = st.text(suitable.filter(lambda character: character not in "+#"), min_size=1, max_size=40)
messages = st.builds(
    Message,
    topic=topics,
    payload=st.binary(max_size=300),
    qos=st.sampled_from([0, 1]),
    retain=st.booleans(),
    content_type=st.none() | texts,
    response_topic=st.none() | topics,
    correlation_data=st.none() | st.binary(max_size=40),
    expiry_s=st.none() | st.integers(0, 2**32 - 1),
    user_properties=st.lists(st.tuples(texts, texts), max_size=3).map(tuple),
)


def fields(message: Message) -> tuple[object, ...]:
    """All of a message, to compare."""
    return tuple((asdict(message) | {"payload": bytes(message.payload)}).values())


def encode(message: Message, identifier: int = 77, *, version5: bool = True) -> bytes:
    """A whole packet."""
    head = encode_head(message, version5=version5)
    data = bytearray(head.data)
    if head.identifier_at:
        data[head.identifier_at : head.identifier_at + 2] = identifier.to_bytes(2, "big")
    assert head.size == len(data) + len(message.payload)
    return bytes(data) + bytes(message.payload)


@given(messages)
def test_paho_reads_what_is_written(message: Message) -> None:
    """The decoder of paho finds in a packet what was put into it."""
    packet = encode(message)
    _, at = decode_variable_integer(memoryview(packet), 1)
    found = paho_packets.decode_publish(packet[0], bytearray(packet[at:]), MQTTProtocolVersion.MQTTv5)
    properties = found.properties
    assert found.topic.decode() == message.topic
    assert bytes(found.payload) == message.payload
    assert (found.qos, found.retain, found.mid) == (message.qos, message.retain, 77 if message.qos else 0)
    assert getattr(properties, "ContentType", None) == message.content_type
    assert getattr(properties, "ResponseTopic", None) == message.response_topic
    assert getattr(properties, "CorrelationData", None) == message.correlation_data
    assert getattr(properties, "MessageExpiryInterval", None) == message.expiry_s
    assert tuple(getattr(properties, "UserProperty", ())) == message.user_properties


@given(st.lists(messages, max_size=5), st.lists(st.integers(1, 200), min_size=1), st.integers(16, 600))
def test_the_reader_takes_any_cut(sent: list[Message], sizes: list[int], capacity: int) -> None:
    """However the stream is cut, and however small the buffer, the same packets come out."""
    stream = b"".join(encode(message, 1 + i) + encode_puback(i) for i, message in enumerate(sent))
    got = read_all(PacketReader(version5=True, capacity=capacity), stream, sizes)
    assert [fields(p.message) for p in got if isinstance(p, Received)] == [fields(message) for message in sent]
    acks = [decode_puback(p.body) for p in got if isinstance(p, OtherPacket)]
    assert acks == [(i, 0) for i in range(len(sent))]


def read_all(reader: PacketReader, stream: bytes, sizes: list[int]) -> list[Received | OtherPacket]:
    """Feed a stream in pieces of these sizes, over and over."""
    got: list[Received | OtherPacket] = []
    turn = 0
    while stream:
        space = reader.space()
        count = min(len(space), len(stream), sizes[turn % len(sizes)])
        assert count, "there must always be space"
        space[:count] = stream[:count]
        reader.advance(count)
        got += reader.packets()
        stream, turn = stream[count:], turn + 1
    return got


@given(messages)
def test_without_properties(message: Message) -> None:
    """On 3.1.1 the properties stay behind, and all else arrives."""
    reader = PacketReader(version5=False)
    (packet,) = read_all(reader, encode(message, version5=False), [64])
    assert isinstance(packet, Received)
    bare = Message(message.topic, message.payload, message.qos, message.retain)
    assert fields(packet.message) == fields(bare)


@pytest.mark.parametrize("lead", range(0, 130, 13))
def test_a_large_payload_is_aligned_and_read_only(lead: int) -> None:
    """A large payload starts at a multiple of 64 bytes whatever stands before it, and nobody can change it."""
    reader = PacketReader(version5=True)
    message = Message("t" * (lead + 1), bytes(range(256)) * 1000)
    (packet,) = read_all(reader, encode(message), [50_000])
    assert isinstance(packet, Received)
    payload = packet.message.payload
    assert np.frombuffer(payload, np.uint8).ctypes.data % 64 == 0
    assert memoryview(payload).readonly
    assert bytes(payload) == message.payload


def test_very_many_user_properties_are_none() -> None:
    """Of more than 64 KiB, which MQTT allows, no time is spent on any, and no memory is kept with the payload."""
    for count in (13_107, 13_108, 200_000):
        sent = Message("t", bytes(70_000), user_properties=(("", ""),) * count)
        (packet,) = read_all(PacketReader(version5=True), encode(sent), [1 << 20])
        assert isinstance(packet, Received)
        assert packet.message.user_properties == (sent.user_properties if count == 13_107 else ())
        assert packet.message.payload == sent.payload
        owner = memoryview(packet.message.payload).obj
        assert memoryview(owner).nbytes < 300_000


@given(st.binary(max_size=400), st.lists(st.integers(1, 50), min_size=1))
def test_any_bytes_are_packets_or_a_bad_envelope(stream: bytes, sizes: list[int]) -> None:
    """Garbage gives packets, or `BadEnvelope`, and never anything else."""
    try:
        read_all(PacketReader(version5=True, capacity=64), stream[:64], sizes)
    except BadEnvelope:
        return


@given(messages, st.data())
def test_a_flipped_byte(message: Message, data: st.DataObject) -> None:
    """A PUBLISH with one byte changed is decoded or refused."""
    packet = bytearray(encode(message))
    packet[data.draw(st.integers(0, len(packet) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode_publish(packet[0], memoryview(packet)[2:], version5=True)
    except BadEnvelope:
        return


def test_what_a_reader_refuses() -> None:
    """QoS 2, a property that is none, a length of five bytes, and a PUBACK without a number."""
    for stream in (
        b"\x34\x05\0\1a\0\0",
        b"\x30\x06\0\1a\2\x7f\0",
        b"\x30\x04\0\1a\x05",
        b"\x30\x06\0\1a\3\x23\0",
        b"\x30\xff\xff\xff\xff\xff",
    ):
        with pytest.raises(BadEnvelope):
            read_all(PacketReader(version5=True), stream, [100])
    with pytest.raises(BadEnvelope):
        decode_puback(b"\0")
    assert decode_puback(b"\0\7\x10") == (7, 0x10)
    assert encode_puback(258) == bytes((PUBACK, 2, 1, 2))


def test_a_packet_that_is_too_large_is_refused_before_memory_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number is that of the whole packet; one byte less is received."""
    message = Message("t", bytes(100_000))
    packet = encode(message)
    assert read_all(PacketReader(version5=True, max_packet_size=len(packet)), packet, [1000])
    monkeypatch.setattr(
        "mqinfer.broker.paho.packet_reader._aligned", lambda size: pytest.fail(f"{size} bytes were taken")
    )
    with pytest.raises(BadEnvelope, match=f"a packet of {len(packet)} bytes; Maximum Packet Size"):
        read_all(PacketReader(version5=True, max_packet_size=len(packet) - 1), packet[:4], [4])


def test_properties_that_are_skipped() -> None:
    """Payload Format Indicator and Subscription Identifier are read over."""
    body = b"\0\1a" + b"\7\x01\1\x0b\xff\x7f\x01\0" + b"payload"
    received = decode_publish(0x30, memoryview(body), version5=True)
    assert (received.payload_at, received.message.payload) == (11, b"payload")


def test_what_is_not_encoded() -> None:
    """Above MQTT's own bound, over-long properties, and views that are not contiguous are refused."""
    with pytest.raises(MessageTooLarge, match="268435455"):
        encode_head(Message("t", np.empty(268_435_456, np.uint8).data))
    with pytest.raises(ConfigError, match="property"):
        encode_head(Message("t", b"", content_type="x" * 65_536))
    with pytest.raises(ConfigError, match="contiguous"):
        encode_head(Message("t", np.zeros((4, 4))[::2].data))


levels = st.sampled_from(["", "a", "b", "$SYS", "a.b", "ä"])
filters = st.lists(levels | st.just("+"), min_size=1, max_size=4).flatmap(
    lambda parts: st.sampled_from(["/".join(parts), "/".join([*parts, "#"])])
)


@given(filters, st.lists(levels, min_size=1, max_size=5).map("/".join))
def test_filters_match_as_pahos_do(topic_filter: str, topic: str) -> None:
    """The compiled filter agrees with paho's matcher."""
    if not topic_filter or not topic:
        return
    assert (compile_filter(topic_filter).fullmatch(topic) is not None) == topic_matches_sub(topic_filter, topic)


def test_topics() -> None:
    """A topic has 1 to 65,535 bytes, no wildcard, no control character and no half of a surrogate pair."""
    check_topic("ä" * 32_767)
    check_topic("\u00a0\u3000\ue000")  # not printable, and allowed
    for topic in ("", "a\0", "a/+", "#", "ä" * 32_768, "a\n", "a\x7f", "a\ud800", "a\ufdd0", "a\U0010ffff"):
        with pytest.raises(BadTopic):
            check_topic(topic)
