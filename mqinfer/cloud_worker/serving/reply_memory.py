"""The ids that a worker has seen, so that a request sent twice runs once: pure, bounded by bytes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from enum import Enum

from mqinfer.broker.link import Message
from mqinfer.broker.packets import payload_size

__all__ = ["ReplyMemory", "Seen"]

_ID_COST = 256
"""Bytes charged for an entry beside its reply's payload: the key, the message object, the table's slot."""


class Seen(Enum):
    """What the memory knows of an id that has no stored reply."""

    NEW = "new"
    RUNNING = "running"


class ReplyMemory:
    """Remembers the newest replies. Not thread-safe: its owner holds a lock."""

    def __init__(self, max_bytes: int = 64 << 20) -> None:
        """Set the bound.

        Args:
            max_bytes: Of all stored replies together; the oldest go first. A larger reply isn't stored at all.
        """
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[Hashable, Message | None] = OrderedDict()

    def begin(self, key: Hashable) -> Message | Seen:
        """Note a request, or say what is known of it: its stored reply, or that it is running."""
        if key not in self._entries:
            self._entries[key] = None
            return Seen.NEW
        return self._entries[key] or Seen.RUNNING

    def finish(self, key: Hashable, reply: Message) -> None:
        """Keep the reply of a request that ran."""
        self.forget(key)
        cost = payload_size(reply) + _ID_COST
        if cost > self._max_bytes:
            return
        self._entries[key] = reply
        self._bytes += cost
        self._shrink()

    def forget(self, key: Hashable) -> None:
        """Let a request run again: its outcome was one that a retry may better."""
        reply = self._entries.pop(key, None)
        if reply:
            self._bytes -= payload_size(reply) + _ID_COST

    def _shrink(self) -> None:
        while self._bytes > self._max_bytes:
            oldest = next(key for key, reply in self._entries.items() if reply)  # running ones are bounded elsewhere
            self.forget(oldest)
