"""Waiting for what another thread changes: in a thread, in a task of an asyncio loop, or by a callback."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

from mqinfer.client.callbacks import check_may_wait

__all__ = ["Notifier"]


class Notifier:
    """Wakes who waits for a change. Thread-safe.

    Attributes:
        changed: The lock of what changes; threads wait at it.
    """

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self._watchers: tuple[Callable[[], None], ...] = ()

    def notify(self) -> None:
        """Wake all who wait, and call the watchers; the lock is not held."""
        with self.changed:
            self.changed.notify_all()
        for watcher in self._watchers:
            watcher()

    def watch(self, callback: Callable[[], None]) -> None:
        """Call something after each change, on the thread that changes it; it must not raise."""
        with self.changed:
            self._watchers = (*self._watchers, callback)

    def unwatch(self, callback: Callable[[], None]) -> None:
        """Stop calling it."""
        with self.changed:
            self._watchers = tuple(each for each in self._watchers if each is not callback)

    def wait(self, is_true: Callable[[], object], timeout: float | None, what: str) -> bool:
        """Wait in a thread until something is true; return whether it is.

        Args:
            is_true: Reads what changes; called with the lock held.
            timeout: In seconds; None to wait without end.
            what: The call that waits, for the message.

        Raises:
            RuntimeError: It would wait, and this is a callback.
        """
        with self.changed:
            if is_true():
                return True
            check_may_wait(what)
            return bool(self.changed.wait_for(is_true, timeout))

    async def until(self, is_true: Callable[[], object], timeout: float | None = None) -> bool:  # noqa: ASYNC109
        """Wait in an asyncio loop until something is true; return whether it is.

        Args:
            is_true: Reads what changes; called in the loop.
            timeout: In seconds; None to wait without end.
        """
        loop, changed = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(changed.set)

        self.watch(wake)
        try:
            async with asyncio.timeout(timeout):
                while not is_true():
                    await changed.wait()
                    changed.clear()
        except TimeoutError:
            return bool(is_true())
        finally:
            self.unwatch(wake)
        return True
