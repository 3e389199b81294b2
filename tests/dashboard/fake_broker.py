"""A TCP server in a broker's place, which does what a test says and counts what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

__all__ = ["CONNACK", "CONNECT", "Connected", "FakeBroker", "fake_broker", "read_all"]

CONNECT = b"\x10\x0d\x00\x04MQTT\x05\x02\x00\x3c\x00\x00\x00"
"""Of MQTT 5, with an empty client id."""
CONNACK = b"\x20\x03\x00\x00\x00"

Connected = Callable[["FakeBroker", asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(slots=True, eq=False)
class FakeBroker:
    """A broker's place.

    Attributes:
        url: Where it is.
        received: All bytes that came, over all connections.
        sent: Bytes that were written so far.
        connections: Connections so far.
        ended: Set when a connection has ended from the other side.
    """

    url: str = ""
    received: bytearray = field(default_factory=bytearray)
    sent: int = 0
    connections: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


async def read_all(broker: FakeBroker, reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    """Read until the other side has closed."""
    with suppress(ConnectionError):
        while data := await reader.read(1 << 16):
            broker.received += data
    broker.ended.set()


@asynccontextmanager
async def fake_broker(connected: Connected = read_all, port: int = 0) -> AsyncIterator[FakeBroker]:
    """Listen until the end of the context; each connection is closed when `connected` returns."""
    broker = FakeBroker()
    tasks: list[asyncio.Task[None]] = []
    transports: list[asyncio.BaseTransport] = []
    closed: list[asyncio.Event] = []

    class Recorded(asyncio.StreamReaderProtocol):
        """Knows its connection also where the task that serves it has not begun."""

        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            transports.append(transport)
            closed.append(asyncio.Event())
            self.closed = closed[-1]
            super().connection_made(transport)

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            self.closed.set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        broker.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.append(task)
        with suppress(ConnectionError, asyncio.CancelledError):
            await connected(broker, reader, writer)
        writer.close()

    def accepted() -> Recorded:
        return Recorded(asyncio.StreamReader(), serve)

    server = await asyncio.get_running_loop().create_server(accepted, "127.0.0.1", port)
    broker.url = f"mqtt://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield broker
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for transport in transports:
            assert isinstance(transport, asyncio.WriteTransport)
            transport.abort()  # what the other side does not read would stay
        await asyncio.gather(*(each.wait() for each in closed))
