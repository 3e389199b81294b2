"""Cuts a stream of bytes into MQTT packets, with one copy of a payload at most.

Small packets are cut out of one buffer that is filled by few large reads. The payload of a large PUBLISH gets memory of
its own as soon as its variable header is known, and the socket then writes straight into it. That memory starts at a
multiple of 64 bytes, so that tensors which an envelope pads to 64 are aligned for NumPy and the inference engines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from mqinfer.broker.packets import PUBLISH, Received, decode_publish, decode_variable_integer
from mqinfer.protocol.errors import BadEnvelope
from mqinfer.protocol.limits import PACKET_HEAD_BYTES

_CAPACITY = 1 << 16
_LARGEST = 268_435_460  # what MQTT allows: five bytes of fixed header, and what four bytes of seven bits count
_ALIGNMENT = 64


class OtherPacket(NamedTuple):
    """Any packet but a PUBLISH: the first byte, and what follows the fixed header."""

    command: int
    body: bytes


@dataclass(slots=True)
class _Large:
    """A packet that is received into memory of its own."""

    command: int
    memory: memoryview
    filled: int
    received: Received | None  # None: `memory` is the whole body; otherwise the payload alone


class PacketReader:
    """The receiving side of one connection: `space`, receive into it, `advance`, then `packets`.

    Args:
        version5: Whether the connection speaks MQTT 5.
        capacity: Bytes of the buffer for small packets.
        max_packet_size: What CONNECT named, in bytes. No memory is taken for a larger packet.
    """

    def __init__(self, *, version5: bool, capacity: int = _CAPACITY, max_packet_size: int = _LARGEST) -> None:
        self._version5 = version5
        self._max_packet_size = max_packet_size
        self._buffer = memoryview(bytearray(capacity))
        self._start = 0
        self._end = 0
        self._large: _Large | None = None

    def space(self) -> memoryview:
        """Return where to receive the next bytes; never empty after `packets` was exhausted."""
        if self._large is not None:
            return self._large.memory[self._large.filled :]
        return self._buffer[self._end :]

    def advance(self, count: int) -> None:
        """Count `count` bytes as received into `space`."""
        if self._large is not None:
            self._large.filled += count
        else:
            self._end += count

    def packets(self) -> Iterator[Received | OtherPacket]:
        """Yield all packets that are complete by now.

        Raises:
            BadEnvelope: The bytes are no MQTT, or a packet is too large; the connection can't be used any more.
        """
        large = self._large
        if large is not None:
            if large.filled < len(large.memory):
                return
            self._large = None
            yield self._finish(large)
        while self._start < self._end and (packet := self._cut()) is not None:
            yield packet
        self._make_room()

    def _cut(self) -> Received | OtherPacket | None:
        """Cut the next packet out of the buffer if it is complete; start a large one if that is next."""
        view = self._buffer[self._start : self._end]
        try:
            remaining, at = decode_variable_integer(view, 1)
        except IndexError:
            return None
        end = at + remaining
        if end > self._max_packet_size:
            raise BadEnvelope(f"a packet of {end} bytes; Maximum Packet Size is {self._max_packet_size}")
        if end <= len(view):
            self._start += end
            return self._decode(view[0], view[at:end])
        if end > len(self._buffer):
            self._large = self._begin(view[0], view[at:], remaining)
            self._start = self._end
        return None

    def _begin(self, command: int, view: memoryview, remaining: int) -> _Large:
        received, already = None, view
        if command & 0xF0 == PUBLISH:
            try:
                received = decode_publish(command, view, version5=self._version5, payload=b"")
                already = view[received.payload_at :]
            except BadEnvelope:
                received = None  # the header goes on in the next read, or is malformed: `_finish` will know
        memory = _aligned(remaining if received is None else remaining - received.payload_at)
        memory[: len(already)] = already
        return _Large(command, memory, len(already), received)

    def _finish(self, large: _Large) -> Received | OtherPacket:
        received, memory = large.received, large.memory
        if received is None:
            if large.command & 0xF0 != PUBLISH:
                return OtherPacket(large.command, bytes(memory))
            received = decode_publish(large.command, memory, version5=self._version5, payload=b"")
            payload = memory[received.payload_at :]
            memory = memoryview(bytes(payload)) if received.payload_at > 2 * PACKET_HEAD_BYTES else payload
        return received._replace(message=replace(received.message, payload=memory.toreadonly()))

    def _decode(self, command: int, body: memoryview) -> Received | OtherPacket:
        if command & 0xF0 != PUBLISH:
            return OtherPacket(command, bytes(body))
        return decode_publish(command, body, version5=self._version5)

    def _make_room(self) -> None:
        rest = self._end - self._start
        if self._start:
            self._buffer[:rest] = self._buffer[self._start : self._end]
        self._start, self._end = 0, rest


def _aligned(size: int) -> memoryview:
    """Return memory that starts at a multiple of 64 bytes; NumPy's, because it isn't cleared first."""
    raw = np.empty(size + _ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % _ALIGNMENT
    view: memoryview = raw[start : start + size].data
    return view
