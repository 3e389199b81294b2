"""The relay between browsers and a broker's place: what passes, what ends, and that nothing grows."""

from __future__ import annotations

import asyncio
import os
import struct
from contextlib import suppress
from socket import SO_LINGER, SOL_SOCKET
from typing import Any

import aiohttp
import pytest

from tests.dashboard.fake_broker import CONNACK, CONNECT, FakeBroker, fake_broker, read_all
from tests.dashboard.relaying import asynchronous, collect, echo, refusal, relayed
from tests.dashboard.served import closing, served, settings_of, web_socket
from tests.patience import until
from tests.ports import free_port

POLICY_VIOLATION, TOO_BIG, TRY_AGAIN = 1008, 1009, 1013


@asynchronous
async def test_bytes_pass_unchanged() -> None:
    """Both ways, whatever they are and however they are cut into messages; nothing is compressed."""
    content = CONNECT + os.urandom(3 << 20)
    async with relayed(echo) as (broker, dashboard), web_socket(dashboard.url, compress=15) as socket:
        assert (socket.protocol, socket.compress) == ("mqtt", 0)

        async def send() -> None:
            at = 0
            for size in [1, 1, 2, 100, 1 << 16, (1 << 20) - 200] + [700_001] * 4:
                await socket.send_bytes(content[at : at + size])
                at += size
            await socket.send_bytes(content[at:])

        sending = asyncio.create_task(send())
        assert await collect(socket, len(content)) == content
        await sending
    assert bytes(broker.received) == content


@asynchronous
async def test_other_origins_hosts_and_subprotocols() -> None:
    """A page of another server gets no connection, nor does who names none; the broker never sees them.

    Who has turned a name of theirs to loopback gets none either, although origin and host agree.
    """
    evil = "http://evil.example"
    async with relayed() as (broker, dashboard):
        for origin in (None, "null", evil, "http://localhost"):
            assert await refusal(dashboard.url, origin) == 403
        assert await refusal(dashboard.url, evil, headers={"Host": "evil.example"}) == 421
        for protocols in ((), ("mqttv3.1",), ("chat", "MQTT")):
            assert await refusal(dashboard.url, protocols=protocols) == 400
        assert broker.connections == 0


@pytest.mark.parametrize("headers", [{}, {"Upgrade": "websocket", "Connection": "upgrade"}])
@asynchronous
async def test_what_is_no_websocket(headers: dict[str, str]) -> None:
    """A plain request, or half a handshake, gets 400."""
    with served(settings_of()) as dashboard:
        given = {"Origin": dashboard.url, "Sec-WebSocket-Protocol": "mqtt", **headers}
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{dashboard.url}/mqtt", headers=given) as reply,
        ):
            assert reply.status == 400


