"""Frames of a browser's WebSocket: all are masked, which RFC 6455 demands and aiohttp's reader does not look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["MaskedReader"]

_MASKED = 0x80
_LONGER = {126: 2, 127: 8}
"""Bytes that hold a frame's size, where its first 7 bits say so."""
_MASK_BYTES = 4
_RESERVED = b"\xff"
"""First byte of a frame that each reader refuses: it has the reserved bits."""


class MaskedReader:
    """A reader before another, which gets an unmasked frame as one that it refuses.

    Args:
        reader: The other one, of aiohttp.
    """

    def __init__(self, reader: Any) -> None:
        self._feed: Callable[[bytes], tuple[bool, bytes]] = reader.feed_data
        self._head = b""  # of a frame, of which not all has come
        self._left = 0  # bytes of the current frame that have not come
        self.feed_eof = reader.feed_eof

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Take bytes; returns whether the connection has to end, and what is left."""
        if self._head:
            data, self._head = self._head + data, b""
        at = self._left
        while at + 2 <= len(data):
            if not data[at + 1] & _MASKED:
                return self._feed(data[:at] + _RESERVED + data[at + 1 :])
            size, longer = data[at + 1] & 0x7F, _LONGER.get(data[at + 1] & 0x7F, 0)
            if at + 2 + longer > len(data):
                break
            at += 2 + longer + _MASK_BYTES + (int.from_bytes(data[at + 2 : at + 2 + longer]) if longer else size)
        if at < len(data):
            data, self._head = data[:at], data[at:]
        self._left = at - len(data)
        return self._feed(data)
