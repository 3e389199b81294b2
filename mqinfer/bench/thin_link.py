"""A TCP relay between clients and a server with little bandwidth, delay and loss in each direction.

One thread runs an event loop; the public methods may be called from any other.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
import threading
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from random import Random
from typing import Any, Self, TypeVar

from mqinfer.bench.processes import say

T = TypeVar("T")
Pair = tuple[asyncio.StreamWriter, asyncio.StreamWriter]
"""Both sides of a connection: the client's and the broker's."""
_CHUNK = 16 << 10
_QUEUED_CHUNKS = 256
"""Queued in each direction of each connection: 4 MiB, more than 200 Mbit/s * 100 ms."""
_PACKET, _SEED = 1448, 7
"""Bytes of a packet over Ethernet, and what the choice of the lost ones begins with."""
_CREDIT_S = 0.05
"""A loop that wakes late catches up by at most this time, so that the bandwidth is as configured."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, for zero seconds: closing sends RST."""


@dataclass(slots=True, eq=False)
class Direction:
    """One direction of all connections.

    Attributes:
        bytes_per_s: Bandwidth of all connections together; None for no limit.
        delay_s: Delay of each byte, in seconds.
        loss: Share of the packets that are lost: what follows waits for a round trip, in which it is sent again.
        passed: Bytes that have passed.
        free_at: Time of the loop at which the bandwidth allows the next byte.
    """

    bytes_per_s: float | None = None
    delay_s: float = 0.0
    loss: float = 0.0
    passed: int = 0
    free_at: float = 0.0


class ThinLink:
    """Listens on a free port of this machine and passes everything on to a broker; a context manager.

    Args:
        port: Of the broker, on this machine.
        bytes_per_s: Bandwidth each way; None for no limit.
    """

    def __init__(self, port: int, bytes_per_s: float | None = None) -> None:
        self._target = port
        self._up, self._down = Direction(bytes_per_s), Direction(bytes_per_s)
        self._pairs: set[Pair] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mqinfer-thin-link", daemon=True)
        self._random = Random(_SEED)  # noqa: S311 - no secret
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self._server = self._do(asyncio.start_server(self._serve, "127.0.0.1", 0))
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._do(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def shape(self, delay_s: float, loss: float) -> None:
        """Delay each byte, and lose some packets, in both directions from now on."""
        for direction in (self._up, self._down):
            direction.delay_s, direction.loss = delay_s, loss

    @property
    def passed(self) -> tuple[int, int]:
        """Bytes that have passed, to the server and from it."""
        return self._up.passed, self._down.passed

    def _filter(self, direction: Direction) -> Callable[[bytes], bytes]:
        """Return what is applied to each chunk of a new connection before it is queued."""
        del direction
        return bytes

    # What follows runs on the loop's thread.

    async def _close(self) -> None:
        self._server.close()
        await self._cut(reset=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cut(self, *, reset: bool) -> int:
        """End every connection, with RST or with FIN; return how many there were."""
        pairs = list(self._pairs)
        for pair in pairs:
            _end(pair, reset=reset)
        return len(pairs)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        try:
            broker_reader, broker = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            client.transport.abort()
            return
        pair = (client, broker)
        for writer in pair:
            writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._pairs.add(pair)
        pumps = [self._pump(reader, broker, self._up), self._pump(broker_reader, client, self._down)]
        tasks = [self._loop.create_task(pump) for pump in pumps]
        self._tasks.update(tasks)
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        _end(pair, reset=False)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._tasks.difference_update(tasks)
        self._pairs.discard(pair)

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: Direction) -> None:
        """Read ahead; a second task writes each chunk when it is due."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED_CHUNKS)
        sending = self._loop.create_task(self._send(queue, writer, direction))
        kept = self._filter(direction)
        try:
            while data := await reader.read(_CHUNK):
                if data := kept(data):
                    delay_s = direction.delay_s * (3 if is_lost(self._random, direction.loss, len(data)) else 1)
                    await queue.put((self._loop.time() + delay_s, data))
            await queue.join()
        except OSError:
            pass  # one side is gone; the caller closes the other
        finally:
            sending.cancel()

    async def _send(
        self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, direction: Direction
    ) -> None:
        while True:
            due, data = await queue.get()
            if direction.bytes_per_s:
                earliest = max(direction.free_at, self._loop.time() - _CREDIT_S)
                direction.free_at = earliest + len(data) / direction.bytes_per_s
                due = max(due, direction.free_at)
            if (wait := due - self._loop.time()) > 0:
                await asyncio.sleep(wait)
            try:
                writer.write(data)
                await writer.drain()
            except OSError:
                writer.transport.abort()
            direction.passed += len(data)
            queue.task_done()


def is_lost(random: Random, loss: float, size: int) -> bool:
    """Return whether one of the packets of so many bytes is lost."""
    return loss > 0 and random.random() > (1 - loss) ** -(-size // _PACKET)


def _end(pair: Pair, *, reset: bool) -> None:
    for writer in pair:
        sock = writer.get_extra_info("socket")
        if reset and sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        else:
            writer.close()


def serve_link(port: str, mbit: str, delay_ms: str, loss: str) -> None:
    """Run a link until standard input ends: write its port, and for each line the bytes that have passed each way."""
    with ThinLink(int(port), float(mbit) * 1e6 / 8 or None) as link:
        link.shape(float(delay_ms) / 1000, float(loss))
        say(str(link.port))
        while sys.stdin.readline():
            say(json.dumps(link.passed))
