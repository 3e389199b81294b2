"""Connections of the HTTP fronts: what is no HTTP, those that never ask for anything, and too many of them."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from typing import Any

import pytest
from aiohttp import web

from mqinfer.gateway import http
from mqinfer.gateway.access import Access, Right
from mqinfer.web import connections
from mqinfer.web.connections import log_each_kind
from tests.gateway.conftest import gateway_settings
from tests.gateway.listening import core_that_counts, over_http

HEAD = b"POST /v2/models/m/infer HTTP/1.1\r\nHost: x\r\n"
NO_HTTP = {
    "bytes": b"\x00\x01\x02\r\n\r\n",
    "TLS": b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03" + bytes(160),
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "two lengths": HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    "a length and chunks": HEAD + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "no host": b"GET /v2 HTTP/1.1\r\n\r\n",
    "a long header": HEAD + b"X: " + b"a" * 10_000 + b"\r\n\r\n",
    "many headers": HEAD + b"X: a\r\n" * 1000 + b"\r\n",
}
ECHO = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nExpect: %b\r\n\r\n"
Connect = Callable[[], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]


@asynccontextmanager
async def serving(
    answer: Callable[[http.AdmittedCall], Awaitable[web.Response]], **options: Any
) -> AsyncIterator[tuple[str, int]]:
    """Answer posts with this; yield the address."""
    settings = gateway_settings(**options)
    bodies = http.Bodies(settings, core_that_counts())
    route = http.Endpoint(re.compile("/"), Right.HEALTH, {"POST": answer})
    async with over_http(http.make_application([route], Access(), bodies), settings) as address:
        yield address


@pytest.fixture
def connect(options: dict[str, Any]) -> AbstractAsyncContextManager[Connect]:
    """Serve what returns the bodies that it receives; yield what connects to it."""

    async def echo(call: http.AdmittedCall) -> web.Response:
        return web.Response(body=await call.request.read())

    @asynccontextmanager
    async def opened() -> AsyncIterator[Connect]:
        async with serving(echo, **options) as address:
            async with asyncio.timeout(60):
                yield lambda: asyncio.open_connection(*address)

    return opened()


def error_of(reply: bytes, status: bytes) -> str:
    """Return the text of an error that came with a status."""
    head, _, body = reply.partition(b"\r\n\r\n")
    assert head.split(b" ")[1] == status
    assert b"content-type: application/json" in head.lower()
    content = json.loads(body)
    assert content.keys() == {"error"}
    return str(content["error"])


@pytest.mark.parametrize("octets", NO_HTTP.values(), ids=NO_HTTP)
async def test_what_is_no_http(connect: Connect, octets: bytes) -> None:
    """It is answered with 400 and JSON, and the connection is closed."""
    reader, writer = await connect()
    writer.write(octets)
    text = error_of(await reader.read(), b"400")
    assert text.startswith("the request is not HTTP: ")
    assert "\n" not in text
    writer.close()


@pytest.mark.parametrize("expected", [b"100-continue", b"200-maybe"])
async def test_expectations(connect: Connect, expected: bytes) -> None:
    """A caller that waits for it is told to go on; what nobody knows is ignored."""
    reader, writer = await connect()
    writer.write(ECHO % expected)
    if expected == b"100-continue":
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    writer.write(b"ab")
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 OK")
    assert await reader.readexactly(2) == b"ab"
    writer.close()


@pytest.mark.parametrize(
    ("version", "then", "ends"),
    [(b"1.1", "reads", "answered"), (b"1.1", "goes", "cancelled"), (b"1.0", "reads", "cancelled")],
)
async def test_a_caller_that_ends_its_sending(version: bytes, then: str, ends: str) -> None:
    """It gets its reply, after interim ones that show whether it has gone: the call of one that has is cancelled."""
    done, seen = asyncio.Event(), asyncio.Queue[str]()

    async def answer(call: http.AdmittedCall) -> web.Response:
        body = await call.request.read()
        try:
            await seen.put("begun")
            await done.wait()
            await seen.put("answered")
        except asyncio.CancelledError:
            await seen.put("cancelled")
            raise
        return web.Response(body=body)

    async with asyncio.timeout(60), serving(answer) as address:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"POST / HTTP/%b\r\nHost: x\r\nContent-Length: 2\r\n\r\nab" % version)
        writer.write_eof()
        assert await seen.get() == "begun"
        if then == "goes":
            writer.close()
        elif ends == "answered":
            for _ in range(2):
                assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            done.set()
            assert re.fullmatch(
                rb"(HTTP/1.1 100 Continue\r\n\r\n)*HTTP/1.1 200 OK\r\n.*\r\n\r\nab", await reader.read(), re.DOTALL
            )
        assert await seen.get() == ends
        writer.close()


@pytest.mark.parametrize("begun", [b"", HEAD])
async def test_connections_that_ask_for_nothing(
    connect: Connect, monkeypatch: pytest.MonkeyPatch, begun: bytes
) -> None:
    """They are closed after a while, also in the middle of their headers."""
    monkeypatch.setattr(connections, "_OPTIONS", {**connections._OPTIONS, "keepalive_timeout": 0.2})
    reader, writer = await connect()
    writer.write(begun)
    assert await reader.read() == b""
    writer.close()


@pytest.mark.options(max_connections=3)
async def test_too_many_connections(connect: Connect) -> None:
    """One too many is answered with 503; when one of them ends, the next is served."""
    held = [await connect() for _ in range(3)]
    for reader, writer in held:
        writer.write(ECHO.replace(b"Expect: %b\r\n", b"") + b"ab")
        assert (await reader.readuntil(b"ab")).startswith(b"HTTP/1.1 200 OK")
    reader, writer = await connect()
    assert error_of(await reader.read(), b"503") == "the gateway has as many connections as it may; try again later"
    writer.close()
    held[0][1].close()
    await held[0][1].wait_closed()
    while True:  # the server sees the end of the first one a little later
        reader, writer = await connect()
        writer.write(ECHO.replace(b"Expect: %b\r\n", b"") + b"ab")
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            if (await reader.readuntil(b"ab")).startswith(b"HTTP/1.1 200 OK"):
                break
        writer.close()
    for _, each in (*held, (reader, writer)):
        each.close()


async def test_no_free_descriptors_fill_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """What the loop reports of each connection that it can't accept is logged ever more rarely, without a traceback."""
    log_each_kind(logging.getLogger("mqinfer.test"))
    error = OSError(errno.EMFILE, "Too many open files")
    for _ in range(1000):
        asyncio.get_running_loop().call_exception_handler({"message": "socket.accept() failed", "exception": error})
    assert len(caplog.records) == 10
    assert "EMFILE: 512" in caplog.messages[-1]
    assert not [record for record in caplog.records if record.exc_info]
    asyncio.get_running_loop().call_exception_handler({"message": "a defect", "exception": ValueError("x")})
    assert caplog.records[-1].exc_info
