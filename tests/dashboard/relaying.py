"""What the tests of the relay share."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import aiohttp

from tests.dashboard.fake_broker import FakeBroker
from tests.patience import wait_until

__all__ = ["Test", "collect", "echo", "run", "settled", "until"]

Test = Callable[[], Coroutine[Any, Any, None]]


def run(test: Test) -> None:
    """Run an asynchronous test."""

    async def main() -> None:
        async with asyncio.timeout(120):
            await test()

    asyncio.run(main())


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


async def until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition without holding up the loop."""
    await asyncio.to_thread(wait_until, is_so)


async def settled(count: Callable[[], int]) -> None:
    """Wait until a count has not changed for a second."""
    while True:
        before = count()
        await asyncio.sleep(1.0)
        if count() == before:
            return
