"""What those can do to others who have no login, who reach the network, and who have the broker's machine.

They are lines of the same table in docs/reference/security.md as those of `test_roles`.
"""

from __future__ import annotations

import contextlib
import re
import socket
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import pytest

from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.certificates import Authority, Pair
from mqinfer.broker.paho.link import PahoLink
from mqinfer.protocol.errors import LinkError
from tests.broker.attempts import (
    NOT_AUTHORIZED,
    PATIENCE,
    listening,
    opened,
    packet,
    publish,
    text,
    until,
)
from tests.broker.attempts import ROOT as R
from tests.patience import wait_until

pytestmark = pytest.mark.broker

Links = Mapping[str, PahoLink]
Unique = Callable[[str], str]


def greeting(kind: str) -> tuple[bytes, Callable[[bytes], bytes]]:
    """What opens a listener to MQTT, and how its bytes are sent there."""
    if kind == "passwords":
        return b"", bytes
    upgrade = (
        "GET /mqtt HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n"
        "Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )

    def framed(data: bytes) -> bytes:
        return b"\x82\xff" + len(data).to_bytes(8, "big") + bytes(4) + data  # masked with zeros

    return upgrade.encode(), framed


@pytest.mark.parametrize(("kind", "answer"), [("passwords", 0xE0), ("websockets", 0x40)])
def test_a_packet_above_the_limit(secured: Any, links: Links, kind: str, answer: int) -> None:
    """Refused (DISCONNECT); over websockets Mosquitto 2.0 takes it (PUBACK), but no link of mqinfer receives it."""
    port = secured.password_port if kind == "passwords" else secured.websockets_port
    login, topic = secured.passwords["car-1"], f"{R}/models/m/infer/car-1"
    context = ssl.create_default_context(cafile=login.ca_file)
    upgrade, framed = greeting(kind)
    who = text(kind.encode()) + text(b"car-1") + text(login.password.encode())
    with (
        listening(links["w"], topic) as worker,
        socket.create_connection(("127.0.0.1", port), PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        if upgrade:
            connection.sendall(upgrade)
            assert b" 101 " in connection.recv(4096)
        connection.sendall(framed(packet(0x10, text(b"MQTT") + b"\x05\xc2\x00\x3c\x00" + who)))
        assert b"\x20" in connection.recv(4096)[:3]  # CONNACK; a frame of websockets has two bytes before it
        with contextlib.suppress(OSError):
            connection.sendall(framed(packet(0x32, text(topic.encode()) + b"\x00\x01\x00" + bytes(68 << 20))))
        assert answer in connection.recv(4096)[:3]
        publish(links["car-1"], topic, b"last")
        assert bytes(worker.get(timeout=PATIENCE).payload) == b"last"


@pytest.mark.parametrize("kind", ["passwords", "websockets"])
def test_memory_that_strangers_claim(small: Any, unique: Unique, kind: str) -> None:
    """Where no certificate is wanted, a few bytes without a login claim memory: large messages of others fail then.

    Not over TCP from Mosquitto 2.0.15 on, which closes connections that announce a CONNECT above 100 kB.
    """
    version = re.search(r"mosquitto version 2\.(\d+)\.(\d+) ", small.server.log())
    assert version
    is_refused = kind == "passwords" and (int(version[1]), int(version[2])) >= (0, 15)
    port = small.password_port if kind == "passwords" else small.websockets_port
    context = ssl.create_default_context(cafile=small.folder.path / "ca.crt")
    upgrade, framed = greeting(kind)
    with contextlib.ExitStack() as stack:
        for size in (24 << 20, 4 << 20, 2 << 20, 1 << 20, 1 << 19, 1 << 18, 1 << 17):  # of 32 MiB
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", port), PATIENCE))
            connection = stack.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
            if upgrade:
                connection.sendall(upgrade)
                assert b" 101 " in connection.recv(4096)
            connection.sendall(framed(packet(0x10, bytes(size))[:5]))
        victim_id = unique("victim")
        victim = opened(small, "car-2", victim_id)
        if is_refused:
            assert publish(victim, f"{R}/models/m/infer/car-2", bytes(4 << 20)) != NOT_AUTHORIZED
            victim.close()
            return
        victim.publish(Message(f"{R}/models/m/infer/car-2", bytes(4 << 20)))
        wait_until(lambda: f"{victim_id} disconnected due to out of memory" in small.server.log())

    def gets_through() -> bool:  # as soon as the broker has noticed that they are gone
        with contextlib.suppress(LinkError, Empty):  # what was published when the connection ended gets no PUBACK
            return publish(victim, f"{R}/models/m/infer/car-2", bytes(4 << 20), patience=5) != NOT_AUTHORIZED
        return False

    wait_until(gets_through)
    victim.close()


def test_strangers_and_the_listener_for_certificates(small: Any, unique: Unique) -> None:
    """There a stranger gets no further than TLS: 100 connections that claim memory leave others alone."""
    context = ssl.create_default_context(cafile=small.folder.path / "ca.crt")
    with contextlib.ExitStack() as stack:
        for _ in range(100):
            plain = stack.enter_context(socket.create_connection(("127.0.0.1", small.server.port), PATIENCE))
            with contextlib.suppress(OSError):
                connection = stack.enter_context(context.wrap_socket(plain, server_hostname="localhost"))
                connection.sendall(packet(0x10, bytes(24 << 20))[:5])
        victim = opened(small, "car-2", unique("victim"))
        assert publish(victim, f"{R}/models/m/infer/car-2", bytes(4 << 20)) != NOT_AUTHORIZED
        victim.close()


class Tap:
    """A wire between a client and the broker that somebody listens to, and may change."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.seen = bytearray()
        self.flips = False
        self._threads = [threading.Thread(target=self._accept)]
        self._sockets: list[socket.socket] = []
        self._threads[0].start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                far = socket.create_connection(("127.0.0.1", self._port))
                self._sockets += [near, far]
                for pair in ((near, far), (far, near)):
                    self._threads.append(threading.Thread(target=self._pump, args=pair))
                    self._threads[-1].start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                self.seen += data
                if self.flips:
                    data = data[:-1] + bytes([data[-1] ^ 1])
                sink.sendall(data)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """End everything."""
        self._server.shutdown(socket.SHUT_RDWR)
        self._server.close()
        for each in self._sockets:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in self._sockets:
            each.close()


@pytest.fixture
def tap(secured: Any) -> Iterator[Tap]:
    """A wire to the secured broker."""
    made = Tap(secured.server.port)
    yield made
    made.close()


def test_whoever_reads_the_network(secured: Any, links: Links, unique: Unique, tap: Tap) -> None:
    """On the wire there is no topic, no payload and no client's name."""
    link = PahoLink(replace(secured.address("car-1"), port=tap.port), client_id=unique("wired"))
    link.open(PATIENCE)
    with listening(links["witness"], f"{R}/models/m/infer/car-1") as inbox:
        publish(link, f"{R}/models/m/infer/car-1", b"a frame that nobody may see")
        assert bytes(inbox.get(timeout=PATIENCE).payload) == b"a frame that nobody may see"
    link.close()
    assert len(tap.seen) > 1000
    assert not [word for word in (b"mqinfer", b"infer", b"frame", b"car-1", b"wired", b"MQTT") if word in tap.seen]


def test_whoever_changes_the_network(secured: Any, links: Links, unique: Unique, tap: Tap) -> None:
    """One flipped bit ends the connection, and nothing of the message arrives."""
    states: SimpleQueue[bool] = SimpleQueue()
    link = PahoLink(
        replace(secured.address("car-1"), port=tap.port), client_id=unique("wired"), on_connection=states.put
    )
    link.open(PATIENCE)
    assert states.get(timeout=PATIENCE)
    topic = f"{R}/models/m/infer/car-1"
    with listening(links["witness"], topic) as inbox:
        tap.flips = True
        link.publish(Message(topic, b"x" * 1000))
        assert not states.get(timeout=PATIENCE)
        link.close()
        publish(links["car-1"], topic, b"last")
        assert [bytes(message.payload) for message in until(inbox, topic)] == [b"last"]


def test_whoever_has_the_brokers_machine(secured: Any, links: Links, unique: Unique, tmp_path: Path) -> None:
    """The rules are a file there: who writes it reads every frame; who has `ca.key` too is anybody that they like."""
    with listening(links["witness"], f"{R}/#") as inbox:  # a section that a test has written into the file
        publish(links["car-1"], f"{R}/models/m/infer/car-1", b"a frame")
        assert bytes(until(inbox, f"{R}/models/m/infer/car-1")[-1].payload) == b"a frame"
    folder = secured.folder.path
    forged = Authority(Pair((folder / "ca.crt").read_bytes(), (folder / "ca.key").read_bytes())).client("op", 1)
    login = replace(secured.logins["op"], cert_file=tmp_path / "op.crt", key_file=tmp_path / "op.key")
    (tmp_path / "op.crt").write_bytes(forged.certificate)
    (tmp_path / "op.key").write_bytes(forged.key)
    link = PahoLink(secured.address(login), client_id=unique("forged"))
    link.open(PATIENCE)
    assert publish(link, f"{R}/control/all/op/repository/models/m/unload") != NOT_AUTHORIZED
    link.close()
