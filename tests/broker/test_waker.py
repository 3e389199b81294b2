"""Waits that end by a thread or by a signal."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import closing
from multiprocessing.connection import wait

import pytest

from mqinfer.broker.waker import Waker


@pytest.fixture
def noted() -> Iterator[list[int]]:
    """Note the signals USR1 in place of ending by them."""
    found: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: found.append(number))
    yield found
    signal.signal(signal.SIGUSR1, before)


def test_a_thread_ends_a_wait() -> None:
    """Woken before it waits or while it waits, once or often, it wakes; drained, it sleeps again."""
    with closing(Waker().open(signals=True)) as waker:
        assert not wait([waker.fileno()], 0)
        for _ in range(3):
            waker.wake()
        assert wait([waker.fileno()], 0)
        waker.drain()
        assert not wait([waker.fileno()], 0)
        thread = threading.Timer(0.01, waker.wake)
        thread.start()
        assert wait([waker.fileno()], 30)
        thread.join()
    waker.wake()


def test_who_is_awake_costs_no_system_call() -> None:
    """Disarmed, `wake` writes nothing; armed, the first one writes and disarms."""
    with closing(Waker().open()) as waker:
        waker.armed = False
        waker.wake()
        assert not wait([waker.fileno()], 0)
        waker.armed = True
        waker.wake()
        assert not waker.armed
        assert wait([waker.fileno()], 0)


def test_a_signal_ends_a_wait_that_has_not_begun(noted: list[int]) -> None:
    """The handler has run already, as it does for a signal just before the wait: the wait ends all the same."""
    with closing(Waker().open(signals=True)) as waker:
        signal.raise_signal(signal.SIGUSR1)  # to this thread: another one might get a process's signal, and later
        assert noted == [signal.SIGUSR1]
        assert wait([waker.fileno()], 30)
    assert signal.set_wakeup_fd(-1) == -1


def test_another_thread_leaves_signals_alone() -> None:
    """Only the main thread may ask Python for its signals."""
    made: list[Waker] = []
    thread = threading.Thread(target=lambda: made.append(Waker().open(signals=True)))
    thread.start()
    thread.join()
    with closing(made[0]) as waker:
        assert signal.set_wakeup_fd(-1) == -1
        waker.wake()
        assert wait([waker.fileno()], 0)
