"""The login by key in front of the page: a form, a cookie, and what is served without one."""

from __future__ import annotations

import asyncio
import logging
import math
from collections import Counter
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

from aiohttp import web

from mqinfer.dashboard.page import NOT_KEPT, make_file
from mqinfer.dashboard.sessions import Attempts, Sessions
from mqinfer.logs import log_dropped

_log = logging.getLogger("mqinfer.dashboard")

_FOLDER = Path(__file__).with_name("login_page")
_PUBLIC = frozenset({"/login", "/login.css", "/icon.svg", "/healthz"})
"""What is served without a login; it tells nothing about the fleet."""
_MOST_FIELDS = 10
_BODY_S = 10.0
"""Time in which the form has to come."""
_MESSAGE = b"<!-- message -->"


class LoginForm:
    """The form, and the check of the cookie that it sets.

    Attributes:
        refused: Logins that were refused, by reason.

    Args:
        sessions: The logins that hold.
        attempts: How often a wrong key may be tried.
        is_encrypted: Whether the page is; then the cookie is never sent without encryption.
    """

    def __init__(self, sessions: Sessions, attempts: Attempts, *, is_encrypted: bool) -> None:
        self.refused: Counter[str] = Counter()
        self._sessions, self._attempts, self._is_encrypted = sessions, attempts, is_encrypted
        self._cookie = "__Host-mqinfer" if is_encrypted else "mqinfer"
        self._form = (_FOLDER / "login.html").read_bytes()
        self._style = make_file(".css", (_FOLDER / "login.css").read_bytes())

    def add_routes(self, router: web.UrlDispatcher) -> None:
        """Add the form and what it needs."""
        router.add_get("/login", self._show)
        router.add_get("/login.css", self._show_style)
        router.add_post("/login", self._log_in)

    def token(self, request: web.Request) -> str:
        """Return the token that a request has; empty for none."""
        return request.cookies.get(self._cookie, "")

    def is_valid(self, token: str) -> bool:
        """Return whether a login holds."""
        return self._sessions.is_valid(token)

    def refusal(self, request: web.Request) -> web.Response | None:
        """Return the reply to a request that needs a login and has none; None where it may go on."""
        if request.path in _PUBLIC or self.is_valid(self.token(request)):
            return None
        if request.path in {"/", "/index.html"}:
            return web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "./login", **NOT_KEPT})
        return web.Response(status=HTTPStatus.UNAUTHORIZED, text="log in at ./login first\n", headers=NOT_KEPT)

    async def _show(self, _: web.Request) -> web.Response:
        return self._page("", HTTPStatus.OK)

    async def _show_style(self, request: web.Request) -> web.Response:
        return self._style.reply(request)

    async def _log_in(self, request: web.Request) -> web.Response:
        peer = request.remote or ""
        try:
            async with asyncio.timeout(_BODY_S):
                body = await request.read()  # the application bounds its size
        except TimeoutError:
            raise web.HTTPRequestTimeout(text="the form has not come in time\n") from None
        except ConnectionError:
            self._count(peer, "broken_off")
            raise web.HTTPBadRequest(text="the form has not come as a whole\n") from None
        if wait_s := self._attempts.wait_s(peer):
            self._count(peer, "too_many_attempts")
            reply = self._page("Too many attempts; try again in a minute.", HTTPStatus.TOO_MANY_REQUESTS)
            reply.headers["Retry-After"] = str(math.ceil(wait_s))
            return reply
        token = self._sessions.log_in(_key_in(body))
        if token is None:
            self._attempts.failed(peer)
            self._count(peer, "wrong_key")
            return self._page("This key is unknown here.", HTTPStatus.FORBIDDEN)
        reply = web.Response(status=HTTPStatus.SEE_OTHER, headers={"Location": "./", **NOT_KEPT})
        reply.set_cookie(
            self._cookie, token, path="/", httponly=True, samesite="Strict", secure=self._is_encrypted or None
        )
        return reply

    def _page(self, message: str, status: HTTPStatus) -> web.Response:
        body = self._form.replace(_MESSAGE, message.encode())
        return web.Response(body=body, status=status, content_type="text/html", charset="utf-8", headers=NOT_KEPT)

    def _count(self, peer: str, reason: str) -> None:
        self.refused[reason] += 1
        log_dropped(_log, f"login of {peer}", reason, self.refused[reason])


def _key_in(body: bytes) -> str:
    """Return the key of a form that was sent; empty for none."""
    try:
        fields = parse_qs(body.decode(errors="replace"), max_num_fields=_MOST_FIELDS)
    except ValueError:  # too many of them
        return ""
    return fields.get("key", [""])[0]
