"""Handlers of links that keep what they receive, so that a test can wait for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from mqinfer.broker.link import Message

__all__ = ["PATIENCE", "Heard", "Inbox", "Told"]

PATIENCE = 60.0
T = TypeVar("T")


class Heard(Generic[T]):
    """A handler that keeps what it gets, such as the codes of PUBACKs, and when that was."""

    def __init__(self) -> None:
        self.items: list[T] = []
        self.times: list[float] = []
        self._changed = threading.Condition()

    def __call__(self, item: T) -> None:
        """Keep it."""
        with self._changed:
            self.items.append(item)
            self.times.append(time.monotonic())
            self._changed.notify_all()

    def wait_until(self, is_enough: Callable[[list[T]], bool], patience: float = PATIENCE) -> list[T]:
        """Return what there is, once that is enough."""
        with self._changed:
            assert self._changed.wait_for(lambda: is_enough(self.items), patience), self.items
            return list(self.items)

    def wait_for(self, count: int) -> list[T]:
        """Return what there is, once that is so many."""
        return self.wait_until(lambda items: len(items) >= count)


class Inbox(Heard[Message]):
    """A handler of messages."""

    def payloads(self, count: int) -> list[bytes]:
        """Return the payloads, once there are so many."""
        return [bytes(message.payload) for message in self.wait_for(count)]


class Told(Heard[bool]):
    """An `on_connection`."""

    def wait_for_states(self, *states: bool) -> None:
        """Wait until these are the states that were told."""
        assert self.wait_until(lambda items: len(items) >= len(states), 90.0) == list(states)
