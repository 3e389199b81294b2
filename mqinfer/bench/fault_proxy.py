"""A TCP proxy between clients and a broker that injects faults, in each direction separately.

It has the faults of toxiproxy (latency, bandwidth, cut, black hole) and two more: bits that flip, with a seed, and MQTT
packets of a type that are dropped, such as PUBACK. One thread runs an event loop; the public methods may be called from
any other.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
import threading
from collections.abc import Coroutine
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

from mqinfer.bench.packet_filter import PacketFilter

__all__ = ["FaultProxy", "Faults"]

T = TypeVar("T")
_CHUNK = 16 << 10
_QUEUED_CHUNKS = 256
"""Queued in each direction of each connection: 4 MiB, more than 200 Mbit/s * 100 ms."""
_CREDIT_S = 0.05
"""A loop that wakes late catches up by at most this time, so that the bandwidth is as configured."""
_RESET = struct.pack("ii", 1, 0)
"""SO_LINGER on, for zero seconds: closing sends RST."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of one direction.

    Attributes:
        delay_s: Delay of each byte, in seconds.
        bytes_per_s: Bandwidth of all connections together; None for no limit.
        swallow: Everything is dropped and no side is notified: a half-open connection.
        flip_every: Mean number of bytes between flipped bits; 0 flips none.
        without: Types of MQTT packets that are dropped.
    """

    delay_s: float = 0.0
    bytes_per_s: float | None = None
    swallow: bool = False
    flip_every: int = 0
    without: frozenset[int] = frozenset()


@dataclass(slots=True, eq=False)
class _Direction:
    """One direction of all connections."""

    faults: Faults = field(default_factory=Faults)
    free_at: float = 0.0
    passed: int = 0
    dropped_packets: int = 0


class FaultProxy:
    """Listens on a free port of this machine and passes everything on to a broker; a context manager.

    Args:
        port: Of the broker, on this machine.
        seed: For the bits that flip.
    """

    def __init__(self, port: int, seed: int = 0) -> None:
        self._target = port
        self._random = random.Random(seed)  # noqa: S311 - which bits flip is no secret
        self._up, self._down = _Direction(), _Direction()
        self._pairs: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._refuses = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="mqinfer-fault-proxy", daemon=True)
        self.port = 0
        self.connections = 0
        """Accepted so far."""

    @property
    def url(self) -> str:
        """The proxy's address for clients."""
        return f"mqtt://127.0.0.1:{self.port}"

    @property
    def bytes_up(self) -> int:
        """Bytes passed from clients to the broker."""
        return self._up.passed

    @property
    def bytes_down(self) -> int:
        """Bytes passed from the broker to clients."""
        return self._down.passed

    @property
    def packets_dropped(self) -> int:
        """MQTT packets dropped for their type, in both directions."""
        return self._up.dropped_packets + self._down.dropped_packets

    def up(self, **faults: Any) -> None:
        """Set the faults from clients to the broker: fields of `Faults`; those left out are reset."""
        self._up.faults = replace(Faults(), **faults)

    def down(self, **faults: Any) -> None:
        """Set the faults from the broker to clients, in the same way."""
        self._down.faults = replace(Faults(), **faults)

    def both(self, **faults: Any) -> None:
        """Set the same faults in both directions."""
        self.up(**faults)
        self.down(**faults)

    def refuse(self, refuses: bool = True) -> None:  # noqa: FBT001, FBT002 - a switch
        """Reset new connections at once, or accept them again."""
        self._refuses = refuses

    def cut(self, *, reset: bool = True) -> int:
        """End every connection, with RST or with FIN; return how many there were."""
        return self._do(self._cut(reset=reset))

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

    # What follows runs on the loop's thread.

    async def _close(self) -> None:
        self._server.close()
        await self._cut(reset=True)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cut(self, *, reset: bool) -> int:
        pairs = list(self._pairs)
        for pair in pairs:
            _end(pair, reset=reset)
        return len(pairs)

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if self._refuses:
                raise ConnectionRefusedError
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

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, direction: _Direction) -> None:
        """Read ahead; a second task writes each chunk when it is due."""
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_QUEUED_CHUNKS)
        sending = self._loop.create_task(self._send(queue, writer, direction))
        packets = PacketFilter()
        try:
            while data := await reader.read(_CHUNK):
                kept = packets.feed(data, direction.faults.without)
                direction.dropped_packets, packets.dropped = direction.dropped_packets + packets.dropped, 0
                if kept and not direction.faults.swallow:
                    await queue.put(
                        (self._loop.time() + direction.faults.delay_s, self._flip(kept, direction.faults.flip_every))
                    )
            await queue.join()
        except OSError:
            pass  # one side is gone; the caller closes the other
        finally:
            sending.cancel()

    async def _send(
        self, queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter, direction: _Direction
    ) -> None:
        while True:
            due, data = await queue.get()
            if direction.faults.bytes_per_s:
                direction.free_at = (
                    max(direction.free_at, self._loop.time() - _CREDIT_S) + len(data) / direction.faults.bytes_per_s
                )
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

    def _flip(self, data: bytes, every: int) -> bytes:
        if not every:
            return data
        flips = sum(self._random.random() < 1 / every for _ in range(len(data)))
        changed = bytearray(data)
        for _ in range(flips):
            changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)


def _end(pair: tuple[asyncio.StreamWriter, asyncio.StreamWriter], *, reset: bool) -> None:
    for writer in pair:
        sock = writer.get_extra_info("socket")
        if reset and sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            writer.transport.abort()
        else:
            writer.close()
