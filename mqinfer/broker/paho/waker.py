"""A way to end another thread's `select`."""

from __future__ import annotations

import selectors
import socket

__all__ = ["Waker"]


class Waker:
    """A pair of sockets: `wake` may be called from any thread, all else from the thread that sleeps.

    `set_asleep` is called before the sleeper looks at its work for the last time, so that work which comes after that
    look finds `asleep` set and wakes it; work for a thread that is awake costs no system call.
    """

    def __init__(self) -> None:
        self._receiver: socket.socket | None = None
        self._sender: socket.socket | None = None
        self._asleep = False

    def open(self) -> None:
        """Make the sockets."""
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)

    def close(self) -> None:
        """Give the sockets back."""
        for end in (self._receiver, self._sender):
            if end is not None:
                end.close()

    def fileno(self) -> int:
        """For `select`: readable when somebody called `wake`."""
        return -1 if self._receiver is None else self._receiver.fileno()

    @property
    def is_asleep(self) -> bool:
        """Whether the sleeper sleeps, or is about to."""
        return self._asleep

    def set_asleep(self) -> None:
        """Ask to be woken from here on."""
        self._asleep = True

    def wake(self) -> None:
        """End the sleep, if it is one."""
        if self._asleep and self._sender is not None:
            self._asleep = False
            try:
                self._sender.send(b"\0")
            except OSError:  # full: it is awake soon anyway; closed: nobody is left to wake
                return

    def set_awake(self, *, drain: bool) -> None:
        """Stop asking to be woken; `drain` forgets all wake-ups so far, where `select` told of one."""
        self._asleep = False
        if drain and self._receiver is not None:
            self._receiver.recv(64)

    def sleep(self, timeout: float) -> None:
        """Sleep until woken, at most `timeout` seconds."""
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            self.set_asleep()
            self.set_awake(drain=bool(selector.select(timeout)))
