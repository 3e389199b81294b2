"""The threads of a worker, all alike: each decodes a request, or runs a batch when no other does.

So a lone request passes through one thread from receipt to reply, and under load one thread runs the model while the
others decode and encode. Order of preference: a ready batch before the next decoding, so the model never waits for work
that is there.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from typing import Generic, TypeVar

from mqinfer.cloud_worker.batcher import Batcher

__all__ = ["Crew"]

log = logging.getLogger("mqinfer.cloud_worker")
M = TypeVar("M")
T = TypeVar("T")
Finish = Callable[[], None]


class Crew(Generic[M, T]):
    """Moves requests from an intake through a batcher. Thread-safe."""

    def __init__(
        self,
        batcher: Batcher[T],
        decode: Callable[[M], None],
        run: Callable[[Sequence[T]], Finish],
        threads: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `start` starts the threads.

        Args:
            batcher: Groups what is decoded; used under the crew's lock.
            decode: Turns a message into work for `add`, or answers it; must not raise.
            run: Runs a batch; one call at a time. What it returns is called after the next batch may start.
            threads: How many; 2 or more let decoding go on while the model runs.
            clock: In seconds.
        """
        self._batcher = batcher
        self._decode = decode
        self._run = run
        self._clock = clock
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._idle = threading.Condition(lock)
        self._intake: deque[M] = deque()
        self._hands = 0  # taken from the intake or the batcher and not finished
        self._running = False
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"mqinfer-worker-{number}", daemon=True)
            for number in range(threads)
        ]

    @property
    def depth(self) -> int:
        """Requests in hand: waiting to be decoded, being decoded, waiting in the batcher, running, being answered."""
        return len(self._intake) + len(self._batcher) + self._hands

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def receive(self, message: M) -> None:
        """Hand over a message; the caller has checked `depth` against its bound."""
        with self._changed:
            self._intake.append(message)
            self._changed.notify()

    def add(self, item: T, key: Hashable, rows: int) -> None:
        """Hand a decoded request to the batcher; to be called from within `decode`.

        Nobody is woken: the calling thread looks for a ready batch next, and so takes it over without a switch.
        """
        with self._changed:
            self._batcher.add(item, key, rows, self._clock())

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is in hand.

        Args:
            timeout: In seconds.

        Returns:
            Whether that was reached in time.
        """
        with self._idle:
            return self._idle.wait_for(lambda: self.depth == 0, timeout)

    def stop(self) -> tuple[list[M], list[T]]:
        """Let every thread finish its job, join them, and give back what nobody began: undecoded and decoded."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        messages = list(self._intake)
        self._intake.clear()
        return messages, self._batcher.clear()

    def _work(self) -> None:
        while True:
            job = self._next_job()
            if job is None:
                return
            try:
                job()
            except Exception:  # a defect; the other requests go on
                log.exception("a worker thread failed on one job and goes on")

    def _next_job(self) -> Callable[[], None] | None:
        with self._changed:
            while not self._closing:
                now = self._clock()
                wait = None if self._running else self._batcher.wait(now)
                if wait is not None and wait <= 0:
                    batch = self._batcher.take(now)
                    self._running = True
                    self._hands += len(batch)
                    return lambda: self._run_batch(batch)
                if self._intake:
                    message = self._intake.popleft()
                    self._hands += 1
                    return lambda: self._decode_one(message)
                self._changed.wait(wait)
            return None

    def _decode_one(self, message: M) -> None:
        try:
            self._decode(message)
        finally:
            self._done(1)

    def _run_batch(self, batch: Sequence[T]) -> None:
        try:
            try:
                finish = self._run(batch)
            finally:
                with self._changed:
                    self._running = False
                    if len(self._batcher):
                        self._changed.notify()
            finish()
        finally:
            self._done(len(batch))

    def _done(self, count: int) -> None:
        with self._changed:
            self._hands -= count
            if self.depth == 0:
                self._idle.notify_all()
