"""A bare MQTT 3.1.1 connection for the guard: it reads topics and sizes, and never keeps a payload in memory.

The guard must get through what fills a broker, so it can't use a link: that one keeps each message of up to 64 MiB
whole, waits for the answer to each subscription, and gives up for good when its client id is taken.
"""

from __future__ import annotations

import socket
import ssl
import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple, Self

from mqinfer.broker.packets import PUBLISH, encode_puback, encode_variable_integer

_CONNACK, _PINGRESP = 0x20, 0xD0
_PINGREQ, _DISCONNECT = b"\xc0\x00", b"\xe0\x00"
_CLEAN_SESSION = 0x02
_PROTOCOL, _PROTOCOL_5 = b"\x00\x04MQTT\x04", b"\x00\x04MQTT\x05"
_TIMEOUT_S = 10.0
_KEEPALIVE_S = 15
_CHUNK = 1 << 16


class Kept(NamedTuple):
    """A message as the guard sees it.

    Attributes:
        topic: Where it was published.
        size: Of its payload, in bytes.
        retained: Whether the broker had kept it.
    """

    topic: str
    size: int
    retained: bool


@dataclass(frozen=True, slots=True)
class Door:
    """Where the guard connects.

    Attributes:
        host: Of the broker.
        port: Of the broker.
        tls: With the guard's certificate, or None.
    """

    host: str
    port: int
    tls: ssl.SSLContext | None = None


def connecting(client_id: str) -> bytes:
    """Return the CONNECT packet of a clean session: it ends the connection and the session that the id had."""
    return _packet(0x10, _PROTOCOL + struct.pack("!BH", _CLEAN_SESSION, _KEEPALIVE_S) + _string(client_id))


def taking_over(client_id: str) -> bytes:
    """Return the CONNECT packet of MQTT 5 that takes over the session of an id, if there is one, and ends with it."""
    return _packet(0x10, _PROTOCOL_5 + struct.pack("!BHB", 0, _KEEPALIVE_S, 0) + _string(client_id))


def subscribing(filters: Sequence[str]) -> bytes:
    """Return a SUBSCRIBE packet for QoS 1, which bounds what the broker copies for the guard at a time."""
    return _packet(0x82, b"\x00\x01" + b"".join(_string(each) + b"\x01" for each in filters))


def unsubscribing(filters: Sequence[str]) -> bytes:
    """Return an UNSUBSCRIBE packet."""
    return _packet(0xA2, b"\x00\x02" + b"".join(map(_string, filters)))


def clearing(topic: str) -> bytes:
    """Return the PUBLISH packet that removes what is retained on a topic."""
    return _packet(PUBLISH | 0x01, _string(topic))


class Connection:
    """A connection as a context manager, for one thread.

    Attributes:
        found_session: Whether it has taken over a session.

    Args:
        door: Where to connect.
        client_id: Under which name.
        connect: Returns the first packet; after `taking_over` nothing can be done but to close.

    Raises:
        OSError: The broker is away, refuses, or TLS fails.
    """

    def __init__(self, door: Door, client_id: str, connect: Callable[[str], bytes] = connecting) -> None:
        self._socket = _open(door)
        self._stream = self._socket.makefile("rb", buffering=_CHUNK)
        try:
            self.found_session = self._enter(connect(client_id))
        except BaseException:
            self._shut()
            raise

    def _enter(self, connect: bytes) -> bool:
        self.send(connect)
        kind, size = self._head()
        answer = self._exactly(size)
        if kind != _CONNACK or len(answer) < 2 or answer[1]:
            raise ConnectionError("the broker refused the guard's connection")
        return bool(answer[0] & 0x01)

    def send(self, *packets: bytes) -> None:
        """Send packets in one piece: over TLS the broker handles them without another client's in between."""
        self._socket.sendall(b"".join(packets))

    def until_pong(self) -> Iterator[Kept]:
        """Return what comes until the broker has answered a PINGREQ, and acknowledge it."""
        self.send(_PINGREQ)
        while True:
            kind, size = self._head()
            if kind & 0xF0 == PUBLISH:
                yield self._message(kind, size)
                continue
            self._skip(size)
            if kind == _PINGRESP:
                return

    def _message(self, kind: int, size: int) -> Kept:
        (length,) = struct.unpack("!H", self._exactly(2))
        topic = self._exactly(length).decode(errors="replace")
        identifier = self._exactly(2) if kind & 0x06 else b""
        payload = size - 2 - length - len(identifier)
        self._skip(payload)
        if identifier:
            self.send(encode_puback(int.from_bytes(identifier)))
        return Kept(topic, payload, bool(kind & 0x01))

    def _head(self) -> tuple[int, int]:
        kind, size, shift = self._exactly(1)[0], 0, 0
        while True:
            (byte,) = self._exactly(1)
            size |= (byte & 0x7F) << shift
            if byte < 0x80:
                return kind, size
            shift += 7

    def _exactly(self, size: int) -> bytes:
        data: bytes = self._stream.read(size)
        if len(data) < size:
            raise ConnectionError("the broker ended the guard's connection")
        return data

    def _skip(self, size: int) -> None:
        while size:
            size -= len(self._exactly(min(size, _CHUNK)))

    def close(self) -> None:
        """Disconnect."""
        with suppress(OSError):  # it may be gone already
            self.send(_DISCONNECT)
        self._shut()

    def _shut(self) -> None:
        self._stream.close()  # as long as it is open, so is the socket
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _open(door: Door) -> socket.socket:
    plain = socket.create_connection((door.host, door.port), _TIMEOUT_S)
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    if door.tls is None:
        return plain
    try:
        return door.tls.wrap_socket(plain, server_hostname=door.host)
    except BaseException:
        plain.close()
        raise


def _packet(kind: int, body: bytes) -> bytes:
    return bytes((kind,)) + encode_variable_integer(len(body)) + body


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("!H", len(data)) + data
