"""Connections of this process by their two ends, where a library keeps them to itself, as gRPC does; on Linux alone."""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_UNIX = "unix:"
_BYTES_RECEIVED = 128
"""Where Linux has it in its `tcp_info`."""


def name_connection(peer: str, port: int) -> str:
    """Return the name of a connection: its peer, as gRPC writes it, and the port of this process that it came to.

    A peer may reach several ports of a gateway from one port of its own, and behind one address may be several peers.
    gRPC has one name for all peers at Unix sockets, so their connections are one.
    """
    return _UNIX if peer.startswith(_UNIX) else f"{peer} to port {port}"


def received_bytes() -> dict[str, int]:
    """Return what each connection has received, by its name; empty where that can't be known."""
    found: dict[str, int] = {}
    for peer, connection in _connections():
        if peer == _UNIX:
            continue  # the kernel does not count there
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        found[peer] = struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0]
    return found


def close_connections(names: Collection[str]) -> None:
    """End connections by their names; what their owner keeps for them is freed thereby."""
    for name, connection in _connections():
        if name in names:
            with suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)


def _connections() -> Iterator[tuple[str, socket.socket]]:
    """Yield the connections, those that came to Unix sockets among them; each is borrowed until the next."""
    descriptors: list[Path] = []
    with suppress(OSError):  # there may be none free
        descriptors = list(_DESCRIPTORS.iterdir())
    for path in descriptors:
        with suppress(OSError):
            connection = socket.socket(fileno=int(path.name))
            try:
                peer, own = connection.getpeername(), connection.getsockname()
                if connection.type != socket.SOCK_STREAM:
                    continue
                if connection.family in {socket.AF_INET, socket.AF_INET6}:
                    yield name_connection(_name(*peer[:2]), own[1]), connection
                elif connection.family == socket.AF_UNIX and own:
                    yield _UNIX, connection
            finally:
                connection.detach()


def _name(host: str, port: int) -> str:
    host = host.removeprefix("::ffff:")
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
