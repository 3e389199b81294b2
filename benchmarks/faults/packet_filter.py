"""Removes MQTT packets of some types from a stream of bytes, wherever the stream is split. Pure."""

from __future__ import annotations

PUBLISH, PUBACK = 3, 4
"""Control packet types (MQTT 5, table 2-1)."""
_MORE = 0x80
"""Set in each byte of a Remaining Length but the last (MQTT 5, section 1.5.5)."""


class PacketFilter:
    """Follows one direction of one connection from its first byte."""

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
