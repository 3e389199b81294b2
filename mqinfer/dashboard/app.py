"""The dashboard as an application of aiohttp: the page, its configuration, and the way to the relay."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from aiohttp import web

from mqinfer.dashboard.guard import is_expected_host, is_own_origin, security_headers
from mqinfer.dashboard.login import LoginForm
from mqinfer.dashboard.page import NOT_KEPT, PageFile
from mqinfer.dashboard.relay import Relay
from mqinfer.dashboard.settings import DashboardSettings
from mqinfer.logs import log_dropped

_log = logging.getLogger("mqinfer.dashboard")

_MOST_BODY = 4096
"""Bytes of a request's body: a login is all that has one."""
_READING = ("GET", "HEAD")


def make_app(
    settings: DashboardSettings, page: Mapping[str, PageFile], relay: Relay, login: LoginForm | None = None
) -> web.Application:
    """Return the application.

    Args:
        settings: How it serves.
        page: Files of the page by their paths.
        relay: Not used with `direct`.
        login: Asks for a key before it serves anything; None: everybody may see the page.
    """
    app = web.Application(middlewares=[_Guard(settings, login).check], client_max_size=_MOST_BODY)
    handlers = _Handlers(settings, page, relay, login)
    headers = security_headers(settings)

    async def add_headers(_: web.Request, reply: web.StreamResponse) -> None:
        reply.headers.update(headers)

    async def end_relay(_: web.Application) -> None:
        await relay.close()

    app.router.add_get("/config.json", handlers.config)
    app.router.add_get("/healthz", handlers.health)
    if settings.direct is None:
        app.router.add_get("/mqtt", handlers.mqtt, allow_head=False)
    if login is not None:
        login.add_routes(app.router)
    app.router.add_get("/{path:.*}", handlers.file)
    app.on_response_prepare.append(add_headers)
    app.on_shutdown.append(end_relay)
    return app


def make_configuration(settings: DashboardSettings) -> dict[str, str]:
    """Return what the page has to know before it connects."""
    return {"root": settings.root, "mqtt": settings.direct or "./mqtt", "login": settings.login}


@dataclass(frozen=True, slots=True)
class _Handlers:
    settings: DashboardSettings
    page: Mapping[str, PageFile]
    relay: Relay
    login: LoginForm | None

    async def file(self, request: web.Request) -> web.Response:
        found = self.page.get(request.path)
        if found is None:
            raise web.HTTPNotFound(text="there is nothing here\n")
        return found.reply(request)

    async def config(self, _: web.Request) -> web.Response:
        return web.json_response(make_configuration(self.settings), headers=NOT_KEPT)

    async def health(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "ok"}, headers=NOT_KEPT)

    async def mqtt(self, request: web.Request) -> web.StreamResponse:
        if self.login is None:
            return await self.relay.serve(request, lambda: True)
        return await self.relay.serve(request, partial(self.login.is_valid, self.login.token(request)))


class _Guard:
    """Refuses what no page of this server would ask for."""

    def __init__(self, settings: DashboardSettings, login: LoginForm | None) -> None:
        self._settings, self._login = settings, login
        self._refused: Counter[str] = Counter()

    @web.middleware
    async def check(self, request: web.Request, handler: Any) -> web.StreamResponse:
        if not is_expected_host(self._settings, request.host):
            return self._refuse(request, "host", 421, "this server does not go by that name; see --host")
        is_reading = request.method in _READING and request.path != "/mqtt"
        if not is_reading and not is_own_origin(self._settings, request.host, request.headers.get("Origin")):
            return self._refuse(request, "origin", 403, "only this server's own page may do that")
        if self._login is not None and (refusal := self._login.refusal(request)) is not None:
            return refusal
        reply: web.StreamResponse = await handler(request)
        return reply

    def _refuse(self, request: web.Request, reason: str, status: int, text: str) -> web.Response:
        self._refused[reason] += 1
        log_dropped(_log, f"request of {request.remote}", reason, self._refused[reason])
        return web.Response(status=status, text=f"{text}\n")
