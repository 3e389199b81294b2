"""What only a real broker can show: loss and return, versions, sockets, names that are taken over."""

from __future__ import annotations

import logging
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any

import pytest
from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.connect import make_link
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.paho.client import check_paho
from mqinfer.broker.paho.connecting import set_nodelay
from mqinfer.broker.paho.link import PahoLink
from mqinfer.broker.paho.session import Session
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError, MessageTooLarge, NotConnected
from mqinfer.protocol.limits import DEFAULT_LIMITS
from tests.broker.heard import PATIENCE, Told

pytestmark = pytest.mark.broker

_END = b"end"  # what tells a listener of a test to stop
Unique = Callable[[str], str]
Roundtrip = Callable[..., Message]


def link_to(server: MosquittoServer, client_id: str, **options: object) -> PahoLink:
    """A link that is not open yet."""
    return PahoLink(BrokerAddress.parse(server.url), client_id=client_id, **options)  # type: ignore[arg-type]


@contextmanager
def listener(serve: Callable[[socket.socket], None]) -> Iterator[BrokerAddress]:
    """Serve connections, one after the other, until the block ends; yields the address."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                connection, _ = server.accept()
                with connection:
                    try:
                        serve(connection)
                    except StopIteration:
                        return

        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield BrokerAddress("127.0.0.1", server.getsockname()[1])
        finally:
            with socket.create_connection(server.getsockname()) as last:
                last.sendall(_END)
            thread.join()


def test_the_broker_dies_and_returns(
    server: MosquittoServer, unique: Unique, closing: Callable[[PahoLink], PahoLink], caplog: pytest.LogCaptureFixture
) -> None:
    """The link tells of the loss, refuses to publish, comes back with its subscriptions, and sends nothing old."""
    topic, told, got = unique("t"), Told(), []
    new = threading.Event()
    link = closing(link_to(server, unique("c"), on_connection=told))
    link.open()

    def handle(message: Message) -> None:
        got.append(message.payload)
        if message.payload == b"new":
            new.set()

    link.subscribe(topic, handle)
    old_acks: list[int] = []
    server.kill()
    told.wait_for_states(True, False)
    assert not link.connected
    with pytest.raises(NotConnected, match="down"):
        link.publish(Message(topic, b"old"), old_acks.append)
    server.start()
    told.wait_for_states(True, False, True)
    link.publish(Message(topic, b"new"))
    assert new.wait(PATIENCE)
    assert got == [b"new"]
    assert old_acks == []
    lines = [record.getMessage() for record in caplog.records if record.name == "mqinfer.broker"]
    assert len(lines) == 2, lines
    assert re.fullmatch(rf"lost the connection to {server.url}: .*; trying again", lines[0])
    assert re.fullmatch(rf"connected again to {server.url} after \d+\.\d s", lines[1])


def test_nothing_outstanding_survives_a_cut(
    server: MosquittoServer, unique: Unique, closing: Callable[[PahoLink], PahoLink]
) -> None:
    """Messages that were not acknowledged when the connection broke are never sent again: their owner does that."""
    topic, told = unique("t"), Told()
    watcher, sender = closing(link_to(server, unique("c"))), closing(link_to(server, unique("c"), on_connection=told))
    watcher.open()
    sender.open()
    got: list[bytes] = []
    last = threading.Event()

    def handle(message: Message) -> None:
        got.append(bytes(message.payload[:8]).rstrip(b"."))
        if got[-1] == b"last":
            last.set()

    watcher.subscribe(topic, handle)
    acks: list[int] = []
    for number in range(500):
        sender.publish(Message(topic, (b"%d" % number).ljust(100_000, b".")), acks.append)
    sender.cut()
    told.wait_for_states(True, False, True)
    acked = len(acks)
    sender.publish(Message(topic, b"last"))
    assert last.wait(PATIENCE)
    assert len(got) == len(set(got)), "a message came twice"
    assert len(acks) == acked, "a PUBACK of the old connection came on the new one"


def test_subscribing_while_down(
    server: MosquittoServer, unique: Unique, closing: Callable[[PahoLink], PahoLink]
) -> None:
    """A subscription made while the broker is away stands when the link is connected again."""
    told, arrived, topic = Told(), threading.Event(), unique("t")
    link = closing(link_to(server, unique("c"), on_connection=told))
    link.open()
    server.kill()
    told.wait_for_states(True, False)
    link.subscribe(topic, lambda _: arrived.set())
    link.subscribe(topic + "/gone", lambda _: None)
    link.unsubscribe(topic + "/gone")
    server.start()
    told.wait_for_states(True, False, True)
    link.publish(Message(topic, b"x"))
    assert arrived.wait(PATIENCE)


def test_closing_while_the_broker_is_away(server: MosquittoServer, unique: Unique) -> None:
    """`close` doesn't wait for a reconnect."""
    told = Told()
    link = link_to(server, unique("c"), on_connection=told)
    link.open()
    server.kill()
    told.wait_for_states(True, False)
    link.close()
    assert not link.connected


