"""The threads of a worker, all alike: each decodes a request, or runs a batch when the model is free.

So a lone request passes through one thread from receipt to reply, and under load some threads run the model while the
others decode and encode. Order of preference: a ready batch before the next decoding, so the model never waits for work
that is there. Clients take turns, from receipt on; the requests of each client go to the batcher in the order in which
they came, whichever thread is quicker.
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from mqinfer.cloud_worker.batching.batcher import Batch, Batcher, Ready
from mqinfer.cloud_worker.batching.fair_queue import Turns

__all__ = ["Crew", "Ran"]

log = logging.getLogger("mqinfer.cloud_worker")
M = TypeVar("M")
T = TypeVar("T")


class Ran(NamedTuple):
    """What a run leaves.

    Attributes:
        rows: That the model was given.
        finish: Called once the next batch may start.
    """

    rows: int
    finish: Callable[[], None]


class _Received(NamedTuple, Generic[M]):
    """A message in line; the first two fields sort, and no two numbers are equal."""

    turn: float
    number: int
    client: str
    message: M


@dataclass(slots=True, eq=False)
class _Decoding(Generic[T]):
    """A message in a thread's hands, and what became of it."""

    turn: float
    done: bool = False
    ready: Ready[T] | None = None


class Crew(Generic[M, T]):
    """Moves requests from an intake through a batcher. Thread-safe."""

    def __init__(  # noqa: PLR0913 - two hooks, and what bounds the threads
        self,
        batcher: Batcher[T],
        decode: Callable[[M], Ready[T] | None],
        run: Callable[[Sequence[T]], Ran],
        threads: int,
        *,
        concurrency: int = 1,
        in_order: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Prepare; `start` starts the threads.

        Args:
            batcher: Groups what is decoded; used under the crew's lock.
            decode: Makes a message ready, or answers it and gives None; must not raise.
            run: Runs a batch.
            threads: How many; at least one more than `concurrency` are started, so that decoding goes on while the
                model runs.
            concurrency: Calls of `run` at a time.
            in_order: Whether `finish` is called in the order in which the batches began.
            clock: In seconds.
        """
        self._batcher = batcher
        self._decode = decode
        self._run = run
        self._clock = clock
        self._concurrency = concurrency
        self._in_order = in_order
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._idle = threading.Condition(lock)
        self._finished = threading.Condition(lock)
        self._turns = Turns()
        self._intake: list[_Received[M]] = []
        self._number = 0
        self._decoding: dict[str, deque[_Decoding[T]]] = {}
        self._hands = 0  # taken from the intake or the batcher and not finished
        self._running = 0  # batches
        self._begun = self._over = 0  # batches whose run began, and those finished of them, where order matters
        self._closing = False
        self._threads = [
            threading.Thread(target=self._work, name=f"mqinfer-worker-{number}", daemon=True)
            for number in range(max(threads, concurrency + 1))
        ]

    @property
    def depth(self) -> int:
        """Requests in hand: waiting to be decoded, being decoded, waiting in the batcher, running, being answered."""
        return len(self._intake) + len(self._batcher) + self._hands

    @property
    def waiting(self) -> int:
        """Requests that no thread has in its hands."""
        return len(self._intake) + len(self._batcher)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def receive(self, message: M, client: str = "") -> None:
        """Hand over a message of a client; the caller has checked `depth` against its bound."""
        with self._changed:
            self._number += 1
            insort(self._intake, _Received(self._turns.next(client), self._number, client, message))
            self._changed.notify()

    def give_way(self, client: str) -> M | T | None:
        """Make room for a client by taking out the last waiting request of whoever has most.

        Returns:
            The message or decoded request, to be answered; None where nobody has two more than this client.
        """
        with self._changed:
            counts = self._batcher.clients() + Counter(each.client for each in self._intake)
            (most, count), *_ = counts.most_common(1) or [("", 0)]
            if count < counts[client] + 2:
                return None
            last = max((each for each in self._intake if each.client == most), default=None)
            if last is None:
                return self._batcher.give_up(most)
            self._intake.remove(last)
            return last.message

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
        messages = [each.message for each in self._intake]
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
                idle = self._concurrency - self._running
                taken = self._batcher.take(now, idle) if idle else None
                if isinstance(taken, Batch):
                    return self._begin_batch(taken, now)
                if self._intake:
                    return self._begin_decoding(self._intake.pop(0))
                self._changed.wait(taken)
            return None

    def _begin_decoding(self, received: _Received[M]) -> Callable[[], None]:
        self._hands += 1
        decoding: _Decoding[T] = _Decoding(received.turn)
        line = self._decoding.get(received.client)
        if line is None:
            self._decoding[received.client] = deque((decoding,))
        else:
            line.append(decoding)
        return lambda: self._decode_one(received, decoding)

    def _decode_one(self, received: _Received[M], decoding: _Decoding[T]) -> None:
        try:
            decoding.ready = self._decode(received.message)
        finally:
            with self._changed:
                decoding.done = True
                self._pass_on(received.client)
                self._done(1)

    def _pass_on(self, client: str) -> None:
        """Hand the batcher what is decoded, up to the first of the client's messages that is not.

        Nobody is woken: the calling thread looks for a ready batch next, and so takes it over without a switch.
        """
        line = self._decoding[client]
        while line and line[0].done:
            first = line.popleft()
            if first.ready is not None:
                self._batcher.add(first.ready, self._clock(), first.turn)
        if not line:
            del self._decoding[client]

    def _begin_batch(self, batch: Batch[T], now: float) -> Callable[[], None]:
        self._running += 1
        self._begun += 1
        self._hands += len(batch.items)
        self._turns.served(batch.turn)
        if self._running < self._concurrency and len(self._batcher):
            self._changed.notify()
        number = self._begun
        return lambda: self._run_batch(batch, number, now)

    def _run_batch(self, batch: Batch[T], number: int, began: float) -> None:
        ran: Ran | None = None
        try:
            try:
                ran = self._run(batch.items)
            finally:
                self._end_batch(batch, 0 if ran is None else ran.rows, began)
            self._await_turn(number)
            ran.finish()
        finally:
            self._await_turn(number)  # also where the run raised: nobody may overtake those before
            with self._changed:
                self._over += 1
                self._finished.notify_all()
                self._done(len(batch.items))

    def _end_batch(self, batch: Batch[T], rows: int, began: float) -> None:
        with self._changed:
            now = self._clock()
            self._running -= 1
            self._batcher.ended(batch, rows, now - began, now)
            if len(self._batcher):
                self._changed.notify()

    def _await_turn(self, number: int) -> None:
        if self._in_order:
            with self._finished:
                self._finished.wait_for(lambda: self._over >= number - 1)

    def _done(self, count: int) -> None:
        self._hands -= count
        if self.depth == 0:
            self._turns.clear()
            self._idle.notify_all()
