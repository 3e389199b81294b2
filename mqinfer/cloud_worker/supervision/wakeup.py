"""Ends a wait for file descriptors: by another thread, or by a signal."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading

__all__ = ["WakeUp"]


class WakeUp:
    """A pair of sockets: `wake` may be called from any thread, all else from the one that waits.

    Made on the main thread it is woken by every signal too. A handler alone would not do: Python runs it between two
    of its instructions, so one that comes just before the thread begins to wait would be run only after the wait.
    """

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._signals = threading.current_thread() is threading.main_thread()
        if self._signals:
            signal.set_wakeup_fd(self._sender.fileno(), warn_on_full_buffer=False)

    def fileno(self) -> int:
        """For `multiprocessing.connection.wait`: readable when somebody called `wake`."""
        return self._receiver.fileno()

    def wake(self) -> None:
        """End the wait, or the next one."""
        with contextlib.suppress(OSError):  # full: it is woken anyway; closed: nobody waits any more
            self._sender.send(b"\0")

    def drain(self) -> None:
        """Forget all wake-ups so far."""
        with contextlib.suppress(BlockingIOError):
            while self._receiver.recv(64):
                pass

    def close(self) -> None:
        """Give the sockets back."""
        if self._signals:
            signal.set_wakeup_fd(-1)
        self._receiver.close()
        self._sender.close()
