"""Brokers that send what none should: each lie ends in an error or in a new connection, and no link's thread ends."""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Self

import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.paho.link import PahoLink
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, MessageTooLarge, MqinferError

PATIENCE = 30.0
GOOD = b"\x20\x03\x00\x00\x00"
Unique = Callable[[str], str]


def connack(properties: bytes) -> bytes:
    """Encode a CONNACK that accepts, with properties."""
    return bytes((0x20, 3 + len(properties), 0, 0, len(properties))) + properties


class Liar:
    """A listener that plays one script a connection, and a faithful minimum of a broker once the scripts are used up.

    Args:
        scripts: What it sends for the CONNECT of each connection.
        shift: What it adds to the packet identifiers that it acknowledges on its first connection.
    """

    def __init__(self, *scripts: bytes, shift: int = 0) -> None:
        self._shift = shift
        self._scripts = list(scripts)
        self._changed = threading.Condition()
        self._closed = False
        self.served = 0
        """Connections so far."""
        self.pings = 0

    def __enter__(self) -> Self:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = BrokerAddress("127.0.0.1", self._listener.getsockname()[1])
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed = True
        with socket.create_connection(self._listener.getsockname()):
            pass
        self._thread.join()
        self._listener.close()

    def wait_for(self, connections: int) -> None:
        """Wait until so many connections came."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.served >= connections, PATIENCE), self.served

    def _accept(self) -> None:
        while True:
            connection, _ = self._listener.accept()
            with connection:
                if self._closed:
                    return
                connection.settimeout(PATIENCE)
                try:
                    self._serve(connection)
                except OSError:
                    continue

    def _serve(self, connection: socket.socket) -> None:
        connection.recv(1000)
        script = self._scripts.pop(0) if self._scripts else GOOD
        with self._changed:
            self.served += 1
            self._changed.notify_all()
        connection.sendall(script)
        if self._scripts and not script.startswith(b"\x20"):
            return
        while data := connection.recv(1 << 16):
            if data[0] == 0x82:  # SUBSCRIBE: granted
                connection.sendall(b"\x90\x04" + self._shifted(data[2:4]) + b"\x00\x01")
            elif data[0] >> 4 == 3:  # PUBLISH of the tests: acknowledged
                at = 4 + int.from_bytes(data[2:4])
                connection.sendall(b"\x40\x02" + self._shifted(data[at : at + 2]))
            elif data[0] == 0xC0:
                self.pings += 1
                connection.sendall(b"\xd0\x00")
            elif data[0] == 0xE0:
                return

    def _shifted(self, identifier: bytes) -> bytes:
        return (int.from_bytes(identifier) + self._shift * (self.served == 1)).to_bytes(2)


@contextmanager
def link_to(liar: Liar, client_id: str) -> Iterator[PahoLink]:
    """Yield a link that is not open, and close it."""
    link = PahoLink(liar.address, client_id=client_id)
    try:
        yield link
    finally:
        link.close(1.0)


def threads_of(client_id: str) -> int:
    """Count the threads of a link."""
    return sum(thread.name == f"mqinfer-link-{client_id}" for thread in threading.enumerate())


def works(link: PahoLink) -> bool:
    """Publish until a PUBACK comes, over whichever connection."""
    acked = threading.Event()
    for _ in range(int(PATIENCE / 0.1)):
        with suppress(LinkError):
            link.publish(Message("t", b"x"), lambda _: acked.set())
        if acked.wait(0.1):
            return True
    return False


BROKEN = {
    "a Receive Maximum of 0": connack(b"\x21\x00\x00"),
    "two Receive Maximums": connack(b"\x21\x00\x01\x21\x00\x02"),
    "a Maximum Packet Size of 0": connack(b"\x27\x00\x00\x00\x00"),
    "an unknown property": connack(b"\x7f\x00"),
    "a property of another packet": connack(b"\x26\x00\x01a\x00\x01b\x02\x00\x00\x00\x01"),
    "properties that end early": connack(b"\x21\x00"),
    "properties that go on behind the end": b"\x20\x03\x00\x00\x7f",
    "no properties": b"\x20\x02\x00\x00",
    "an empty CONNACK": b"\x20\x00",
    "an unknown reason": b"\x20\x03\x00\x7f\x00",
    "a text that is not UTF-8": connack(b"\x1f\x00\x02\xff\xff"),
    "no MQTT": b"HTTP/1.1 400 Bad Request\r\n\r\n",
    "nothing but zeros": bytes(100),
}
AFTER = {
    "a second CONNACK": GOOD,
    "a CONNECT": b"\x10\x00",
    "a topic alias": b"\x30\x07\x00\x01t\x03\x23\x00\x01",
    "QoS 2": b"\x34\x06\x00\x01t\x00\x01\x00",
    "QoS 3": b"\x36\x06\x00\x01t\x00\x01\x00",
    "an oversized packet": b"\x30\xff\xff\xff\x7f",
    "a length of five bytes": b"\x30\xff\xff\xff\xff\x01",
    "a topic that is not UTF-8": b"\x30\x04\x00\x01\xff\x00",
    "a topic that goes on behind the end": b"\x30\x03\x7f\xffx",
    "a PUBACK without a number": b"\x40\x00",
    "a SUBACK of nothing": b"\x90\x00",
    "a SUBACK that is cut": b"\x90\x03\x00\x01\x7f",
    "a SUBACK with an unknown reason": b"\x90\x04\x00\x01\x00\x7e",
    "an UNSUBACK of nothing": b"\xb0\x00",
    "a PUBREC of nothing": b"\x50\x00",
    "a PUBREL of nothing": b"\x62\x00",
    "a PUBCOMP of nothing": b"\x70\x00",
    "a PINGRESP with a body": b"\xd0\x01x",
    "AUTH": b"\xf0\x00",
    "packet type 0": b"\x00\x00",
    "a DISCONNECT with garbage": b"\xe0\x05\x80\x03\xff\xff\xff",
    "a DISCONNECT with an unknown reason": b"\xe0\x01\x7f",
}


@pytest.mark.parametrize("lie", BROKEN)
def test_a_broken_connack(unique: Unique, lie: str) -> None:
    """On the first connection it is an error of `open`; on a later one the link tries again, and then works."""
    with Liar(BROKEN[lie]) as liar, link_to(liar, unique("first")) as first, pytest.raises(BrokerUnreachable):
        first.open(3.0)
    client_id = unique("later")
    with Liar(GOOD, BROKEN[lie]) as liar, link_to(liar, client_id) as link:
        link.open(PATIENCE)
        link.cut()
        liar.wait_for(3)
        assert works(link)
        assert link.failure is None
        assert threads_of(client_id) == 1


@pytest.mark.parametrize("lie", AFTER)
def test_a_broken_packet(unique: Unique, lie: str) -> None:
    """Whatever follows the CONNACK: the link ends that connection at most, and works on the next."""
    client_id = unique("c")
    with Liar(GOOD + AFTER[lie]) as liar, link_to(liar, client_id) as link:
        try:
            link.open(3.0)
        except MqinferError:
            link.open(PATIENCE)  # it came with the CONNACK, before the link was ready
        assert works(link)
        assert link.failure is None
        assert threads_of(client_id) == 1


def test_acknowledgements_of_what_was_not_sent(unique: Unique) -> None:
    """A PUBACK or SUBACK with another packet identifier ends the connection, and the link works on the next."""
    asking: tuple[Callable[[PahoLink], object], ...] = (
        lambda link: link.publish(Message("t", b"x")),
        lambda link: link.subscribe("t", lambda _: None),
    )
    for ask in asking:
        with Liar(shift=1) as liar, link_to(liar, unique("c")) as link:
            link.open(PATIENCE)
            ask(link)
            liar.wait_for(2)
            assert works(link)


def test_closing_waits_for_no_acknowledgement_that_cannot_come(unique: Unique) -> None:
    """A link whose broker acknowledged something else is closed at once, whatever time it was given."""
    with Liar(shift=1) as liar:
        link = PahoLink(liar.address, client_id=unique("c"))
        link.open(PATIENCE)
        link.publish(Message("t", b"x"))
        closing = threading.Thread(target=link.close, args=(4 * PATIENCE,))
        closing.start()
        closing.join(PATIENCE)
        assert not closing.is_alive()


@pytest.mark.full
def test_garbage(unique: Unique) -> None:
    """Twelve connections in a row bring random bytes behind their CONNACK, of all packet types."""
    chance, client_id = random.Random(9), unique("c")  # noqa: S311 - no secret depends on it
    scripts = [GOOD]
    for kind in (1, 2, 4, 5, 6, 7, 9, 11, 13, 14, 15, 3):
        body = chance.randbytes(chance.randrange(40))
        scripts.append(GOOD + bytes((kind << 4 | chance.randrange(16), len(body))) + body)
    with Liar(*scripts) as liar, link_to(liar, client_id) as link:
        link.open(PATIENCE)
        for number in range(1, len(scripts) + 1):
            liar.wait_for(number)
            assert works(link)
            link.cut()
        assert works(link)
        assert link.failure is None
        assert threads_of(client_id) == 1


def test_a_tiny_maximum_packet_size(unique: Unique) -> None:
    """Every message above it is an error for its publisher, and the connection stays."""
    told: list[bool] = []
    with Liar(connack(b"\x27" + struct.pack("!I", 12))) as liar:
        link = PahoLink(liar.address, client_id=unique("c"), on_connection=told.append)
        link.open(PATIENCE)
        for _ in range(500):
            with pytest.raises(MessageTooLarge, match="Maximum Packet Size is 12"):
                link.publish(Message("t", bytes(20)))
        assert works(link)
        link.close(1.0)
    assert told == [True]


@pytest.mark.parametrize("seconds", [0, 1, 65_535])
def test_a_keep_alive_of_the_brokers(unique: Unique, seconds: int) -> None:
    """A Keep Alive that is stated makes the link ping as often; none, or one of hours, not more seldom than its own."""
    with Liar(connack(b"\x13" + seconds.to_bytes(2))) as liar, link_to(liar, unique("c")) as link:
        link.open(PATIENCE)
        if seconds == 1:
            for _ in range(int(PATIENCE)):
                threading.Event().wait(0.5)
                if liar.pings >= 2:
                    break
            assert liar.pings >= 2
        assert works(link)
        assert liar.served == 1


def test_names_that_nobody_asked_for(unique: Unique) -> None:
    """Another client identifier, Topic Aliases, a Receive Maximum of 1: the link keeps its id, and all get through."""
    lies = b"\x12\x00\x05other" + b"\x22\xff\xff" + b"\x21\x00\x01" + b"\x2a\x00" + b"\x25\x00"
    with Liar(connack(lies)) as liar, link_to(liar, unique("c")) as link:
        link.open(PATIENCE)
        acked = threading.Semaphore(0)
        for _ in range(50):
            link.publish(Message("t", b"x"), lambda _: acked.release())
        for _ in range(50):
            assert acked.acquire(timeout=PATIENCE)
        assert liar.served == 1
