"""The thread that wakes a client when something is due."""

from __future__ import annotations

import threading
from collections.abc import Callable


class Timer:
    """Works whenever something is due.

    Args:
        lock: Of the owner, over all that `due` reads.
        due: Returns when there is work next, infinite for never; called with the lock held.
        work: Does it; called without the lock.
        clock: In seconds.
        failed: Receives an exception that `due`, `work` or `clock` raised, which ends the thread; called without the
            lock.
    """

    def __init__(
        self,
        lock: threading.Lock,
        due: Callable[[], float],
        work: Callable[[], None],
        clock: Callable[[], float],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._changed = threading.Condition(lock)
        self._due = due
        self._work = work
        self._clock = clock
        self._failed = failed
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="mqinfer-client-timer", daemon=True)
        self.sleeps_until = 0.0
        """When the thread wakes by itself, infinite for never; 0 while it is awake."""

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def look(self) -> None:
        """Wake the thread if it would sleep too long; the lock is held."""
        due = self._due()
        if due < self.sleeps_until:
            self.sleeps_until = due
            self._changed.notify()

    def stop(self) -> None:
        """End the thread; the lock is held."""
        self._stopped = True
        self._changed.notify()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, if it was ever started."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout)

    def _run(self) -> None:
        try:
            while self._sleep():
                self._work()
        except BaseException as error:  # noqa: BLE001 - the root of the thread; the client reports it
            self._failed(error)

    def _sleep(self) -> bool:
        """Wait until something may be due; return False once the timer is stopped."""
        with self._changed:
            now = self._clock()
            due = self._due()
            if not self._stopped and due > now:
                self.sleeps_until = due
                self._changed.wait(min(due - now, threading.TIMEOUT_MAX))
                self.sleeps_until = 0.0
            return not self._stopped