async def send_text(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Send text, which MQTT never is."""
    await socket.send_str("CONNECT")


async def send_oversized(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Send one message of more than a mebibyte."""
    await socket.send_bytes(bytes((1 << 20) + 1))


async def claim_oversized(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Send the head of a message of 2**62 bytes."""
    assert socket._writer is not None
    socket._writer.transport.write(b"\x82\xff" + struct.pack("!Q", 1 << 62) + b"mask")


async def send_unmasked(socket: aiohttp.ClientWebSocketResponse) -> None:
    """A frame without a mask, which a browser never sends."""
    assert socket._writer is not None
    socket._writer.transport.write(b"\x82\x02\xc0\x00")


async def send_garbage(socket: aiohttp.ClientWebSocketResponse) -> None:
    """Send a frame with reserved bits."""
    assert socket._writer is not None
    socket._writer.transport.write(b"\xf2\x80mask")


@pytest.mark.parametrize(
    ("misbehave", "codes"),
    [
        (send_text, {POLICY_VIOLATION}),
        (send_oversized, {TOO_BIG, 1006}),
        (claim_oversized, {TOO_BIG, 1006}),
        (send_unmasked, {1002, 1006}),
        (send_garbage, {1002, 1006}),
    ],
)
@pytest.mark.parametrize("is_connected", [False, True])
@asynchronous
async def test_bad_frames(misbehave: Any, codes: set[int], is_connected: bool) -> None:  # noqa: FBT001
    """The browser is cut off, before it has connected and after; nothing of the frame reaches the broker."""
    async with relayed() as (broker, dashboard):
        async with web_socket(dashboard.url) as socket:
            if is_connected:
                await socket.send_bytes(CONNECT)
                await until(lambda: broker.received == CONNECT)
            with suppress(ConnectionError):  # it may be cut off before all of it was sent
                await misbehave(socket)
            assert await closing(socket) in codes
        if is_connected:
            await broker.ended.wait()
    assert broker.received == (CONNECT if is_connected else b"")
    assert broker.connections == is_connected


@asynchronous
async def test_a_browser_that_says_nothing() -> None:
    """It is cut off after a while; the broker never sees it."""
    async with relayed(first_packet=0.2) as (broker, dashboard), web_socket(dashboard.url) as socket:
        assert await closing(socket) == POLICY_VIOLATION
    assert broker.connections == 0


@asynchronous
async def test_a_browser_that_is_gone() -> None:
    """One that no longer answers pings is cut off, and its place is free."""
    async with (
        relayed(heartbeat=0.2, max_connections=1) as (broker, dashboard),
        web_socket(dashboard.url, autoping=False) as socket,
    ):
        await socket.send_bytes(CONNECT)
        await broker.ended.wait()
        while broker.connections < 2:  # a busy machine may be too late for the pings of this one, too
            with suppress(aiohttp.ClientError, ConnectionError, TimeoutError):
                async with web_socket(dashboard.url) as another, asyncio.timeout(1.0):
                    await another.send_bytes(CONNECT)
                    await until(lambda: broker.connections == 2)


@asynchronous
async def test_what_the_broker_sent_last_arrives() -> None:
    """A broker that refuses sends its reason and closes: the browser gets both."""

    async def refuse(_: FakeBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(len(CONNECT))
        writer.write(b"\x20\x03\x00\x87\x00" + bytes(500_000))
        await writer.drain()

    async with relayed(refuse) as (_, dashboard), web_socket(dashboard.url) as socket:
        await socket.send_bytes(CONNECT)
        assert (await collect(socket, 500_005))[:5] == b"\x20\x03\x00\x87\x00"
        assert await closing(socket) == aiohttp.WSCloseCode.OK


@asynchronous
async def test_what_the_browser_sent_last_arrives() -> None:
    """A DISCONNECT before the end of the WebSocket reaches the broker."""
    async with relayed() as (broker, dashboard):
        async with web_socket(dashboard.url) as socket:
            await socket.send_bytes(CONNECT)
            await socket.send_bytes(b"\xe0\x00")
        await broker.ended.wait()
    assert broker.received == CONNECT + b"\xe0\x00"


@asynchronous
async def test_a_broker_that_closes_one_way() -> None:
    """A half-closed connection is closed as a whole."""

    async def half_close(broker: FakeBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(CONNACK)
        writer.write_eof()
        await read_all(broker, reader, writer)

    async with relayed(half_close) as (broker, dashboard):
        async with web_socket(dashboard.url) as socket:
            await socket.send_bytes(CONNECT)
            assert await collect(socket, 5) == CONNACK
            assert await closing(socket) == aiohttp.WSCloseCode.OK
        await broker.ended.wait()


@asynchronous
async def test_a_browser_that_vanishes() -> None:
    """Its TCP connection breaks without a word of WebSocket, and the broker's connection ends."""
    async with relayed() as (broker, dashboard), web_socket(dashboard.url) as socket:
        await socket.send_bytes(CONNECT)
        await until(lambda: broker.received == CONNECT)
        assert socket._response.connection is not None
        assert socket._response.connection.transport is not None
        socket._response.connection.transport.abort()
        await broker.ended.wait()


@asynchronous
async def test_a_broker_that_resets() -> None:
    """A connection that breaks is an end as any other; the log has no traceback."""

    async def reset(_: FakeBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        linger = struct.pack("ii", 1, 0)  # close with RST
        writer.get_extra_info("socket").setsockopt(SOL_SOCKET, SO_LINGER, linger)

    async with relayed(reset) as (_, dashboard), web_socket(dashboard.url) as socket:
        await socket.send_bytes(CONNECT * 100)
        assert await closing(socket) == aiohttp.WSCloseCode.OK


@asynchronous
async def test_the_broker_is_away() -> None:
    """The browser is told to try again later; when the broker is there, it connects."""
    port = free_port()
    with served(settings_of(f"mqtt://127.0.0.1:{port}")) as dashboard:
        async with web_socket(dashboard.url) as socket:
            await socket.send_bytes(CONNECT)
            assert await closing(socket) == TRY_AGAIN
        async with fake_broker(echo, port), web_socket(dashboard.url) as socket:
            await socket.send_bytes(CONNECT)
            assert await collect(socket, len(CONNECT)) == CONNECT
