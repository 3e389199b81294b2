"""Replies that nobody takes: what is given up, and when, by itself and over each protocol."""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from collections import Counter
from collections.abc import Iterator
from functools import partial

import grpc
import numpy as np
import pytest
from aiohttp import ClientConnectionError, ClientSession, HttpVersion10, web

from mqinfer.gateway import http
from mqinfer.gateway.access import Access, Right
from mqinfer.gateway.grpc_calls import unary
from mqinfer.protocol.datatypes import Array
from mqinfer.web.peers import close_connections, name_connection, received_bytes
from mqinfer.web.unsent import Unsent
from tests.gateway.conftest import gateway_settings
from tests.gateway.listening import core_that_counts, over_grpc, over_http
from tests.patience import until

LOG = logging.getLogger("mqinfer.test")
LARGE = 32 << 20
"""More than the system takes on its own of what a program doesn't read."""
BOUNDS = {"slow": (1 << 30, 0.05), "bytes": (LARGE - 1, 60.0)}
REASONS = pytest.mark.parametrize("reason", BOUNDS)


async def test_bytes_of_all_replies_are_bounded() -> None:
    """Above the bound the caller with most bytes loses its oldest reply, however long others have waited."""
    unsent, given_up = Unsent(LOG, 100, 60.0), list[str]()
    add = partial(partial, given_up.append)
    unsent.begin("a", 20, add("a"))
    kept = unsent.begin("b", 30, add("b first"))
    unsent.begin("b", 40, add("b second"))
    with unsent.sending("c", 30, add("c")):
        assert given_up == ["b first"]
        assert unsent.bytes == 90
    unsent.end(kept)
    assert unsent.bytes == 60
    assert unsent.given_up == {"bytes": 1}


async def test_one_too_large_is_given_up_itself() -> None:
    """A reply above the bound takes no other one's place."""
    unsent, given_up = Unsent(LOG, 100, 60.0), list[str]()
    unsent.begin("a", 90, partial(given_up.append, "a"))
    with unsent.sending("b", 101, partial(given_up.append, "b")):
        assert given_up == ["b"]
    assert unsent.bytes == 90


@pytest.mark.parametrize("timed", [True, False])
async def test_a_reply_has_its_time(timed: bool) -> None:  # noqa: FBT001
    """One that isn't taken in time is given up; one that waits behind another has its time later."""
    unsent, first, last = Unsent(LOG, 100, 0.001), asyncio.Event(), asyncio.Event()
    unsent.begin("a", 1, first.set, timed=timed)
    unsent.begin("a", 1, last.set)
    await last.wait()
    assert first.is_set() is timed
    assert unsent.given_up == {"slow": 1 + timed}
    assert unsent.bytes == 1 - timed


@REASONS
async def test_http(reason: str) -> None:
    """The connection of a caller that doesn't read is closed, and nothing of the reply stays."""
    unsent = Unsent(LOG, *BOUNDS[reason])

    async def answer(call: http.AdmittedCall) -> web.Response:
        return await bodies.reply(call.request, bytes(LARGE))

    settings = gateway_settings()
    bodies = http.Bodies(settings, core_that_counts(unsent))
    route = http.Endpoint(re.compile("/"), Right.HEALTH, {"GET": answer})
    async with over_http(http.make_application([route], Access(), bodies), settings) as address:
        with socket.create_connection(address) as caller:
            caller.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: unsent.given_up)
            caller.settimeout(60)
            with pytest.raises(ConnectionError):  # noqa: PT012 - at one of the reads
                while await asyncio.to_thread(caller.recv, 1 << 20):
                    pass
                raise ConnectionResetError("it was closed in the middle of the body")
    assert unsent.given_up == {reason: 1}
    assert unsent.bytes == 0


@REASONS
async def test_grpc(reason: str, caplog: pytest.LogCaptureFixture) -> None:
    """The connection of a caller that doesn't read is closed, and nothing of the reply stays; others have theirs."""
    unsent = Unsent(LOG, *BOUNDS[reason])

    async def answer(request: bytes, _: object) -> bytes:
        return bytes(int(request))

    methods = {"Answer": unary(Access(), Right.HEALTH, answer, core_that_counts(unsent))}
    handlers = [grpc.method_handlers_generic_handler("t.Service", methods)]
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    async with over_grpc(handlers, gateway_settings()) as address:
        connect = partial(grpc.aio.insecure_channel, address, options=options)
        async with asyncio.timeout(60), connect() as channel:
            unread = channel.stream_stream("/t.Service/Answer")()
            await unread.write(b"%d" % LARGE)
            assert await unread.code() is grpc.StatusCode.UNAVAILABLE
            if reason == "bytes":  # else its own time may be over too
                async with connect() as other:
                    assert await other.unary_unary("/t.Service/Answer")(b"9") == bytes(9)
            await until(lambda: not unsent.bytes)  # a caller may have its answer before the gateway knows
    assert unsent.given_up == {reason: 1}
    assert not [record for record in caplog.records if record.exc_info]


