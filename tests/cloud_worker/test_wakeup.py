from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import wait

import pytest

from mqinfer.cloud_worker.supervision.wakeup import WakeUp


@pytest.fixture
def noted() -> Iterator[list[int]]:
    """Note the signals USR1 in place of ending by them."""
    found: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGUSR1, before)


def test_a_thread_ends_a_wait() -> None:
    """Woken before it waits or while it waits, once or often, it wakes; drained, it sleeps again."""
    with closing(WakeUp()) as wakeup:
        assert not wait([wakeup.fileno()], 0)
        for _ in range(100_000):  # more than the sockets hold
            wakeup.wake()
        assert wait([wakeup.fileno()], 0)
        wakeup.drain()
        assert not wait([wakeup.fileno()], 0)
        thread = threading.Timer(0.01, wakeup.wake)
        thread.start()
        assert wait([wakeup.fileno()], 30)
        thread.join()
    wakeup.wake()


def test_a_signal_ends_a_wait_that_has_not_begun(noted: list[int]) -> None:
    """The handler has run already, as it does for a signal just before the wait: the wait ends all the same."""
    with closing(WakeUp()) as wakeup:
        os.kill(os.getpid(), signal.SIGUSR1)
        assert noted == [signal.SIGUSR1]
        assert wait([wakeup.fileno()], 30)
    assert signal.set_wakeup_fd(-1) == -1


def test_another_thread_leaves_signals_alone() -> None:
    """Only the main thread may ask Python for its signals."""
    made: list[WakeUp] = []
    thread = threading.Thread(target=lambda: made.append(WakeUp()))
    thread.start()
    thread.join()
    with closing(made[0]) as wakeup:
        assert signal.set_wakeup_fd(-1) == -1
        wakeup.wake()
        assert wait([wakeup.fileno()], 0)
