"""The ports of a gateway: what serves each of them, and TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import grpc
from aiohttp import web

from mqinfer.gateway.access import Access
from mqinfer.gateway.core import Core
from mqinfer.gateway.grpc import make_handlers
from mqinfer.gateway.grpc_calls import make_server, start_server
from mqinfer.gateway.http import make_runner
from mqinfer.gateway.metrics import make_metrics_app
from mqinfer.gateway.rest.app import make_app
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.gateway.tfs.grpc import make_grpc_handlers
from mqinfer.gateway.tfs.rest import make_rest_app
from mqinfer.protocol.errors import MqinferError
from mqinfer.web.tls import TlsFiles

_BACKLOG = 4096
"""Connections that the kernel keeps until they are accepted, as with gRPC; further callers wait a second or more."""


@dataclass(frozen=True, slots=True)
class Front:
    """A port and what serves it.

    Attributes:
        name: The name for people.
        field: The field of the ports that holds its own.
        make: Maker of the application or the handlers.
        is_grpc: Whether it speaks gRPC in place of HTTP.
        bind: The field of the ports that holds the address.
        has_tls: Whether it is encrypted where the gateway is.
    """

    name: str
    field: str
    make: Callable[[Core, Access, GatewaySettings], Any]
    is_grpc: bool = False
    bind: str = "bind"
    has_tls: bool = True

    def address(self, settings: GatewaySettings) -> tuple[str, int]:
        """Return where it listens."""
        return getattr(settings.ports, self.bind), getattr(settings.ports, self.field)

    def place(self, settings: GatewaySettings) -> str:
        """Return where it listens, as people write it."""
        bind, port = self.address(settings)
        return f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}"


_FRONTS = (
    Front("HTTP", "http_port", make_app),
    Front("gRPC", "grpc_port", make_handlers, is_grpc=True),
    Front("metrics", "metrics_port", make_metrics_app, bind="metrics_bind", has_tls=False),
    Front("TensorFlow Serving gRPC", "tfs_grpc_port", make_grpc_handlers, is_grpc=True),
    Front("TensorFlow Serving REST", "tfs_rest_port", make_rest_app),
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
            if front.is_grpc:
                await self._open_grpc(front, made)
            else:
                await self._open_http(front, made, tls if front.has_tls else None)

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
            raise _cannot_listen(settings, front, error) from error

    async def _open_grpc(self, front: Front, handlers: Any) -> None:
        settings = self.settings
        server = make_server(handlers, settings, shared=self._shared)
        where = front.place(settings)
        try:
            if settings.callers.tls:
                port = server.add_secure_port(where, _grpc_credentials(settings.callers.tls))
            else:
                port = server.add_insecure_port(where)
        except RuntimeError as error:  # which names no cause
            raise _cannot_listen(settings, front, OSError(str(error))) from error
        await start_server(server, port)
        self._servers.append(server)


def check_ports(settings: GatewaySettings) -> None:
    """Check that no other program listens on the ports, also none that shares them.

    Raises:
        MqinferError: One does, or the address is none of this machine's.
    """
    for front in _open_fronts(settings):
        try:
            family, kind, _, _, where = socket.getaddrinfo(
                *front.address(settings), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else connections of before are in the way
                probe.bind(where)
        except OSError as error:
            raise _cannot_listen(settings, front, error) from error


def _cannot_listen(settings: GatewaySettings, front: Front, error: OSError) -> MqinferError:
    port, bind = (field.replace("_", "-") for field in (front.field, front.bind))
    return MqinferError(
        f"can't listen on {front.place(settings)} ({error.strerror or error}); end the program that does, or choose "
        f"another port with --{port} or another address with --{bind}"
    )


def _open_fronts(settings: GatewaySettings) -> Iterator[Front]:
    return (front for front in _FRONTS if getattr(settings.ports, front.field))


def places(settings: GatewaySettings) -> str:
    """Return the ports that are open, for people."""
    return ", ".join(f"{front.name} on {front.place(settings)}" for front in _open_fronts(settings))


def _grpc_credentials(files: TlsFiles) -> Any:
    authority = files.client_ca.read_bytes() if files.client_ca else None
    pair = (files.key.read_bytes(), files.cert.read_bytes())
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
