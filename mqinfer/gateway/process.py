"""One process of a gateway: it connects to the broker, opens the ports, and drains on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from mqinfer.broker.address import BrokerAddress
from mqinfer.client.aio import AsyncClient
from mqinfer.client.control import AsyncControl
from mqinfer.client.options import ClientOptions
from mqinfer.gateway.access import Access, KeyFile, read_restrictions
from mqinfer.gateway.core import Core
from mqinfer.gateway.settings import GatewaySettings, TlsFiles
from mqinfer.protocol.errors import ConfigError, MissingExtra, MqinferError

__all__ = ["GatewaySpec", "Stop", "check_ports", "serve"]

_log = logging.getLogger("mqinfer.gateway")

_WINDOW = 256
"""Requests in flight at a time: the rest waits here, where callers take turns, and not in workers."""
_ANSWER_S = 2.0
"""Time for the fronts to send the errors of the calls that the end of the drain has cancelled."""
_OVERHEAD_S = 20
"""The system ends the process so long after the drain's end, whatever it hangs in."""
_PORTS = {
    "http_port": "HTTP",
    "grpc_port": "gRPC",
    "metrics_port": "metrics",
    "tfs_grpc_port": "TensorFlow Serving gRPC",
    "tfs_rest_port": "TensorFlow Serving REST",
}
_GRPC = {"grpc_port", "tfs_grpc_port"}
_PACKAGES = {"grpc": "grpcio", "aiohttp": "aiohttp", "google.protobuf": "protobuf", "orjson": "orjson"}


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """What a process of a gateway needs; it can be sent to another process.

    Attributes:
        address: Of the broker.
        name: The gateway's name in topics, unique on the broker.
        root: Prefix of all topics.
        settings: How it serves.
        shared: Whether other processes listen on the same ports.
    """

    address: BrokerAddress
    name: str
    root: str
    settings: GatewaySettings
    shared: bool = False


class Stop:
    """Two requests to end: the first one drains, the second one ends at once."""

    def __init__(self) -> None:
        self.drain, self.at_once = asyncio.Event(), asyncio.Event()

    def request(self) -> None:
        """Drain; a second call ends at once."""
        (self.at_once if self.drain.is_set() else self.drain).set()

    def on_signals(self, *numbers: signal.Signals) -> None:
        """Call `request` at each of these signals."""
        for number in numbers:
            asyncio.get_running_loop().add_signal_handler(number, self.request)


async def serve(spec: GatewaySpec, stop: Stop, on_ready: Callable[[], None] = lambda: None) -> None:
    """Connect, listen, and serve until asked to stop; then finish the accepted calls.

    Args:
        spec: What to serve.
        stop: Ends it.
        on_ready: Called once all ports are open.

    Raises:
        MissingExtra: A package of the extra `gateway` is not installed.
        ConfigError: A file with keys or certificates has a fault.
        LinkError: As for a client.
        MqinferError: A port can't be opened.
    """
    settings = spec.settings
    _check_packages()
    tls = _ssl_context(settings.tls) if settings.tls else None
    access = Access(KeyFile(settings.keys) if settings.keys else None, read_restrictions(settings.restrict))
    async with _open_core(spec) as (core, client):
        fronts = _Fronts(settings, shared=spec.shared)
        try:
            await fronts.open(core, access, tls)
            _log.info("ready: %s", _places(settings))
            on_ready()
            await stop.drain.wait()
            signal.alarm(int(settings.drain) + _OVERHEAD_S)
            await _drain(fronts, core, client, stop)
        finally:
            await fronts.close(0.0)


