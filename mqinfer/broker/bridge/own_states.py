"""The cards and states that one side of a bridge has of its own, not by a bridge."""

from __future__ import annotations

import threading

from msgspec.structs import replace

from mqinfer.broker.link import Message
from mqinfer.protocol.errors import LimitExceeded

_MOST, _MOST_BYTES = 2000, 64 << 20


class OwnStates:
    """At most 2000 cards and states of 64 MiB, and which of them the other side lacks. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._there: dict[str, Message] = {}
        self._lacking: dict[str, Message] = {}
        self._bytes = 0

    def __contains__(self, topic: str) -> bool:
        return topic in self._there

    def topics(self) -> list[str]:
        """Return the topics of what is there."""
        with self._lock:
            return list(self._there)

    def note(self, message: Message, *, is_there: bool, travels: bool) -> None:
        """Take up a card or a state.

        Args:
            message: The message.
            is_there: Whether its name belongs to this side from now on.
            travels: Whether the other side gets it; else it is only known to be there.

        Raises:
            LimitExceeded: There is no room for one more.
        """
        if not travels:
            message = replace(message, payload=b"")
        with self._lock:
            before = self._there.pop(message.topic, None)
            self._bytes -= len(before.payload) if before else 0
            is_full = len(self._there) >= _MOST or self._bytes + len(message.payload) > _MOST_BYTES
            if is_full or (len(self._lacking) >= _MOST and message.topic not in self._lacking):
                raise LimitExceeded(f"{message.topic}: a side's cards and states are {_MOST} at most, of 64 MiB")
            if is_there:
                self._there[message.topic] = message
                self._bytes += len(message.payload)
            if travels:
                self._lacking[message.topic] = message

    def take(self) -> list[Message]:
        """Return what the other side lacks, which it gets now."""
        with self._lock:
            lacking, self._lacking = self._lacking, {}
        return list(lacking.values())

    def renew(self) -> None:
        """Have the other side get everything again."""
        with self._lock:
            self._lacking = {topic: each for topic, each in self._there.items() if each.payload} | self._lacking

    def clear(self) -> None:
        """Forget everything: the connection is lost, and the next one brings it again."""
        with self._lock:
            self._there.clear()
            self._lacking.clear()
            self._bytes = 0
