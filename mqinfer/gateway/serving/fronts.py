"""The ports of a gateway: what serves each of them, and TLS."""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import grpc
from aiohttp import web

from mqinfer.gateway.access import Access
from mqinfer.gateway.core import Core
from mqinfer.gateway.deepstack.zmq import ZmqServer
from mqinfer.gateway.grpc import make_handlers
from mqinfer.gateway.grpc_calls import make_server, start_server
from mqinfer.gateway.http import make_runner
from mqinfer.gateway.metrics import make_metrics_app
from mqinfer.gateway.rest.app import make_app
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.gateway.tfs.grpc import make_grpc_handlers
from mqinfer.gateway.tfs.rest import make_rest_app
from mqinfer.protocol.errors import MqinferError
from mqinfer.web.connections import cannot_listen, place_of
from mqinfer.web.tls import TlsFiles

_SOCKET_UMASK = 0o117
"""A Unix socket is for this user and its group."""
_BACKLOG = 4096
"""Connections that the kernel keeps until they are accepted, as with gRPC; further callers wait a second or more."""


@dataclass(frozen=True, slots=True)
class Front:
    """A port and what serves it.

    Attributes:
        name: The name for people.
        field: The field of the ports that holds its own.
        make: Maker of the application, the handlers or the server.
        kind: What it speaks: HTTP, gRPC, or ZMTP.
        bind: The field of the ports that holds the address.
        has_tls: Whether it is encrypted where the gateway is.
        socket: The field of the ports that holds the path of a Unix socket beside its port.
    """

    name: str
    field: str
    make: Callable[[Core, Access, GatewaySettings], Any]
    kind: Literal["http", "grpc", "zmtp"] = "http"
    bind: str = "bind"
    has_tls: bool = True
    socket: str = ""

    def address(self, settings: GatewaySettings) -> tuple[str, int]:
        """Return where it listens."""
        return getattr(settings.ports, self.bind), getattr(settings.ports, self.field)

    def place(self, settings: GatewaySettings) -> str:
        """Return where it listens, as people write it."""
        return place_of(*self.address(settings))

    def path(self, settings: GatewaySettings) -> Path | None:
        """Return the path of its Unix socket."""
        found: Path | None = getattr(settings.ports, self.socket) if self.socket else None
        return found

    def places(self, settings: GatewaySettings) -> list[str]:
        """Return all places where it listens, as gRPC and people write them."""
        port, path = self.address(settings)[1], self.path(settings)
        found = [self.place(settings)] if port else []
        return [*found, f"unix:{path}"] if path else found


_FRONTS = (
    Front("HTTP", "http_port", make_app),
    Front("gRPC", "grpc_port", make_handlers, kind="grpc"),
    Front("metrics", "metrics_port", make_metrics_app, bind="metrics_bind", has_tls=False),
    Front("TensorFlow Serving gRPC", "tfs_grpc_port", make_grpc_handlers, kind="grpc", socket="tfs_grpc_socket"),
    Front("TensorFlow Serving REST", "tfs_rest_port", make_rest_app),
    Front("Frigate's zmq", "zmq_port", ZmqServer, kind="zmtp", bind="zmq_bind"),
)


class Fronts:
    """The servers of the fronts."""

    def __init__(self, settings: GatewaySettings, *, shared: bool) -> None:
        self.settings = settings
        self._shared = shared
        self._runners: list[Any] = []
        self._servers: list[Any] = []

    async def open(self, core: Core, access: Access, tls: ssl.SSLContext | None) -> None:
        """Open the ports that are not switched off."""
        for front in _open_fronts(self.settings):
            made = front.make(core, access, self.settings)
            if front.kind == "grpc":
                await self._open_grpc(front, made)
            elif front.kind == "http":
                await self._open_http(front, made, tls if front.has_tls else None)
            else:
                await self._open_zmtp(front, made)

    async def close(self, patience: float) -> None:
        """Stop listening, and wait for the calls under way; those that take longer are cut off."""
        runners, servers = self._runners, self._servers
        self._runners, self._servers = [], []
        await asyncio.gather(*(each.stop(patience) for each in servers), *(each.cleanup() for each in runners))

    async def _open_http(self, front: Front, app: Any, tls: ssl.SSLContext | None) -> None:
        settings = self.settings
        runner = make_runner(app, settings)
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(
            runner, *front.address(settings), ssl_context=tls, reuse_port=self._shared or None, backlog=_BACKLOG
        )
        try:
            await site.start()
        except OSError as error:
            raise _cannot_listen(front, front.place(settings), error) from error

    async def _open_zmtp(self, front: Front, server: ZmqServer) -> None:
        host, port = front.address(self.settings)
        try:
            await server.start(host=host, port=port, reuse_port=self._shared or None, backlog=_BACKLOG)
        except OSError as error:
            raise _cannot_listen(front, front.place(self.settings), error) from error
        self._servers.append(server)

    async def _open_grpc(self, front: Front, handlers: Any) -> None:
        settings = self.settings
        server = make_server(handlers, settings, shared=self._shared)
        tls = settings.callers.tls and _grpc_credentials(settings.callers.tls)
        opened, mask = list[int](), os.umask(_SOCKET_UMASK)
        try:
            for where in front.places(settings):
                opened.append(server.add_secure_port(where, tls) if tls else server.add_insecure_port(where))
        except RuntimeError as error:  # which names no cause
            raise _cannot_listen(front, where, OSError(str(error))) from error
        finally:
            os.umask(mask)
        await start_server(server, opened[0])
        self._servers.append(server)


def check_ports(settings: GatewaySettings) -> None:
    """Check that no other program listens on the ports, also none that shares them.

    Raises:
        MqinferError: One does, or the address is none of this machine's.
    """
    for front in _open_fronts(settings):
        if path := front.path(settings):
            _check_socket(front, path)
        try:
            family, kind, _, _, where = socket.getaddrinfo(
                *front.address(settings), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else connections of before are in the way
                probe.bind(where)
        except OSError as error:
            raise _cannot_listen(front, front.place(settings), error) from error


def _check_socket(front: Front, path: Path) -> None:
    """Check that a Unix socket may be made: gRPC takes the place of one that is there, also of one in use."""
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            code = probe.connect_ex(str(path))
    except OSError as error:
        raise _cannot_listen(front, f"unix:{path}", error) from error
    is_left = code == errno.ECONNREFUSED and path.is_socket()  # by one that was killed
    if code != errno.ENOENT and not is_left:
        why = "a file that is no socket" if code == errno.ECONNREFUSED else os.strerror(code or errno.EADDRINUSE)
        raise _cannot_listen(front, f"unix:{path}", OSError(code, why))


def _cannot_listen(front: Front, where: str, error: OSError) -> MqinferError:
    fields = (front.socket,) if where.startswith("unix:") else (front.field, front.bind)
    return cannot_listen(where, error, *(f"--{field.replace('_', '-')}" for field in fields))


def _open_fronts(settings: GatewaySettings) -> Iterator[Front]:
    return (front for front in _FRONTS if front.places(settings))


def places(settings: GatewaySettings) -> str:
    """Return the ports that are open, for people."""
    return ", ".join(f"{front.name} on {' and '.join(front.places(settings))}" for front in _open_fronts(settings))


def _grpc_credentials(files: TlsFiles) -> Any:
    authority = files.client_ca.read_bytes() if files.client_ca else None
    pair = (files.key.read_bytes(), files.cert.read_bytes())
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
