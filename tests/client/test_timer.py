"""A timer's real thread, with a clock that only the test moves."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator

import pytest

from mqinfer.client.timer import Timer

PATIENCE = 60.0


class Owner:
    """Has something due, or nothing, and does it when its timer says so.

    Attributes:
        now: What its clock shows.
        due: When there is work next.
        looked: Released whenever somebody looked at `due`.
        began: Released with each work.
        gate: Works wait while this is not set; it is set at first.
        works: What was due at each work.
        after: What is due after a work.
        error: What its work raises, or None.
        failed: What the timer reported.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = 0.0
        self.due = math.inf
        self.looked = threading.Semaphore(0)
        self.began = threading.Semaphore(0)
        self.gate = threading.Event()
        self.gate.set()
        self.works: list[float] = []
        self.after = math.inf
        self.error: BaseException | None = None
        self.failed: list[BaseException] = []
        self.timer = Timer(self.lock, self._due, self._work, lambda: self.now, self.failed.append)

    def _due(self) -> float:
        assert self.lock.locked()
        self.looked.release()
        return self.due

    def _work(self) -> None:
        assert self.lock.acquire(timeout=PATIENCE), "work came with the lock held"
        self.works.append(self.due)
        self.due = self.after
        self.lock.release()
        self.began.release()
        if self.error:
            raise self.error
        assert self.gate.wait(PATIENCE)

    def sleep(self, due: float) -> None:
        """Start the timer with this to do, and wait until it sleeps: it looks with the lock, and sleeps without."""
        self.due = due
        self.timer.start()
        assert self.looked.acquire(timeout=PATIENCE)
        with self.lock:
            assert self.timer.sleeps_until == due

    def find(self, due: float) -> None:
        """Have this to do next, and say so."""
        with self.lock:
            self.due = due
            self.timer.look()

    def end(self) -> None:
        """Stop the timer and wait for its end."""
        with self.lock:
            self.timer.stop()
        self.timer.join()


@pytest.fixture
def owner() -> Iterator[Owner]:
    """An owner whose timer ends with the test."""
    owner = Owner()
    yield owner
    owner.gate.set()
    owner.end()


@pytest.mark.parametrize("due", [-1.0, 0.0, 0.01])
def test_it_works_when_something_is_due(owner: Owner, due: float) -> None:
    """What is due already, or soon, needs nobody to look."""
    owner.due = due
    owner.timer.start()
    assert owner.began.acquire(timeout=PATIENCE)
    owner.end()
    assert owner.works == [due]


@pytest.mark.parametrize("due", [math.inf, 1e13, 3600.0])
def test_it_works_again_when_a_look_finds_something_earlier(owner: Owner, due: float) -> None:
    """Asleep for long or for good, it is woken; and what comes after that is found as well."""
    owner.sleep(due)
    for now in (10.0, 20.0):
        owner.now = now
        owner.find(now)
        assert owner.began.acquire(timeout=PATIENCE)
    owner.end()
    assert owner.works == [10.0, 20.0]


@pytest.mark.parametrize(("due", "found"), [(100.0, 200.0), (math.inf, math.inf)])
def test_it_sleeps_on_when_a_look_finds_nothing_earlier(owner: Owner, due: float, found: float) -> None:
    """Something later than what it waits for does not wake it, nor does nothing at all."""
    owner.sleep(due)
    owner.find(found)
    with owner.lock:
        assert owner.timer.sleeps_until == due
    owner.end()
    assert owner.works == []


def test_what_becomes_due_while_it_works_is_next(owner: Owner) -> None:
    """Nobody needs to wake a timer that is awake: it looks before it sleeps."""
    owner.gate.clear()
    owner.sleep(math.inf)
    owner.find(0.0)
    assert owner.began.acquire(timeout=PATIENCE)
    owner.find(-1.0)
    owner.gate.set()
    assert owner.began.acquire(timeout=PATIENCE)
    owner.end()
    assert owner.works == [0.0, -1.0]


@pytest.mark.parametrize("due", [math.inf, 1e13, 3600.0])
def test_stop_ends_its_sleep(owner: Owner, due: float) -> None:
    """Whatever it sleeps for, it ends at once and does nothing more."""
    owner.sleep(due)
    owner.end()
    assert not owner.timer.running
    assert owner.works == []


@pytest.mark.parametrize("after", [-1.0, math.inf])
def test_stopped_while_it_works_it_ends_with_this(owner: Owner, after: float) -> None:
    """It begins nothing else, though there is more to do, and does not go to sleep, where there is not."""
    owner.gate.clear()
    owner.due, owner.after = -1.0, after
    owner.timer.start()
    assert owner.began.acquire(timeout=PATIENCE)
    with owner.lock:
        owner.timer.stop()
    owner.gate.set()
    owner.timer.join(PATIENCE)
    assert not owner.timer.running
    assert owner.works == [-1.0]


@pytest.mark.parametrize("error", [ValueError("a defect"), SystemExit("of the caller's code")])
def test_an_exception_ends_it(owner: Owner, error: BaseException) -> None:
    """Its owner receives what was raised, and can end what it would have woken for; nothing hangs."""
    owner.error = error
    owner.due = -1.0
    owner.timer.start()
    owner.timer.join(PATIENCE)
    assert not owner.timer.running
    assert owner.failed == [owner.error]


def test_join_without_start_returns(owner: Owner) -> None:
    """An owner that never came so far as to start its timer may close all the same."""
    owner.timer.join()
    assert not owner.timer.running
