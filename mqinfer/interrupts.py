"""How a command ends by signals: in order at the first one, and at once at a second Ctrl-C."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from mqinfer.logs import log_line

if TYPE_CHECKING:
    from multiprocessing.context import SpawnProcess

INTERRUPTED = 130
"""Exit code of what a signal ended: 128 + SIGINT, as shells do."""
_STOPPING = (signal.SIGINT, signal.SIGTERM)
_SHOW_CURSOR = "\r\n\x1b[?25h"
"""Ends the line of a terminal on which `^C` or a progress display stands, which has hidden the cursor."""


def on_stop(request: Callable[[], object], unfinished: Callable[[], str]) -> None:
    """Handle SIGINT and SIGTERM from now on: each has the command end, and a second SIGINT ends it where it stands.

    That prints one line, kills the processes that `multiprocessing` started, and runs nothing else: files keep what was
    written to them, as after a SIGKILL. A second SIGTERM is none: `timeout` and service managers may send two.

    Args:
        request: Has the command end in order. Both run between any two steps of the main thread, whatever it does, so
            that neither may take a lock.
        unfinished: Returns what was not finished.
    """
    take = _signals_taken(request, unfinished)
    for number in _STOPPING:
        signal.signal(number, lambda number, _: take(number))


@contextmanager
def until_signal(unfinished: Callable[[], str]) -> Iterator[threading.Event]:
    """Yield an event that SIGINT and SIGTERM set, as `on_stop` describes, until the end of the block.

    A thread takes the signals: a handler would wait for the main thread, which may be in a library that opens a camera.
    """
    stop = threading.Event()
    take = _signals_taken(stop.set, unfinished)
    receiver, sender = socket.socketpair()
    sender.setblocking(False)

    def listen() -> None:
        while numbers := receiver.recv(1):
            if numbers[0] in _STOPPING:
                take(numbers[0])

    thread = threading.Thread(target=listen, name="mqinfer-signals", daemon=True)
    handlers = {number: signal.signal(number, lambda *_: None) for number in _STOPPING}
    before = signal.set_wakeup_fd(sender.fileno(), warn_on_full_buffer=False)
    thread.start()
    try:
        yield stop
    finally:
        signal.set_wakeup_fd(before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        sender.close()
        thread.join()
        receiver.close()


def start_without_interrupts(process: SpawnProcess) -> None:
    """Start a process that SIGINT never reaches: Ctrl-C goes to the whole group, and its parent decides."""
    from multiprocessing.resource_tracker import ensure_running  # few commands have any

    ensure_running()  # where `start` did, the signal would reach the process
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _signals_taken(request: Callable[[], object], unfinished: Callable[[], str]) -> Callable[[int], None]:
    """Return what takes the signals, one after another."""
    interrupts = 0

    def take(number: int) -> None:
        nonlocal interrupts
        interrupts += number == signal.SIGINT
        if interrupts < 2 or number != signal.SIGINT:
            with suppress(RuntimeError):  # the event loop that it asks has ended
                request()
            return
        try:
            line = log_line(f"ended at once; {unfinished()}")
            os.write(2, ((_SHOW_CURSOR if os.isatty(2) else "") + line).encode(errors="backslashreplace"))
            _kill_children()
        finally:
            os._exit(INTERRUPTED)

    return take


def _kill_children() -> None:
    from multiprocessing import active_children  # few commands have any

    for child in active_children():
        child.kill()
