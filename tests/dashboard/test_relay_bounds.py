"""Bounds of the relay: browsers and brokers that do not read, many connections, one too many, a flood of refusals."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from types import SimpleNamespace

import aiohttp
import pytest

from mqinfer.dashboard.places import Full, Places
from tests.dashboard.fake_broker import CONNACK, CONNECT, FakeBroker, read_all
from tests.dashboard.relaying import asynchronous, collect, echo, refusal, relayed, settled
from tests.dashboard.served import closing, served, settings_of, web_socket
from tests.patience import until

GOING_AWAY = 1001
FLOOD = 256 << 20
MOST_HELD = 32 << 20
PINGREQ = b"\xc0\x00"
"""What buffers of the two kernels and of the relay may hold together of a connection that one end does not read."""

HANDSHAKE = """GET /mqtt HTTP/1.1
Host: 127.0.0.1:{0}
Origin: http://127.0.0.1:{0}
Connection: Upgrade
Upgrade: websocket
Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==
Sec-WebSocket-Version: 13
Sec-WebSocket-Protocol: mqtt

"""


@asynchronous
async def test_a_browser_that_does_not_read() -> None:
    """The broker is held up and the relay holds little; others are served meanwhile, and the end is prompt."""

    async def flood(broker: FakeBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(len(CONNECT) + 1)
        if first[-1]:
            writer.write(CONNACK)
            return await read_all(broker, reader, writer)
        while broker.sent < FLOOD:
            writer.write(bytes(1 << 16))
            broker.sent += 1 << 16
            await writer.drain()
        return None

    async with relayed(flood) as (broker, dashboard):
        async with web_socket(dashboard.url) as stuck:
            await stuck.send_bytes(CONNECT + b"\x00")
            await until(lambda: broker.sent > 0)
            await settled(lambda: broker.sent)
            assert broker.sent < MOST_HELD
            async with web_socket(dashboard.url) as other:
                await other.send_bytes(CONNECT + b"\x01")
                assert await collect(other, 5) == CONNACK
            dashboard.stop()
            await until(lambda: not dashboard.is_alive())
        assert broker.sent < MOST_HELD


@asynchronous
async def test_a_browser_that_never_reads_again() -> None:
    """It answers no ping either, so it is cut off and the broker's connection ends."""

    async def flood(broker: FakeBroker, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(bytes(1 << 16))
                await writer.drain()
        except ConnectionError:
            broker.ended.set()

    async with relayed(flood, heartbeat=0.5) as (broker, dashboard), web_socket(dashboard.url) as stuck:
        await stuck.send_bytes(CONNECT)
        await broker.ended.wait()


@asynchronous
async def test_nothing_follows_the_answer_to_a_close() -> None:
    """A browser that is behind and closes reads what was sent before; where the relay's close comes, it is the last."""

    async def flood(broker: FakeBroker, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while True:
                writer.write(bytes(1 << 16))
                broker.sent += 1 << 16
                await writer.drain()
        broker.ended.set()

    async with relayed(flood) as (broker, dashboard):
        reader, writer = await asyncio.open_connection("127.0.0.1", dashboard.port)
        writer.write(HANDSHAKE.format(dashboard.port).replace("\n", "\r\n").encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(bytes([0x82, 0x80 | len(CONNECT), 0, 0, 0, 0]) + CONNECT)  # masked with zeros
        await until(lambda: broker.sent > 0)
        await settled(lambda: broker.sent)
        writer.write(bytes([0x88, 0x82, 0, 0, 0, 0]) + (1000).to_bytes(2, "big"))
        await broker.ended.wait()  # the relay has read it before there is room again
        kinds = []
        with suppress(asyncio.IncompleteReadError):
            while True:
                kind, size = await reader.readexactly(2)
                if size >= 126:
                    size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8), "big")
                await reader.readexactly(size)
                kinds.append(kind & 0x0F)
        assert 2 in kinds
        assert 8 not in kinds[:-1]
        writer.transport.abort()


@asynchronous
async def test_a_broker_that_does_not_read() -> None:
    """The browser is held up, and the relay holds little."""
    sent = 0

    async def ignore(_: FakeBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined] # typeshed has the base class there
        await asyncio.Event().wait()
        await reader.read()

    async with relayed(ignore) as (_, dashboard), web_socket(dashboard.url) as socket:

        async def send() -> None:
            nonlocal sent
            while sent < FLOOD:
                await socket.send_bytes(bytes(1 << 16))
                sent += 1 << 16

        sending = asyncio.create_task(send())
        await until(lambda: sent > 0)
        await settled(lambda: sent)
        assert sent < MOST_HELD
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        assert socket._response.connection is not None
        assert socket._response.connection.transport is not None
        socket._response.connection.transport.abort()


@asynchronous
async def test_a_browser_that_sends_many_small_packets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between any two pieces of what it sends, others have their turn."""
    pieces, turns = [], [0]

    def look(data: bytes) -> bytes:
        pieces.append((len(data), turns[-1]))
        asyncio.get_running_loop().call_soon(turns.append, len(pieces))
        return data

    monkeypatch.setattr("mqinfer.dashboard.serving.WallGate", lambda *_: SimpleNamespace(feed=look))
    async with relayed(login="wall:secret@") as (broker, dashboard), web_socket(dashboard.url) as socket:
        for _ in range(8):
            await socket.send_bytes(PINGREQ * 30_000)
        await until(lambda: len(broker.received) == 8 * 60_000)
    assert max(size for size, _ in pieces) <= 1 << 14
    assert [turn for _, turn in pieces] == list(range(len(pieces)))


@asynchronous
async def test_many_idle_connections() -> None:
    """200 browsers are connected, each of them is served, and all end with the dashboard."""
    async with relayed(echo) as (broker, dashboard):
        stack = [web_socket(dashboard.url) for _ in range(200)]
        sockets = [await each.__aenter__() for each in stack]
        await asyncio.gather(*(socket.send_bytes(CONNECT) for socket in sockets))
        for found in await asyncio.gather(*(collect(socket, len(CONNECT)) for socket in sockets)):
            assert found == CONNECT
        assert broker.connections == 200
        dashboard.stop()
        assert set(await asyncio.gather(*map(closing, sockets))) == {GOING_AWAY}
        for each in stack:
            await each.__aexit__(None, None, None)


@asynchronous
async def test_one_too_many() -> None:
    """It is refused with 503, and served once another one has left."""
    async with relayed(echo, max_connections=2) as (_, dashboard), web_socket(dashboard.url):
        async with web_socket(dashboard.url):
            assert await refusal(dashboard.url) == 503
        while True:
            try:
                async with web_socket(dashboard.url) as socket:
                    await socket.send_bytes(CONNECT)
                    assert await collect(socket, len(CONNECT)) == CONNECT
            except aiohttp.WSServerHandshakeError:  # the other one's end shows later
                continue
            break


def test_places() -> None:
    """All together are bounded, and those of one address; not those of loopback, where a proxy speaks for many."""
    places = Places(4, 2)
    with places.take("10.0.0.1"), places.take("10.0.0.1"):
        with pytest.raises(Full, match="per_address"), places.take("10.0.0.1"):
            pass
        with places.take("10.0.0.2"):
            pass
    assert places.taken == 0
    with places.take("::1"), places.take("::1"), places.take("::1"), places.take("127.0.0.1"):
        assert places.taken == 4
        with pytest.raises(Full, match=r"max_connections$"), places.take("10.0.0.3"):
            pass
    assert places._taken == {}


@asynchronous
async def test_a_flood_of_refusals_fills_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """Of 100 refused connections the log has the 1st, 2nd, 4th, 8th, …; each is counted."""
    with caplog.at_level(logging.INFO, "mqinfer.dashboard"), served(settings_of()) as dashboard:
        for _ in range(100):
            assert await refusal(dashboard.url, "http://evil.example") == 403
    lines = [record.getMessage() for record in caplog.records if "origin" in record.getMessage()]
    assert [line.rpartition(" ")[2] for line in lines] == [f"{2**n})" for n in range(7)]
