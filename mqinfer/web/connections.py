"""A server of HTTP whose connections are bounded, in number and in the time that they may be idle."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import resource
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import HttpProcessingError

from mqinfer.logs import log_dropped
from mqinfer.protocol.errors import MqinferError

_MOST_WHY = 200
"""Characters of what aiohttp found wrong."""
_IDLE_S = 120.0
"""A connection without a request, or whose headers have not come, is closed after this; as long as gRPC's handshake."""
_OPTIONS: Mapping[str, Any] = {"auto_decompress": False, "access_log": None, "keepalive_timeout": _IDLE_S}
_PROBE_S, _PROBE_GROWTH = 0.05, 4.0
"""Time until the second interim reply to a caller that has ended its sending, and how the time between them grows."""
_INTERIM = b"HTTP/1.1 100 Continue\r\n\r\n"

_MASKED = 0x80
_LONGER = {126: 2, 127: 8}
"""Bytes that hold a frame's size, where its first 7 bits say so."""
_MASK_BYTES = 4
_RESERVED = b"\xff"
"""First byte of a frame that each reader refuses: it has the reserved bits."""


def log_each_kind(log: logging.Logger) -> None:
    """Log what the running loop reports about the system, such as no free descriptors, in lines that get ever rarer.

    The loop reports each connection that it can't accept, thousands a second, with a traceback.
    """
    count: Counter[str] = Counter()

    def report(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if not isinstance(error, OSError):
            loop.default_exception_handler(context)
            return
        reason = errno.errorcode.get(error.errno or 0, type(error).__name__)
        count[reason] += 1
        log_dropped(log, f"a connection: {context['message']}: {error.strerror or error}", reason, count[reason])

    asyncio.get_running_loop().set_exception_handler(report)


def place_of(bind: str, port: int) -> str:
    """Return an address and a port as people write them."""
    return f"[{bind}]:{port}" if ":" in bind else f"{bind}:{port}"


def cannot_listen(where: str, error: OSError, *options: str) -> MqinferError:
    """Return the error of a place that can't be listened on, with the options that choose another one."""
    return MqinferError(
        f"can't listen on {where} ({error.strerror or error}); end the program that does, or choose another place "
        f"with {' or '.join(options)}"
    )


def allow_many_connections() -> None:
    """Raise the soft limit of open files to the hard one: each caller's connection takes one, and 1024 are usual."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


class BoundedRunner(web.AppRunner):
    """Makes connections within bounds; aiohttp has no option for that.

    Args:
        app: What it serves.
        who: Name of the program in what a caller reads.
        log: Gets the errors of connections.
        most: Connections at a time; further ones are answered with 503.
        options: Further ones, of aiohttp.
    """

    def __init__(self, app: web.Application, who: str, log: logging.Logger, most: int, **options: Any) -> None:
        super().__init__(app, **options)
        self._bounds = who, log, most
        log.addFilter(_is_own_fault)

    @property
    def server(self) -> Any:
        """What makes the protocol of a connection; None before the setup."""
        server = super().server
        return server and partial(_Connection, server, *self._bounds)


class _Connection(web.RequestHandler):
    """A connection; what is no HTTP is answered with JSON, and one too many with 503."""

    def __init__(self, server: web.Server, who: str, log: logging.Logger, most: int) -> None:
        super().__init__(server, loop=asyncio.get_running_loop(), logger=log, **_OPTIONS)
        self._server, self._who, self._most = server, who, most

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin, unless there are as many connections as may be."""
        super().connection_made(transport)
        if len(self._server.connections) > self._most and isinstance(transport, asyncio.Transport):
            transport.write(_too_many(self._who))
            self.force_close()

    def eof_received(self) -> bool:  # type: ignore[override]  # as asyncio has it
        """Close the connection, unless its caller only ends its sending and waits for the reply to a whole request."""
        transport = self.transport
        if transport is None or transport.get_extra_info("sslcontext"):  # TLS ends both ways at once
            return False
        asyncio.get_running_loop().call_soon(self._check_end)  # the task that handles what has just come begins first
        return True

    def _check_end(self) -> None:
        request = self._current_request
        if request and request.version >= HttpVersion11 and request.content.is_eof() and not self._upgraded:
            self.close()  # once it is answered
            self._probe(_PROBE_S)
        elif self.transport:
            self.transport.close()

    def _probe(self, delay: float) -> None:
        """Write interim replies until the reply begins: once the caller has gone, the second fails."""
        request, transport = self._current_request, self.transport
        if request and transport and not request.writer.output_size:
            transport.write(_INTERIM)
            asyncio.get_running_loop().call_later(delay, self._probe, _PROBE_GROWTH * delay)

    def set_parser(self, parser: Any, data_received_cb: Callable[[], None] | None = None) -> None:
        """Read a WebSocket's frames, of which each has to be masked."""
        super().set_parser(MaskedReader(parser), data_received_cb)  # type: ignore[arg-type]  # what aiohttp calls of one

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Return the reply to what can't be read as HTTP."""
        reply = super().handle_error(request, status, exc, message)
        if isinstance(reply, web.Response):
            why = " ".join((message or HTTPStatus(status).phrase).split())[:_MOST_WHY]
            content = json.dumps({"error": f"the request is not HTTP: {why}"})
            server = {"Server": "mqinfer"}
            reply = web.Response(text=content, status=status, content_type="application/json", headers=server)
            reply.force_close()
        return reply


def _too_many(who: str) -> bytes:
    text = b'{"error":"the %b has as many connections as it may; try again later"}' % who.encode()
    return (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        b"Retry-After: 1\r\nConnection: close\r\n\r\n%b" % (len(text), text)
    )


def _is_own_fault(record: logging.LogRecord) -> bool:
    """Return False for what aiohttp logs when it has refused what is no HTTP: that is the caller's fault."""
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


class MaskedReader:
    """A reader of a browser's WebSocket before another, which gets an unmasked frame as one that it refuses.

    All frames of a browser are masked, which RFC 6455 demands and aiohttp's reader does not look at.

    Args:
        reader: The other one, of aiohttp.
    """

    def __init__(self, reader: Any) -> None:
        self._feed: Callable[[bytes], tuple[bool, bytes]] = reader.feed_data
        self._head = b""  # of a frame, of which not all has come
        self._left = 0  # bytes of the current frame that have not come
        self.feed_eof = reader.feed_eof

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes; returns whether the connection has to end, and what is left."""
        if self._head:
            data, self._head = self._head + data, b""
        at = self._left
        while at + 2 <= len(data):
            if not data[at + 1] & _MASKED:
                return self._feed(data[:at] + _RESERVED + data[at + 1 :])
            size, longer = data[at + 1] & 0x7F, _LONGER.get(data[at + 1] & 0x7F, 0)
            if at + 2 + longer > len(data):
                break
            at += 2 + longer + _MASK_BYTES + (int.from_bytes(data[at + 2 : at + 2 + longer]) if longer else size)
        if at < len(data):
            data, self._head = data[:at], data[at:]
        self._left = at - len(data)
        return self._feed(data)
