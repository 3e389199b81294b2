"""One process of a gateway: it connects to the broker, opens the ports, and drains on SIGTERM."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.malloc import return_freed_memory
from mqinfer.client.aio import AsyncClient
from mqinfer.client.control import AsyncControl
from mqinfer.client.options import ClientOptions
from mqinfer.gateway.access import GRANTED, Access, read_restrictions
from mqinfer.gateway.core import Core
from mqinfer.gateway.metrics import pending_calls
from mqinfer.gateway.serving.fronts import Fronts, places
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.telemetry.exporting import make_tracer
from mqinfer.web.keys import KeyFile
from mqinfer.web.quotas import Quotas
from mqinfer.web.tls import ssl_context

_log = logging.getLogger("mqinfer.gateway")

_WINDOW = 256
"""Requests in flight at a time: the rest waits here, where callers take turns, and not in workers."""
_RETURN_S, _RETURN_BUSY_S = 5.0, 60.0
"""Interval at which freed memory is returned to the system, and the one where a request is there each time."""
_ANSWER_S = 2.0
"""Time for the fronts to send the errors of the calls that the end of the drain has cancelled."""


@dataclass(frozen=True, slots=True)
class GatewaySpec:
    """What a process of a gateway needs; it can be sent to another process.

    Attributes:
        address: Of the broker.
        name: The gateway's name in topics, unique on the broker.
        root: Prefix of all topics.
        settings: How it serves.
        shared: Whether other processes listen on the same ports.
        otlp: Where spans are sent to, as `telemetry.exporting.check_endpoint` returns it.
    """

    address: BrokerAddress
    name: str
    root: str
    settings: GatewaySettings
    shared: bool = False
    otlp: str | None = None


class Stop:
    """Two requests to end: the first one drains, the second one ends at once."""

    def __init__(self) -> None:
        self.drain, self.at_once = asyncio.Event(), asyncio.Event()

    def request(self) -> None:
        """Drain; a second call ends at once."""
        (self.at_once if self.drain.is_set() else self.drain).set()


async def serve(spec: GatewaySpec, stop: Stop, on_ready: Callable[[], None] = lambda: None) -> None:
    """Connect, listen, and serve until asked to stop; then finish the accepted calls.

    Args:
        spec: What to serve.
        stop: Ends it.
        on_ready: Called once all ports are open.

    Raises:
        ConfigError: A file with keys or certificates has a fault.
        LinkError: As for a client.
        MqinferError: A port can't be opened.
    """
    settings, callers = spec.settings, spec.settings.callers
    tls = ssl_context(callers.tls) if callers.tls else None
    keys = KeyFile(callers.keys, GRANTED) if callers.keys else None
    access = Access(
        keys, read_restrictions(callers.restrict or ()), asks_certificates=tls is not None and bool(callers.client_ca)
    )
    async with _open_core(spec, stop) as (core, client):
        if keys is not None:
            core.inference.admission.quotas = Quotas(keys.quota_of)
        fronts = Fronts(settings, shared=spec.shared)
        returning = asyncio.create_task(_return_memory(core))
        try:
            await fronts.open(core, access, tls)
            _log.info("ready: %s", places(settings))
            on_ready()
            await stop.drain.wait()
            await _drain(fronts, core, client, stop)
        finally:
            returning.cancel()
            await fronts.close(0.0)
        if client.connection.requester.failure:
            raise client.connection.requester.failure


async def _return_memory(core: Core) -> None:
    """Return what was freed to the system, while no request is here, or else once a minute."""
    loop = asyncio.get_running_loop()
    returned = loop.time()
    while True:
        await asyncio.sleep(_RETURN_S)
        is_idle = not core.arriving.bytes and not core.unsent.bytes
        if is_idle or loop.time() >= returned + _RETURN_BUSY_S:
            returned = loop.time()
            await asyncio.to_thread(return_freed_memory)


async def _drain(fronts: Fronts, core: Core, client: AsyncClient, stop: Stop) -> None:
    """Accept nothing more, and wait until every call has its answer; what is late is answered as cancelled."""
    core.drain()
    patience = fronts.settings.bounds.drain
    _log.info("stopping: no more calls are accepted, those under way may take %g s", patience)
    closing = asyncio.create_task(fronts.close(patience + _ANSWER_S))
    hurry = asyncio.create_task(stop.at_once.wait())
    await asyncio.wait({closing, hurry}, timeout=patience, return_when=asyncio.FIRST_COMPLETED)
    if not closing.done():
        _log.warning("cancelling the calls that are still under way")
        await client.close()
        await asyncio.wait({closing}, timeout=_ANSWER_S)
    for task in (closing, hurry):
        task.cancel()
    await asyncio.gather(closing, hurry, return_exceptions=True)


@asynccontextmanager
async def _open_core(spec: GatewaySpec, stop: Stop) -> AsyncIterator[tuple[Core, AsyncClient]]:
    """Connect; a connection that has ended for good, since another process has taken the name, stops the gateway."""
    settings, bounds, loop = spec.settings, spec.settings.bounds, asyncio.get_running_loop()
    options = ClientOptions(timeout=bounds.timeout, window=_WINDOW, max_pending=bounds.max_pending, shed=True)

    def on_connection() -> None:
        if client.connection.requester.failure:
            with suppress(RuntimeError):  # the loop has ended meanwhile
                loop.call_soon_threadsafe(stop.drain.set)

    client = AsyncClient(
        spec.address, name=spec.name, root=spec.root, options=options, announce="gateway", in_loop=True
    )
    tracer = make_tracer("mqinfer-gateway", spec.name, spec.otlp)
    try:
        async with client:
            client.connection.requester.tracer = tracer
            client.connection.requester.watch(on_connection)
            client.connection.registry.watches_clients = bool(settings.ports.metrics_port)
            core = Core(
                client,
                AsyncControl(client),
                bounds.timeout,
                strict_readiness=settings.strict_readiness,
                model_control=settings.callers.model_control,
                max_pending=bounds.max_pending,
                max_bytes=bounds.max_bytes,
                max_input_bytes=bounds.http_max_input_size,
            )
            if client.announcer:
                client.announcer.pending = partial(pending_calls, core)
            with core.decompressor:
                await core.start()
                yield core, client
    finally:
        if tracer is not None:
            await asyncio.to_thread(tracer.close)
