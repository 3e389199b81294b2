"""How a command ends by signals: in order at the first one, and at once at a second Ctrl-C."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress

from mqinfer.logs import log_line

INTERRUPTED = 130
"""Exit code of what a signal ended: 128 + SIGINT, as shells do."""
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
    interrupts = 0

    def on_signal(number: int, _frame: object) -> None:
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

    signal.signal(signal.SIGINT, on_signal)
    signal.signal(signal.SIGTERM, on_signal)


def until_signal(unfinished: Callable[[], str]) -> threading.Event:
    """Return an event that SIGINT and SIGTERM set, as `on_stop` describes."""
    stop = threading.Event()
    on_stop(stop.set, unfinished)
    return stop


def _kill_children() -> None:
    from multiprocessing import active_children  # few commands have any

    for child in active_children():
        child.kill()