async def _drain(fronts: _Fronts, core: Core, client: AsyncClient, stop: Stop) -> None:
    """Accept nothing more, and wait until every call has its answer; what is late is answered as cancelled."""
    core.drain()
    _log.info("stopping: no more calls are accepted, those under way may take %g s", fronts.settings.drain)
    closing = asyncio.create_task(fronts.close(fronts.settings.drain + _ANSWER_S))
    hurry = asyncio.create_task(stop.at_once.wait())
    await asyncio.wait({closing, hurry}, timeout=fronts.settings.drain, return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        _log.warning("cancelling the calls that are still under way")
        await client.close()
        await asyncio.wait({closing}, timeout=_ANSWER_S)
    for task in (closing, hurry):
        task.cancel()
    await asyncio.gather(closing, hurry, return_exceptions=True)


@asynccontextmanager
async def _open_core(spec: GatewaySpec) -> AsyncIterator[tuple[Core, AsyncClient]]:
    settings = spec.settings
    options = ClientOptions(timeout=settings.timeout, window=_WINDOW, max_pending=settings.max_pending)
    async with AsyncClient(spec.address, name=spec.name, root=spec.root, options=options) as client:
        core = Core(client, AsyncControl(client), settings.timeout, model_control=settings.model_control)
        await core.start()
        yield core, client


class _Fronts:
    """The servers of the fronts."""

    def __init__(self, settings: GatewaySettings, *, shared: bool) -> None:
        self.settings = settings
        self._shared = shared
        self._runners: list[Any] = []
        self._servers: list[Any] = []

    async def open(self, core: Core, access: Access, tls: ssl.SSLContext | None) -> None:
        """Open the ports that are not switched off."""
        for field in _open_ports(self.settings):
            if field in _GRPC:
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
            runner, settings.bind, getattr(settings, field), ssl_context=tls, reuse_port=self._shared or None
        )
        try:
            await site.start()
        except OSError as error:
            raise _cannot_listen(settings, field, error) from error

    async def _open_grpc(self, handlers: Any, field: str) -> None:
        from mqinfer.gateway.grpc_calls import make_server

        settings = self.settings
        server = make_server(handlers, settings, shared=self._shared)
        where = _place(settings.bind, getattr(settings, field))
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
        from mqinfer.gateway.rest.app import make_app as make
    elif field == "grpc_port":
        from mqinfer.gateway.grpc import make_handlers as make
    elif field == "tfs_rest_port":
        from mqinfer.gateway.tfs.rest import make_rest_app as make
    else:
        from mqinfer.gateway.tfs.grpc import make_grpc_handlers as make
    return make


def check_ports(settings: GatewaySettings) -> None:
    """Check that no other program listens on the ports, also none that shares them.

    Raises:
        MqinferError: One does, or the address is none of this machine's.
    """
    for field in _open_ports(settings):
        try:
            family, kind, _, _, where = socket.getaddrinfo(
                settings.bind, getattr(settings, field), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )[0]
            with socket.socket(family, kind) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else connections of before are in the way
                probe.bind(where)
        except OSError as error:
            raise _cannot_listen(settings, field, error) from error


def _cannot_listen(settings: GatewaySettings, field: str, error: OSError) -> MqinferError:
    where = _place(settings.bind, getattr(settings, field))
    option = f"--{field.replace('_', '-')}"
    return MqinferError(
        f"can't listen on {where} ({error.strerror or error}); end the program that does, or choose another port "
        f"with {option} or another address with --bind"
    )


def _open_ports(settings: GatewaySettings) -> Iterator[str]:
    return (field for field in _PORTS if getattr(settings, field))


def _places(settings: GatewaySettings) -> str:
    return ", ".join(
        f"{_PORTS[field]} on {_place(settings.bind, getattr(settings, field))}" for field in _open_ports(settings)
    )


def _place(bind: str, port: int) -> str:
    return f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}"


def _check_packages() -> None:
    from importlib.util import find_spec

    for module, package in _PACKAGES.items():
        found = False
        with suppress(ImportError):  # of the package that it is in
            found = find_spec(module) is not None
        if not found:
            raise MissingExtra.of(package, "gateway")


def _ssl_context(files: TlsFiles) -> ssl.SSLContext:
    """Return what HTTP servers encrypt with; TLS 1.2 and later.

    Raises:
        ConfigError: A file can't be read, or the key is not that of the certificate.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(files.cert, files.key)
        if files.client_ca:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        raise ConfigError(
            f"--tls-cert {files.cert}, --tls-key {files.key}, --client-ca {files.client_ca}: can't be used: {error}; "
            "expected PEM files, and the key of the certificate"
        ) from error
    return context


def _grpc_credentials(files: TlsFiles) -> Any:
    import grpc

    authority = files.client_ca.read_bytes() if files.client_ca else None
    pair = (files.key.read_bytes(), files.cert.read_bytes())
    return grpc.ssl_server_credentials([pair], authority, require_client_auth=authority is not None)
