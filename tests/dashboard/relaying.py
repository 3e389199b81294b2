"""What the tests of the relay share."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from tests.dashboard.fake_broker import Connected, FakeBroker, fake_broker, read_all
from tests.dashboard.served import Served, served, settings_of, web_socket

__all__ = ["Test", "asynchronous", "collect", "echo", "refusal", "relayed", "settled"]

Test = Callable[..., Coroutine[Any, Any, None]]


def asynchronous(test: Test) -> Callable[..., None]:
    """Run a test in a loop of its own, for at most two minutes."""

    @functools.wraps(test)
    def run(*args: object, **fixtures: object) -> None:
        async def main() -> None:
            async with asyncio.timeout(120):
                await test(*args, **fixtures)

        asyncio.run(main())

    return run


@asynccontextmanager
async def relayed(
    connected: Connected = read_all, login: str = "", **options: Any
) -> AsyncIterator[tuple[FakeBroker, Served]]:
    """Serve a dashboard, with this login and these settings, in front of a broker's place."""
    async with fake_broker(connected) as broker:
        with served(settings_of(broker.url.replace("//", f"//{login}"), **options)) as dashboard:
            yield broker, dashboard


async def refusal(url: str, origin: str | None = "own", **how: Any) -> int:
    """Return the status with which a WebSocket is refused."""
    with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
        async with web_socket(url, origin, **how):
            pass
    return refused.value.status


async def echo(broker: FakeBroker, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send back what comes."""
    while data := await reader.read(1 << 16):
        broker.received += data
        writer.write(data)
        await writer.drain()


async def collect(socket: aiohttp.ClientWebSocketResponse, size: int) -> bytes:
    """Return so many bytes of the messages that come."""
    found = bytearray()
    while len(found) < size:
        found += await socket.receive_bytes()
    return bytes(found)


async def settled(count: Callable[[], int]) -> None:
    """Wait until a count has not changed for a second."""
    while True:
        before = count()
        await asyncio.sleep(1.0)
        if count() == before:
            return
