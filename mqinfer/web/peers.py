"""Connections of this process by their peers, where a library keeps them to itself, as gRPC does; on Linux alone."""

from __future__ import annotations

import socket
import struct
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")
_BYTES_RECEIVED = 128
"""Where Linux has it in its `tcp_info`."""


def received_bytes() -> dict[str, int]:
    """Return what each connection has received, by its peer as gRPC writes it; empty where that can't be known."""
    found: dict[str, int] = {}
    for peer, connection in _connections():
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
        found[peer] = struct.unpack_from("=Q", info, _BYTES_RECEIVED)[0]
    return found


def close_connections(peers: Collection[str]) -> None:
    """End the connections of peers, named as gRPC does; what their owner keeps for them is freed thereby."""
    for name, connection in _connections():
        if name in peers:
            with suppress(OSError):  # it is closed already
                connection.shutdown(socket.SHUT_RDWR)


def _connections() -> Iterator[tuple[str, socket.socket]]:
    """Yield the connections of TCP, each borrowed until the next."""
    descriptors: list[Path] = []
    with suppress(OSError):  # there may be none free
        descriptors = list(_DESCRIPTORS.iterdir())
    for path in descriptors:
        with suppress(OSError):
            connection = socket.socket(fileno=int(path.name))
            try:
                if connection.family in {socket.AF_INET, socket.AF_INET6} and connection.type == socket.SOCK_STREAM:
                    yield _name(*connection.getpeername()[:2]), connection
            finally:
                connection.detach()


def _name(host: str, port: int) -> str:
    host = host.removeprefix("::ffff:")
    return f"ipv6:%5B{host}%5D:{port}" if ":" in host else f"ipv4:{host}:{port}"