def test_a_narrow_receive_maximum(unique: Unique, closing: Callable[[PahoLink], PahoLink]) -> None:
    """No more messages are unacknowledged than the broker allows, and all of a burst get through."""

    def configuration(port: int) -> str:
        return render(port).replace("max_inflight_messages 1000", "max_inflight_messages 3")

    most, topic, done = [0], unique("t"), threading.Event()

    class Watched(Session):
        def write(self) -> None:
            most[0] = max(most[0], len(self.acks))
            super().write()

    with MosquittoServer(configuration=configuration) as narrow, pytest.MonkeyPatch.context() as patch:
        patch.setattr("mqinfer.broker.paho.loop.Session", Watched)
        link = closing(link_to(narrow, unique("c")))
        link.open()
        got: list[Message] = []

        def handle(message: Message) -> None:
            got.append(message)
            if len(got) == 200:
                done.set()

        link.subscribe(topic, handle)
        for number in range(200):
            link.publish(Message(topic, b"%d" % number))
        assert done.wait(PATIENCE)
        link.close()
    assert [message.payload for message in got] == [b"%d" % number for number in range(200)]
    assert most == [3]


def test_an_unknown_paho(monkeypatch: pytest.MonkeyPatch) -> None:
    """A paho whose private names are others is refused by the name that it lacks."""
    check_paho()
    monkeypatch.delattr(Client, "_packet_handle")
    with pytest.raises(ConfigError, match=r"paho-mqtt 2.*lacks _packet_handle"):
        check_paho()


def test_a_link_that_gave_up_opens_again(
    broker_url: str,
    unique: Unique,
    closing: Callable[[PahoLink], PahoLink],
    monkeypatch: pytest.MonkeyPatch,
    roundtrip: Roundtrip,
) -> None:
    """After its thread has ended for good, `open` starts anew."""
    told, client_id = Told(), unique("c")
    link = closing(PahoLink(BrokerAddress.parse(broker_url), client_id=client_id, on_connection=told))
    link.open()
    with monkeypatch.context() as patch:
        patch.setattr(Session, "write", _fail)
        link.publish(Message(unique("t"), b"x"))
        told.wait_for_states(True, False, False)
        for thread in threading.enumerate():
            if thread.name == f"mqinfer-link-{client_id}":
                thread.join(PATIENCE)
    link.open()
    assert roundtrip(link, unique("t")).payload == b"x"


def _fail(_self: object) -> None:
    raise RuntimeError("a defect")


