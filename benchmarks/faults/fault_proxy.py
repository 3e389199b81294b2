"""A TCP proxy between clients and a broker that injects faults, in each direction separately.

It has the faults of toxiproxy (latency, bandwidth, cut, black hole) and two more: bits that flip, with a seed, and MQTT
packets of a type that are dropped, such as PUBACK.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from mqinfer.bench.thin_link import Direction, ThinLink

PUBLISH, PUBACK = 3, 4
"""Control packet types (MQTT 5, table 2-1)."""
_MORE = 0x80
"""Set in each byte of a Remaining Length but the last (MQTT 5, section 1.5.5)."""


@dataclass(frozen=True, slots=True)
class Faults:
    """The faults of one direction, beside its bandwidth and its delay.

    Attributes:
        swallow: Everything is dropped and no side is notified: a half-open connection.
        flip_every: Mean number of bytes between flipped bits; 0 flips none.
        without: Types of MQTT packets that are dropped.
    """

    swallow: bool = False
    flip_every: int = 0
    without: frozenset[int] = frozenset()


class FaultProxy(ThinLink):
    """A link with faults.

    Args:
        port: Of the broker, on this machine.
        seed: For the bits that flip.
        scheme: Of its address for clients.
    """

    def __init__(self, port: int, seed: int = 0, scheme: str = "mqtt") -> None:
        super().__init__(port)
        self._scheme = scheme
        self._random = random.Random(seed)  # noqa: S311 - which bits flip is no secret
        self._faults = {self._up: Faults(), self._down: Faults()}
        self._refuses = False
        self.connections = 0
        """Accepted so far."""
        self.packets_dropped = 0
        """MQTT packets dropped for their type, in both directions."""

    @property
    def url(self) -> str:
        """Its address for clients."""
        return f"{self._scheme}://127.0.0.1:{self.port}"

    def up(self, **faults: Any) -> None:
        """Set the faults from clients to the broker: as of `Faults` and `Direction`; those left out are reset."""
        self._set(self._up, **faults)

    def down(self, **faults: Any) -> None:
        """Set the faults from the broker to clients, in the same way."""
        self._set(self._down, **faults)

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

    def _set(
        self, direction: Direction, *, delay_s: float = 0.0, bytes_per_s: float | None = None, **faults: Any
    ) -> None:
        self._faults[direction] = Faults(**faults)
        direction.delay_s, direction.bytes_per_s = delay_s, bytes_per_s

    async def _serve(self, reader: asyncio.StreamReader, client: asyncio.StreamWriter) -> None:
        self.connections += 1
        if self._refuses:
            client.transport.abort()
        else:
            await super()._serve(reader, client)

    def _filter(self, direction: Direction) -> Callable[[bytes], bytes]:
        packets = PacketFilter()

        def kept(data: bytes) -> bytes:
            faults = self._faults[direction]
            passed = packets.feed(data, faults.without)
            self.packets_dropped, packets.dropped = self.packets_dropped + packets.dropped, 0
            return b"" if faults.swallow else self._flip(passed, faults.flip_every)

        return kept

    def _flip(self, data: bytes, every: int) -> bytes:
        if not every:
            return data
        flips = sum(self._random.random() < 1 / every for _ in range(len(data)))
        changed = bytearray(data)
        for _ in range(flips):
            changed[self._random.randrange(len(changed))] ^= 1 << self._random.randrange(8)
        return bytes(changed)


class PacketFilter:
    """Removes packets of some types from one direction of a connection, wherever its bytes are split. Pure."""

    def __init__(self) -> None:
        """Start at a packet's first byte."""
        self._head = bytearray()
        self._left = 0
        self._is_dropped = False
        self.dropped = 0
        """Packets that were removed."""

    def feed(self, data: bytes, types: frozenset[int]) -> bytes:
        """Return the bytes without the packets of these types."""
        passed = bytearray()
        view = memoryview(data)
        while view:
            if self._left:
                body, view = view[: self._left], view[self._left :]
                self._left -= len(body)
                if not self._is_dropped:
                    passed += body
            else:
                self._head.append(view[0])
                view = view[1:]
                if len(self._head) > 1 and not self._head[-1] & _MORE:
                    passed += self._begin(types)
        return bytes(passed)

    def _begin(self, types: frozenset[int]) -> bytes:
        """Return the fixed header that is now complete, or nothing where its packet is removed."""
        head, self._head = bytes(self._head), bytearray()
        self._left = sum((byte & 0x7F) << (7 * place) for place, byte in enumerate(head[1:]))
        self._is_dropped = head[0] >> 4 in types
        self.dropped += self._is_dropped
        return b"" if self._is_dropped else head
