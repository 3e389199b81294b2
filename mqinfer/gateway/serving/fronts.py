"""The ports of a gateway: what serves each of them, and TLS."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable, Iterator
from typing import Any

from mqinfer.client.aio import AsyncClient
from mqinfer.gateway.access import Access
from mqinfer.gateway.core import Core
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.protocol.errors import MqinferError
from mqinfer.web.tls import TlsFiles

__all__ = ["Fronts", "check_ports", "places"]

_PORTS = {
    "http_port": "HTTP",
    "grpc_port": "gRPC",
    "metrics_port": "metrics",
    "tfs_grpc_port": "TensorFlow Serving gRPC",
    "tfs_rest_port": "TensorFlow Serving REST",
}
_GRPC = {"grpc_port", "tfs_grpc_port"}
_BACKLOG = 4096
"""Connections that the kernel keeps until they are accepted, as with gRPC; further callers wait a second or more."""


class Fronts:
    """The servers of the fronts."""

    def __init__(self, settings: GatewaySettings, *, shared: bool) -> None:
        self.settings = settings
        self._shared = shared
        self._runners: list[Any] = []
        self._servers: list[Any] = []

    async def open(self, core: Core, access: Access, client: AsyncClient, tls: ssl.SSLContext | None) -> None:
        """Open the ports that are not switched off."""
        for field in _open_ports(self.settings):
            if field == "metrics_port":
                from mqinfer.gateway.metrics import make_metrics_app

                await self._open_http(make_metrics_app(core, client, access), field, None)
            elif field == "tfs_rest_port":
                await self._open_http(_make_tfs_rest(core, client, access, self.settings), field, tls)
            elif field in _GRPC:
                await self._open_grpc(_make(field)(core, access, self.settings), field)
            else:
                await self._open_http(_make(field)(core, access, self.settings), field, tls)

    async def close(self, patience: float) -> None:
        """Stop listening, and wait for the calls under way; those that take longer are cut off."""
        runners, servers = self._runners, self._servers
        self._runners, self._servers = [], []
        await asyncio.gather(*(each.stop(patience) for each in servers), *(each.cleanup() for each in runners))

    async def _open_http(self, app: Any, field: str, tls: ssl.SSLContext | None) -> None:
        from aiohttp import web

        from mqinfer.gateway.http import make_runner

        settings = self.settings
        runner = make_runner(app, settings)
        await runner.setup()
        self._runners.append(runner)
        site = web.TCPSite(
            runner, *_address(settings, field), ssl_context=tls, reuse_port=self._shared or None, backlog=_BACKLOG
        )
        try:
            await site.start()
        except OSError as error:
            raise _cannot_listen(settings, field, error) from error

    async def _open_grpc(self, handlers: Any, field: str) -> None:
        from mqinfer.gateway.grpc_calls import make_server

        settings = self.settings
        server = make_server(handlers, settings, shared=self._shared)
        where = _place(settings, field)
        try:
            if settings.tls:
                server.add_secure_port(where, _grpc_credentials(settings.tls))
            else:
                server.add_insecure_port(where)
        except RuntimeError as error:  # which names no cause
            raise _cannot_listen(settings, field, OSError(str(error))) from error
        await server.start()
        self._servers.append(server)


def _make(field: str) -> Callable[[Core, Access, GatewaySettings], Any]:
    """Return what makes the application or the handlers of a port; imported here, since a port may be off."""
    if field == "http_port":
        from mqinfer.gateway.rest.app import make_app

        return make_app
    if field == "grpc_port":
        from mqinfer.gateway.grpc import make_handlers

        return make_handlers
    from mqinfer.gateway.tfs.grpc import make_grpc_handlers

    return make_grpc_handlers


def _make_tfs_rest(core: Core, client: AsyncClient, access: Access, settings: GatewaySettings) -> Any:
    from mqinfer.gateway.tfs.rest import make_rest_app

    if not settings.metrics_port:
        return make_rest_app(core, access, settings)
    from mqinfer.gateway.metrics import make_metrics

    return make_rest_app(core, access, settings, make_metrics(core, client, access))


def check_ports(settings: GatewaySettings) -> None:
    """Check that no other program listens on the ports, also none that shares them.

    Raises:
        MqinferError: One does, or the address is none of this machine's.
    """
    for field in _open_ports(settings):
        try:
            family, kind, _, _, where = socket.getaddrinfo(
                *_address(settings, field), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else connections of before are in the way
                probe.bind(where)
        except OSError as error:
            raise _cannot_listen(settings, field, error) from error


def _cannot_listen(settings: GatewaySettings, field: str, error: OSError) -> MqinferError:
    option = field.replace("_", "-")
    bind = "metrics-bind" if field == "metrics_port" else "bind"
    return MqinferError(
        f"can't listen on {_place(settings, field)} ({error.strerror or error}); end the program that does, or choose "
        f"another port with --{option} or another address with --{bind}"
    )


def _open_ports(settings: GatewaySettings) -> Iterator[str]:
    return (field for field in _PORTS if getattr(settings, field))


def places(settings: GatewaySettings) -> str:
    """Return the ports that are open, for people."""
    return ", ".join(f"{_PORTS[field]} on {_place(settings, field)}" for field in _open_ports(settings))


def _place(settings: GatewaySettings, field: str) -> str:
    bind, port = _address(settings, field)
    return f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}"


def _address(settings: GatewaySettings, field: str) -> tuple[str, int]:
    return (settings.metrics_bind if field == "metrics_port" else settings.bind), getattr(settings, field)


def _grpc_credentials(files: TlsFiles) -> Any:
    import grpc

    authority = files.client_ca.read_bytes() if files.client_ca else None
    pair = (files.key.read_bytes(), files.cert.read_bytes())
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