def test_nagle_is_off(
    broker_url: str, unique: Unique, closing: Callable[[PahoLink], PahoLink], monkeypatch: pytest.MonkeyPatch
) -> None:
    """TCP_NODELAY is set on the socket: without it each QoS 1 round trip stalls for 83 ms."""
    options: list[int] = []

    def set_and_look(client: Client, userdata: Any, sock: socket.socket) -> None:
        set_nodelay(client, userdata, sock)
        options.append(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    monkeypatch.setattr("mqinfer.broker.paho.connecting.set_nodelay", set_and_look)
    closing(PahoLink(BrokerAddress.parse(broker_url), client_id=unique("c"))).open()
    assert options
    assert all(options)


def test_nobody_listens(unique: Unique) -> None:
    """The error names host and port and says how to start a broker."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        link = make_link(f"mqtt://127.0.0.1:{port}", client_id=unique("c"))
        with pytest.raises(BrokerUnreachable, match=rf"127\.0\.0\.1:{port} .*mqinfer broker --port {port}"):
            link.open(PATIENCE)
    assert not link.connected


@pytest.mark.parametrize("host", ["no-such-host.invalid", "a" * 70 + ".invalid", "."])
def test_a_host_that_is_no_host(unique: Unique, host: str) -> None:
    """A name that can't be resolved, or can't be one at all, is an unreachable broker."""
    with pytest.raises(BrokerUnreachable, match=r"no broker answers"):
        make_link(f"mqtt://{host}:1883", client_id=unique("c")).open(PATIENCE)


def test_a_silent_listener(unique: Unique) -> None:
    """Somebody who takes the connection and says nothing is no broker, and `open` says so in time."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        link = make_link(f"mqtt://127.0.0.1:{listener.getsockname()[1]}", client_id=unique("c"))
        with pytest.raises(BrokerUnreachable, match="answer"):
            link.open(0.3)


@pytest.mark.parametrize("greeting", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n" + bytes(200)])
def test_a_listener_that_hangs_up(unique: Unique, greeting: bytes) -> None:
    """Somebody who closes the connection at once, or speaks something else, is no broker."""

    def serve(connection: socket.socket) -> None:
        if connection.recv(1000) == _END:
            raise StopIteration
        connection.sendall(greeting)

    with listener(serve) as address:
        link = PahoLink(address, client_id=unique("c"))
        with pytest.raises(BrokerUnreachable, match="is it an MQTT broker"):
            link.open(3.0)


@pytest.mark.parametrize("closed", ["at once", "after CONNECT"])
def test_a_first_connection_that_is_closed(unique: Unique, closed: str) -> None:
    """A broker that closes the first connections before it answers is tried again within the time of `open`."""
    connects: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        if closed == "at once" and len(connects) < 3:
            connects.append(b"")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # a reset
            return
        received = connection.recv(1000)
        if received == _END:
            raise StopIteration
        connects.append(received)
        if len(connects) > 3:
            connection.sendall(b"\x20\x03\x00\x00\x00")  # CONNACK: success
            connection.recv(1000)

    with listener(serve) as address:
        link = PahoLink(address, client_id=unique("c"))
        link.open(PATIENCE)
        assert link.connected
        link.close()
    assert len(connects) == 4


def test_a_refusal_is_no_closed_connection(unique: Unique) -> None:
    """Where the broker says why it refuses, the first attempt is the last."""
    connects: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        received = connection.recv(1000)
        if received == _END:
            raise StopIteration
        connects.append(received)
        connection.sendall(b"\x20\x03\x00\x88\x00")  # CONNACK: server unavailable

    with listener(serve) as address, pytest.raises(BrokerUnreachable, match="refused the connection"):
        PahoLink(address, client_id=unique("c")).open(PATIENCE)
    assert len(connects) == 1


def test_a_name_that_is_taken_over(
    unique: Unique, closing: Callable[[PahoLink], PahoLink], caplog: pytest.LogCaptureFixture
) -> None:
    """A link that is told that another connection took its id reports it, and connects again with the same id."""
    connects: list[bytes] = []

    def serve(connection: socket.socket) -> None:
        received = connection.recv(1000)
        if received == _END:
            raise StopIteration
        connects.append(received)
        connection.sendall(b"\x20\x03\x00\x00\x00")  # CONNACK: success
        if len(connects) < 3:
            connection.recv(1000)
            connection.sendall(b"\xe0\x01\x8e")  # DISCONNECT: session taken over
        connection.recv(1000)

    told = Told()
    with listener(serve) as address:
        link = closing(PahoLink(address, client_id=unique("twin"), on_connection=told))
        link.open()
        for states in ((True, False, True), (True, False, True, False, True)):
            link.publish(Message(unique("t"), b"x"))
            told.wait_for_states(*states)
        assert link.failure is None
        link.close(0.0)
    assert connects == connects[:1] * 3
    assert any("taken over" in record.getMessage() for record in caplog.records)


def test_twins_are_suspected(
    broker_url: str, unique: Unique, closing: Callable[[PahoLink], PahoLink], caplog: pytest.LogCaptureFixture
) -> None:
    """Mosquitto 2.0 tells nothing when a client id is taken over; after ten times the log names what is likely."""
    name, told = unique("twin"), Told()
    first = closing(PahoLink(BrokerAddress.parse(broker_url), client_id=name, on_connection=told))
    second = closing(PahoLink(BrokerAddress.parse(broker_url), client_id=name))
    first.open()
    second.open()

    def is_suspected(_: object) -> bool:
        return any(name in each.getMessage() and "another program" in each.getMessage() for each in caplog.records)

    told.wait_until(is_suspected, 3 * PATIENCE)  # those that last long on a busy machine do not count
    assert told.items.count(False) >= 9  # the tenth is told next
    assert first.failure is None
    second.close()
    told.wait_until(lambda states: states[-1], 3 * PATIENCE)


def test_the_thread_dies(
    broker_url: str,
    unique: Unique,
    closing: Callable[[PahoLink], PahoLink],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A defect on the link's thread is logged as critical, told, and the link is no longer connected."""
    told = Told()
    link = closing(PahoLink(BrokerAddress.parse(broker_url), client_id=unique("c"), on_connection=told))
    link.open()
    monkeypatch.setattr(Session, "write", _fail)
    link.publish(Message(unique("t"), b"x"))
    told.wait_for_states(True, False, False)
    link.close()
    assert not link.connected
    assert any(record.levelno == logging.CRITICAL for record in caplog.records)


@pytest.mark.parametrize("refusal", [b"\x20\x03\x00\x84\x00", b"\x20\x02\x00\x01"])
def test_mqtt_3_1_1(
    broker_url: str,
    unique: Unique,
    closing: Callable[[PahoLink], PahoLink],
    refusal: bytes,
    roundtrip: Roundtrip,
) -> None:
    """Where the broker refuses MQTT 5, in its words or in those of 3.1.1, the link speaks 3.1.1: messages flow."""
    port = BrokerAddress.parse(broker_url).port

    def serve(connection: socket.socket) -> None:
        connect = connection.recv(1000)
        if connect == _END:
            raise StopIteration
        if connect[8] == 5:  # the protocol level, behind a fixed header of two bytes and "MQTT"
            connection.sendall(refusal)
            return
        with socket.create_connection(("127.0.0.1", port)) as broker:
            broker.sendall(connect)
            back = threading.Thread(target=pump, args=(broker, connection))
            back.start()
            pump(connection, broker)
            back.join()

    with listener(serve) as address:
        will = Message(unique("will"), b"lost", content_type="a/b")
        link = closing(PahoLink(address, client_id=unique("c"), will=will))
        link.open()
        got = roundtrip(link, unique("t"), b"y" * 100_000)
        assert (got.payload, got.content_type) == (b"y" * 100_000, None)
        assert link.max_packet_size is None
        link.close()


def test_a_broker_keeps_to_itself_what_is_too_large(unique: Unique, closing: Callable[[PahoLink], PahoLink]) -> None:
    """A broker that takes more than the link does drops it; the link goes on, and sends nothing like it itself."""
    topic, largest = unique("t"), DEFAULT_LIMITS.packet_bytes
    configuration = lambda port: render(port).replace("max_packet_size 67108864", "max_packet_size 80000000")  # noqa: E731
    with MosquittoServer(configuration=configuration) as server:
        link = closing(link_to(server, unique("c")))
        link.open()
        assert link.max_packet_size == largest
        got: SimpleQueue[int] = SimpleQueue()
        link.subscribe(topic, lambda message: got.put(len(message.payload)))
        with pytest.raises(MessageTooLarge, match=f"to {largest} at most"):
            link.publish(Message(topic, bytes(largest)))
        stranger = Client(CallbackAPIVersion.VERSION2)
        stranger.connect("127.0.0.1", server.port)
        stranger.loop_start()
        for size in (largest, 3):
            stranger.publish(topic, bytes(size), qos=1).wait_for_publish(PATIENCE)
        assert got.get(timeout=PATIENCE) == 3, "the first was too large"
        stranger.disconnect()
        stranger.loop_stop()
        assert link.connected


def pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy until the source ends, then end the sink."""
    try:
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        return
