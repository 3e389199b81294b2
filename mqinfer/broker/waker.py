"""Ends another thread's wait for file descriptors: from any thread, or by a signal."""

from __future__ import annotations

import signal
import socket
import threading
from contextlib import suppress
from typing import Self


class Waker:
    """A pair of sockets: any thread may call `wake`; the other methods are for the thread that waits.

    While armed, the first `wake` writes a byte and disarms, so a thread that is awake, or will be soon, costs the
    others no system call. The thread that waits arms before it looks at its work for the last time: work that comes
    after that look finds the waker armed and ends the wait.

    Attributes:
        armed: Whether the next `wake` ends the wait. The thread that waits sets it: a plain attribute, since a call for
            each turn of a loop would cost more.
    """

    def __init__(self) -> None:
        self._receiver: socket.socket | None = None
        self._sender: socket.socket | None = None
        self.armed = False
        self._signals = False

    def open(self, *, signals: bool = False) -> Self:
        """Make the sockets, and arm.

        Args:
            signals: Whether signals end the wait too, which works on the main thread only. A handler alone would not:
                Python runs it between two of its instructions, so for a signal that comes just before the thread
                begins to wait it would run only after the wait.
        """
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self.armed = True
        self._signals = signals and threading.current_thread() is threading.main_thread()
        if self._signals:
            signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)
        return self

    def close(self) -> None:
        """Close the sockets."""
        if self._signals:
            self._signals = False
            signal.set_wakeup_fd(-1)
        for end in (self._receiver, self._sender):
            if end is not None:
                end.close()

    def fileno(self) -> int:
        """Return what to wait for: readable after `wake`; -1 before `open`."""
        return -1 if self._receiver is None else self._receiver.fileno()

    def wake(self) -> None:
        """End the wait, or the next one, if armed."""
        if self.armed and self._sender is not None:
            self.armed = False
            with suppress(OSError):  # full: the thread is woken anyway; closed: no thread waits any more
                self._sender.send(b"\0")

    def drain(self) -> None:
        """Forget the wake-ups so far, of which there is one and those of signals, and arm again."""
        if self._receiver is not None:
            with suppress(BlockingIOError):
                self._receiver.recv(64)
        self.armed = True
