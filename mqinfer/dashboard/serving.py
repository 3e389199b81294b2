"""The dashboard as a program: it listens until SIGTERM or SIGINT."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from aiohttp import web

from mqinfer.broker.connect import make_link
from mqinfer.dashboard.app import make_app
from mqinfer.dashboard.login import LoginForm
from mqinfer.dashboard.page import PageFile, read_page
from mqinfer.dashboard.relay import Relay
from mqinfer.dashboard.sessions import GRANTED, Attempts, Sessions
from mqinfer.dashboard.settings import DashboardSettings
from mqinfer.dashboard.wall import WallGate
from mqinfer.interrupts import on_stop
from mqinfer.metrics.endpoint import serving_metrics
from mqinfer.metrics.lag import add_site, follow_site
from mqinfer.protocol.errors import ConfigError, NotAuthorized
from mqinfer.web.connections import BoundedRunner, allow_many_connections, cannot_listen, place_of
from mqinfer.web.keys import KeyFile
from mqinfer.web.tls import ssl_context

_log = logging.getLogger("mqinfer.dashboard")

_FURTHER = 128
"""Connections beside those of the relay, which load the page."""
_END_S = 5.0
"""Time for the connections to close at the end."""
_BACKLOG = 1024


def run(settings: DashboardSettings) -> None:
    """Serve until SIGTERM or SIGINT.

    Raises:
        ConfigError: As for `serve`, `read_page` and `check_anonymous`.
        MqinferError: As for `serve`; or the broker can't be asked whether it wants logins.
    """
    allow_many_connections()
    page = read_page()
    check_anonymous(settings)

    async def main() -> None:
        stop, loop = asyncio.Event(), asyncio.get_running_loop()
        on_stop(partial(loop.call_soon_threadsafe, stop.set), lambda: "connections of browsers were cut")
        async with _serving_lag(settings):
            await serve(settings, page, stop)

    asyncio.run(main())


async def serve(
    settings: DashboardSettings,
    page: Mapping[str, PageFile],
    stop: asyncio.Event,
    on_ready: Callable[[str], None] = lambda _: None,
) -> None:
    """Listen, and serve until asked to stop.

    Args:
        settings: How.
        page: The files of the page.
        stop: Ends it.
        on_ready: Called with the URL of the page once it is open.

    Raises:
        ConfigError: A file with keys or certificates has a fault.
        MqinferError: The port can't be opened.
    """
    tls = ssl_context(settings.tls) if settings.tls else None
    app = make_app(settings, page, _make_relay(settings), _make_login(settings))
    most = settings.max_connections + _FURTHER
    runner = BoundedRunner(app, "dashboard", _log.getChild("http"), most, shutdown_timeout=_END_S)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.bind, settings.port, ssl_context=tls, backlog=_BACKLOG)
        try:
            await site.start()
        except OSError as error:
            raise cannot_listen(place_of(settings.bind, settings.port), error, "--port", "--bind") from error
        url = f"{'https' if tls else 'http'}://{place_of(settings.bind, runner.addresses[0][1])}/"
        _log.info("ready: %s, broker %s", url, settings.direct or settings.address)
        on_ready(url)
        await stop.wait()
        _log.info("stopping")
    finally:
        await runner.cleanup()


@asynccontextmanager
async def _serving_lag(settings: DashboardSettings) -> AsyncIterator[None]:
    """Answer `/metrics` with the lag of the site while the context lasts, where a port is set for it."""
    if settings.metrics_port is None:
        yield
        return
    async with follow_site(settings.address, None, settings.root) as client:
        with serving_metrics(partial(add_site, client), settings.metrics_port, settings.metrics_bind):
            yield


def _make_relay(settings: DashboardSettings) -> Relay:
    if settings.login == "mqtt":
        return Relay(settings)
    address = settings.address
    return Relay(settings, lambda: WallGate(address.username, address.password).feed)


def _make_login(settings: DashboardSettings) -> LoginForm | None:
    if settings.keys is None:
        return None
    sessions = Sessions(KeyFile(settings.keys, GRANTED), settings.session)
    return LoginForm(sessions, Attempts(), is_encrypted=settings.tls is not None)


def check_anonymous(settings: DashboardSettings) -> None:
    """Check that a relay that others can reach opens no broker that lets everybody in.

    The broker may listen on loopback alone for that reason. Nothing is tried where a key or the relay's own login is
    asked for, or browsers connect to the broker themselves.

    Raises:
        BrokerUnreachable: The broker can't be asked now.
        ConfigError: It lets everybody in.
    """
    if not settings.is_open or settings.keys is not None or settings.direct is not None or settings.login == "relay":
        return
    address = replace(settings.address, username=None, password=None)
    link = make_link(address, client_id=f"mqinfer-dashboard-{secrets.token_hex(8)}")
    try:
        link.open(settings.broker_patience)
    except NotAuthorized:
        return
    finally:
        link.close()
    raise ConfigError(
        f"{address} lets everybody in, and --bind {settings.bind} would open it to other machines; add --keys FILE, or "
        "give the broker logins (mqinfer broker init)"
    )
