"""What the tests of attempts share: links, and packets that no MQTT library would send."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import Any

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.folder import Login
from mqinfer.broker.mosquitto.serving import keep_current
from mqinfer.broker.paho.link import PahoLink
from mqinfer.protocol.errors import LinkError

__all__ = [
    "NOT_AUTHORIZED",
    "NO_WORKERS",
    "PATIENCE",
    "ROOT",
    "error_of",
    "kept_current",
    "listening",
    "opened",
    "options",
    "packet",
    "pretending",
    "publish",
    "raw",
    "text",
    "until",
]

PATIENCE = 60.0
NOT_AUTHORIZED = 0x87
ROOT = "mqinfer/v1"
NO_WORKERS = ["car-1", "dash", "op", "gw"]
"""Clients of the broker `secured` whose roles may not serve."""


def publish(
    link: PahoLink, topic: str, payload: bytes = b"x", *, retain: bool = False, patience: float = PATIENCE
) -> int:
    """Publish and wait for the PUBACK's reason code."""
    codes: SimpleQueue[int] = SimpleQueue()
    link.publish(Message(topic, payload, retain=retain), codes.put)
    return codes.get(timeout=patience)


@contextlib.contextmanager
def listening(link: PahoLink, *filters: str, share: str | None = None) -> Iterator[SimpleQueue[Message]]:
    """Subscribe for the length of a block."""
    inbox: SimpleQueue[Message] = SimpleQueue()
    for each in filters:
        link.subscribe(each, inbox.put, share=share)
    try:
        yield inbox
    finally:
        for each in filters:
            link.unsubscribe(each, share=share)


def until(inbox: SimpleQueue[Message], topic: str) -> list[Message]:
    """Take what came up to the first message on a topic."""
    found = [inbox.get(timeout=PATIENCE)]
    while found[-1].topic != topic:
        found.append(inbox.get(timeout=PATIENCE))
    return found


def context_of(login: Login) -> ssl.SSLContext:
    """A client's TLS, for what no MQTT library would send."""
    context = ssl.create_default_context(cafile=login.ca_file)
    if login.cert_file:
        context.load_cert_chain(login.cert_file, login.key_file)
    return context


def options(text: str) -> list[str]:
    """The lines of a configuration that say something."""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def text(content: bytes) -> bytes:
    """A string of MQTT."""
    return len(content).to_bytes(2, "big") + content


def packet(kind: int, body: bytes) -> bytes:
    """A packet of MQTT."""
    size, length = len(body), b""
    while True:
        size, low = divmod(size, 128)
        length += bytes([low | (128 if size else 0)])
        if not size:
            return bytes([kind]) + length + body


@contextlib.contextmanager
def raw(secured: Any, login: Login, client_id: str) -> Iterator[ssl.SSLSocket]:
    """A connection on which anything may be sent, after its CONNACK."""
    with (
        socket.create_connection(("127.0.0.1", secured.server.port), PATIENCE) as plain,
        context_of(login).wrap_socket(plain, server_hostname="localhost") as connection,
    ):
        connection.sendall(packet(0x10, text(b"MQTT") + b"\x05\x02\x00\x3c\x00" + text(client_id.encode())))
        assert connection.recv(4096)[0] == 0x20
        yield connection


@contextlib.contextmanager
def pretending(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Listen in the broker's place for one connection; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            connection, _ = server.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield server.getsockname()[1]
        thread.join()


@contextlib.contextmanager
def kept_current(secured: Any) -> Iterator[None]:
    """Have the broker read its files again whenever they change, as `mqinfer broker --config` does."""
    stop = threading.Event()
    watching = threading.Thread(target=keep_current, args=(secured.server, secured.folder, stop))
    watching.start()
    try:
        yield
    finally:
        stop.set()
        watching.join()


def opened(secured: Any, name: str, client_id: str) -> PahoLink:
    """A link of a client that is open."""
    link = PahoLink(secured.address(name), client_id=client_id)
    link.open(PATIENCE)
    return link


def error_of(address: BrokerAddress, client_id: str, timeout: float = PATIENCE) -> LinkError | None:
    """Return what a connection ends in; None where it is let in.

    A connection that is closed without an answer is tried again until the time is over.
    """
    link = PahoLink(address, client_id=client_id)
    try:
        link.open(timeout)
    except LinkError as error:
        return error
    finally:
        link.close()
    return None