def test_connections_from_one_port_are_told_apart() -> None:
    """A peer may reach two ports of the gateway from one of its own: each connection counts and is closed by itself."""
    servers = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    callers, accepted = list[socket.socket](), list[socket.socket]()
    for place, server in enumerate(servers):
        caller = socket.socket()
        caller.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        caller.bind(callers[0].getsockname() if callers else ("127.0.0.1", 0))
        caller.connect(server.getsockname())
        caller.sendall(bytes(place + 1))
        callers.append(caller)
        accepted.append(server.accept()[0])
    peer = f"ipv4:127.0.0.1:{callers[0].getsockname()[1]}"
    names = [name_connection(peer, server.getsockname()[1]) for server in servers]
    received = received_bytes()
    assert [received[name] for name in names] == [1, 2]
    close_connections({names[0]})
    callers[1].sendall(b"more")
    assert accepted[1].recv(9) == b"\0\0more"
    assert callers[0].recv(1) == b""
    for each in (*servers, *callers, *accepted):
        each.close()


async def test_json_is_written_as_it_is_taken() -> None:
    """Of a large result as much is written as its caller takes: all for one who reads, or whose HTTP has no pieces."""
    unsent, pieces = Unsent(LOG, 1 << 30, 60.0), Counter[str]()
    rows = {"y": np.zeros(LARGE, np.uint8)}
    whole = http.dump_json(rows)

    async def answer(call: http.AdmittedCall) -> web.Response:
        written = http.large_json(rows, rows)
        assert isinstance(written, http.LargeJson)
        return await bodies.reply(call.request, http.LargeJson(counted(call.parts[0], written), written.size))

    def counted(path: str, written: http.LargeJson) -> Iterator[bytes]:
        for piece in written.pieces:
            pieces[path] += 1
            yield piece

    settings = gateway_settings()
    bodies = http.Bodies(settings, core_that_counts(unsent))
    route = http.Endpoint(re.compile("/(.*)"), Right.HEALTH, {"GET": answer})
    async with (
        over_http(http.make_application([route], Access(), bodies), settings) as address,
        ClientSession(url := f"http://{address[0]}:{address[1]}") as session,
    ):
        with socket.create_connection(address) as caller:
            caller.sendall(b"GET /unread HTTP/1.1\r\nHost: x\r\n\r\n")
            await until(lambda: pieces["unread"])
            for coding in ("identity", "gzip"):
                async with session.get(f"/{coding}", headers={"Accept-Encoding": coding}) as reply:
                    assert await reply.read() == whole
            await until(lambda: unsent.bytes == LARGE)  # a caller may have its reply before it is counted as gone
        await until(lambda: not unsent.bytes)
        async with ClientSession(url, version=HttpVersion10) as old, old.get("/old") as reply:
            assert reply.content_length
            assert await reply.read() == whole
    assert 0 < pieces["unread"] < pieces["identity"] == pieces["gzip"] == pieces["old"]


async def test_a_result_that_waits_to_be_written_counts() -> None:
    """A large result is held as its reply will be: it counts until it is written, and its caller may lose it."""
    unsent, counted = Unsent(LOG, *BOUNDS["bytes"]), list[int]()

    async def answer(call: http.AdmittedCall) -> web.Response:
        rows = np.zeros(int(call.parts[0]), np.uint8)
        return await bodies.reply(call.request, await bodies.write(call, {"y": rows}, lambda: look(rows)))

    def look(rows: Array) -> bytes:
        counted.append(unsent.bytes)
        return bytes(rows[:1])

    settings = gateway_settings()
    bodies = http.Bodies(settings, core_that_counts(unsent))
    route = http.Endpoint(re.compile("/(.*)"), Right.HEALTH, {"GET": answer})
    async with (
        over_http(http.make_application([route], Access(), bodies), settings) as address,
        ClientSession(f"http://{address[0]}:{address[1]}") as session,
    ):
        async with session.get(f"/{LARGE // 2}") as reply:
            assert await reply.read() == b"\0"
        with pytest.raises(ClientConnectionError):
            await session.get(f"/{LARGE}")
    await until(lambda: not unsent.bytes)
    assert counted[0] == LARGE // 2
    assert set(unsent.given_up) == {"bytes"}  # once or twice: a client may ask again
