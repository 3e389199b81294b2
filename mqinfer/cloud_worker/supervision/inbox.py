"""What other threads ask of the one thread that does it: actions, each with the future that tells of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any

__all__ = ["Inbox"]


class Inbox:
    """Actions in the order of asking. Any thread may call `put`, only the owner's the rest."""

    def __init__(self) -> None:
        self._asked: SimpleQueue[tuple[Callable[[], None], Future[Any]]] = SimpleQueue()
        self._lock = threading.Lock()  # so that nothing comes in behind `close`
        self._is_closed = False

    def put(self, action: Callable[[], None], future: Future[Any]) -> bool:
        """Ask for something; False where the inbox is closed.

        Args:
            action: Called once on the owner's thread; it sees to the future's result.
            future: Gets the error where the action fails.
        """
        with self._lock:
            if not self._is_closed:
                self._asked.put((action, future))
            return not self._is_closed

    def work_off(self) -> None:
        """Do all that was asked so far."""
        while True:
            try:
                action, future = self._asked.get_nowait()
            except Empty:
                return
            try:
                action()
            except Exception as error:  # noqa: BLE001 - whoever asked gets to know; the owner goes on all the same
                future.set_exception(error)

    def close(self) -> list[Future[Any]]:
        """Take nothing more; returns the futures of what was not done, which are the owner's to end."""
        with self._lock:
            self._is_closed = True
        left = []
        while not self._asked.empty():
            left.append(self._asked.get_nowait()[1])
        return left
