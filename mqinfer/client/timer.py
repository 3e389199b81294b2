"""The thread that sees to what is due."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable

__all__ = ["Timer"]


class Timer:
    """Works whenever something is due.

    Args:
        lock: Of the owner, over all that `due` looks at.
        due: Tells when there is work next, or None; called with the lock held.
        work: Does it; called without the lock.
        clock: In seconds.
    """

    def __init__(
        self,
        lock: threading.Lock,
        due: Callable[[], float | None],
        work: Callable[[], None],
        clock: Callable[[], float],
    ) -> None:
        self._changed = threading.Condition(lock)
        self._due = due
        self._work = work
        self._clock = clock
        self._sleeps_until = 0.0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="mqinfer-client-timer", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def look(self) -> None:
        """Wake the thread if it would sleep too long; the lock is held."""
        due = self._due()
        if due is not None and due < self._sleeps_until:
            self._sleeps_until = due
            self._changed.notify()

    def stop(self) -> None:
        """Let the thread end; the lock is held."""
        self._stopped = True
        self._changed.notify()

    def join(self) -> None:
        """Wait for its end, if it was ever started."""
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._sleep()
                if self._stopped:
                    return
            self._work()

    def _sleep(self) -> None:
        now = self._clock()
        due = self._due()
        if not self._stopped and (due is None or due > now):
            self._sleeps_until = math.inf if due is None else due
            self._changed.wait(None if due is None else due - now)
            self._sleeps_until = 0.0
