"""The threads of a worker, all alike: each prepares a request, or runs a batch when the model is free.

So a lone request passes through one thread from receipt to reply, and under load some threads run the model while the
others prepare and reply. A ready batch goes before the next preparation, so the model never waits for work that is
there. Clients take turns from receipt on. What is prepared is bounded by its bytes, which may be many times those that
came: the rest waits as it came.

What each thread works on stands in memory that the worker's server reads after the process has ended.
"""

from __future__ import annotations

import ctypes
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, TypeVar

from mqinfer.cloud_worker.batching.batcher import Batch, Batcher, Ready
from mqinfer.fair_queue import FairQueue, Queued
from mqinfer.protocol.errors import MqinferError

log = logging.getLogger("mqinfer.cloud_worker")
M = TypeVar("M")
T = TypeVar("T")

_ID_BYTES = 16
"""Correlation Data of mqinfer's clients: the id of the request. Others are not named."""
_MOST = 254
"""Requests of a batch, at most, that are named."""
_UNNAMED = 255
_MOST_REPORTED = 512
"""Above that nobody is named: a state must stay small."""


class RunningRequests:
    """One slot a thread: how many requests it works on, and their ids. No lock: a slot has one writer."""

    SLOTS = 32
    SLOT_BYTES = 1 + _MOST * _ID_BYTES
    SIZE = SLOTS * SLOT_BYTES

    def __init__(self, memory: ctypes.Array[ctypes.c_ubyte] | bytearray | None = None) -> None:
        """Use a block of `SIZE` bytes, all 0 at first; private memory where none is given."""
        self._bytes = memoryview(bytearray(self.SIZE) if memory is None else memory).cast("B")

    def write(self, slot: int, ids: Sequence[bytes | None]) -> None:
        """Record what a thread begins.

        Args:
            slot: The thread's.
            ids: Correlation Data of its requests; empty where it has finished them.
        """
        at = slot * self.SLOT_BYTES
        self._bytes[at] = 0  # the ids count once their number is written
        if not ids:
            return
        joined = (ids[0] or b"") if len(ids) == 1 else b"".join([each or b"" for each in ids])
        if len(joined) == len(ids) * _ID_BYTES <= _MOST * _ID_BYTES:
            self._bytes[at + 1 : at + 1 + len(joined)] = joined
            self._bytes[at] = len(ids)
        else:
            self._bytes[at] = _UNNAMED

    @property
    def is_busy(self) -> bool:
        """Whether a thread works on anything, that it has named or not."""
        return any(self._bytes[0 : self.SIZE : self.SLOT_BYTES])

    def read(self) -> tuple[str, ...]:
        """Return the ids of all requests that are worked on; nothing where one of them can't be named."""
        found: dict[str, None] = {}
        for at in range(0, self.SIZE, self.SLOT_BYTES):
            count = self._bytes[at]
            if count == _UNNAMED:
                return ()
            ids = self._bytes[at + 1 : at + 1 + count * _ID_BYTES].hex()
            found |= dict.fromkeys(ids[start : start + 2 * _ID_BYTES] for start in range(0, len(ids), 2 * _ID_BYTES))
        return tuple(found) if len(found) <= _MOST_REPORTED else ()


class FinishedRun(NamedTuple):
    """What a run of the model leaves.

    Attributes:
        rows: Rows that the model ran.
        reply: Sends the replies; called once the next batch may start.
    """

    rows: int
    reply: Callable[[], None]


class Pipeline(Generic[M, T]):
    """Moves requests from a queue through a batcher. Thread-safe.

    Attributes:
        depth: Requests received and not finished: queued, being prepared, in the batcher, running, being replied to.
        failure: What a thread failed with, so that requests may be left without a reply: its owner ends the worker,
            and their clients send them elsewhere. None while all is well.
    """

    def __init__(  # noqa: PLR0913 - two hooks, and what bounds the threads
        self,
        batcher: Batcher[T],
        prepare: Callable[[M], Ready[T] | None],
        run: Callable[[Sequence[T]], FinishedRun],
        threads: int,
        *,
        concurrency: int = 1,
        in_order: bool = False,
        most_bytes: int = 256 << 20,
        clock: Callable[[], float] = time.monotonic,
        record: Callable[[int, Sequence[M | T]], None] = lambda *_: None,
    ) -> None:
        """Set up; `start` starts the threads.

        Args:
            batcher: Groups what is prepared; used under the pipeline's lock.
            prepare: Makes a message ready, or replies to it and returns None; must not raise.
            run: Runs a batch; neither it nor what it returns may raise.
            threads: How many; at least one more than `concurrency` are started, so that requests are prepared while
                the model runs.
            concurrency: Calls of `run` at a time.
            in_order: Whether replies are sent in the order in which requests came: they are prepared one at a time
                then, and a batch waits with its replies for those that began before it.
            most_bytes: Of what is prepared and not replied to: with more than that nothing further is prepared.
            clock: In seconds.
            record: Called with a thread's number and what it begins to work on, and with nothing after that.
        """
        self._record = record
        self._batcher = batcher
        self._prepare = prepare
        self._run = run
        self._clock = clock
        self._concurrency = concurrency
        self._in_order = in_order
        self._most_bytes = most_bytes
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._emptied = threading.Condition(self._lock)
        self._replied = threading.Condition(self._lock)
        self._queue: FairQueue[M] = FairQueue()
        self.depth = 0
        self.failure: MqinferError | None = None
        self._preparing = 0
        self._running = 0  # batches
        self._begun_bytes = 0  # of batches that run or are replied to
        self._unreplied: deque[Batch[T]] = deque()  # where order matters, in the order in which they began
        self._closing = False
        count = max(threads, concurrency + 1)
        self._began = [0.0] * count  # when each thread began its task; 0 while it has none
        self._threads = [
            threading.Thread(target=self._work, args=(number,), name=f"mqinfer-worker-{number}", daemon=True)
            for number in range(count)
        ]

    @property
    def queued(self) -> int:
        """Requests that no thread has taken up."""
        return len(self._queue) + len(self._batcher)

    def waiting(self) -> list[M | T]:
        """Return the requests that no thread has taken up, prepared or not."""
        with self._lock:
            return [*self._queue.items(), *self._batcher.items()]

    @property
    def prepared(self) -> int:
        """Requests of those that are prepared and wait for the model."""
        return len(self._batcher)

    @property
    def threads(self) -> int:
        """How many threads there are."""
        return len(self._threads)

    @property
    def busy_since(self) -> float:
        """When the oldest task that a thread has not finished began; infinite where there is none."""
        return min(filter(None, self._began), default=math.inf)

    def start(self) -> None:
        """Start the threads."""
        for thread in self._threads:
            thread.start()

    def receive(self, message: M, client: str = "") -> None:
        """Queue a message of a client; the caller has checked `depth` against its bound."""
        with self._lock:
            self.depth += 1
            self._queue.put(message, client)
            self._changed.notify()

    def evict(self, client: str) -> M | T | None:
        """Make room for a client by taking out the last queued request of the client that has most.

        Returns:
            The message or prepared request, to be rejected; None where nobody has two more than this client.
        """
        with self._lock:
            counts = self._batcher.count_by_client() + self._queue.count_by_client()
            (most, count), *_ = counts.most_common(1) or [("", 0)]
            if count < counts[client] + 2:
                return None
            self.depth -= 1
            message = self._queue.pop_last(most)
            return self._batcher.pop_last(most) if message is None else message

    def drain(self, timeout: float) -> bool:
        """Wait until the depth is 0.

        Args:
            timeout: In seconds.

        Returns:
            Whether that was reached in time.
        """
        with self._lock:
            return self._emptied.wait_for(lambda: self.depth == 0, timeout)

    def stop(self, timeout: float | None = None) -> list[M | T]:
        """Wait until every thread has finished its task, and return what nobody began, prepared or not.

        Args:
            timeout: For the tasks, in seconds; a thread whose task never ends is left behind.
        """
        with self._lock:
            self._closing = True
            self._changed.notify_all()
        end = math.inf if timeout is None else self._clock() + timeout
        for thread in self._threads:
            if thread.is_alive():
                thread.join(None if timeout is None else max(0.0, end - self._clock()))
        self.depth = 0
        return [*self._queue.clear(), *self._batcher.clear()]

    def fail(self, error: BaseException) -> None:
        """Keep a defect that left a request without a reply; the other requests go on."""
        log.critical("a thread of the worker failed", exc_info=error)
        self.failure = MqinferError(f"a thread of the worker failed: {error!r}")

    def _work(self, number: int) -> None:
        began, clock = self._began, self._clock
        try:
            while (task := self._next_task()) is not None:
                began[number] = clock()
                try:
                    if isinstance(task, Batch):
                        self._run_batch(task, number)
                    else:
                        self._record(number, (task.item,))
                        self._prepare_one(task)
                except BaseException as error:  # noqa: BLE001 - also SystemExit, which would end the thread in silence
                    self.fail(error)
                self._record(number, ())
                began[number] = 0.0
                task = None  # an idle thread keeps no request's memory
        except BaseException as error:  # noqa: BLE001 - the root of the thread
            self.fail(error)

    def _next_task(self) -> Batch[T] | Queued[M] | None:
        with self._lock:
            while not self._closing:
                idle = self._concurrency - self._running
                taken = self._batcher.take(self._clock(), idle) if idle else None
                if isinstance(taken, Batch):
                    self._begin(taken)
                    return taken
                has_room = self._batcher.nbytes + self._begun_bytes <= self._most_bytes
                if len(self._queue) and has_room and not (self._in_order and self._preparing):
                    self._preparing += 1
                    return self._queue.pop()
                self._changed.wait(taken)
            return None

    def _prepare_one(self, queued: Queued[M]) -> None:
        ready: Ready[T] | None = None
        try:
            ready = self._prepare(queued.item)
        finally:
            with self._lock:
                self._preparing -= 1
                # Nobody is woken for a batch: the calling thread looks for one next, and takes it without a switch.
                if self._in_order and len(self._queue):
                    self._changed.notify()
                if ready is None:
                    self._leave(1)
                else:
                    self._batcher.add(ready, self._clock(), queued.turn)

    def _begin(self, batch: Batch[T]) -> None:
        self._running += 1
        self._begun_bytes += batch.nbytes
        if self._in_order:
            self._unreplied.append(batch)
        self._queue.served(batch.turn)
        if self._running < self._concurrency and len(self._batcher):
            self._changed.notify()

    def _run_batch(self, batch: Batch[T], number: int) -> None:
        run: FinishedRun | None = None
        self._record(number, batch.items)
        try:
            try:
                run = self._run(batch.items)
            finally:
                self._end(batch, 0 if run is None else run.rows)
            if self._in_order:
                self._record(number, ())  # what waits for others is not to blame for them
                self._await_turn(batch)
                self._record(number, batch.items)
            run.reply()
        finally:
            self._await_turn(batch)  # also where the run raised: nobody may overtake those before
            with self._lock:
                if self._in_order:
                    self._unreplied.popleft()
                    self._replied.notify_all()
                if self._batcher.nbytes + self._begun_bytes > self._most_bytes:
                    self._changed.notify()  # what waited for room is prepared while this thread goes on
                self._begun_bytes -= batch.nbytes
                self._leave(len(batch.items))

    def _end(self, batch: Batch[T], rows: int) -> None:
        with self._lock:
            self._running -= 1
            self._batcher.ended(batch, rows, self._clock())
            if len(self._batcher):
                self._changed.notify()

    def _await_turn(self, batch: Batch[T]) -> None:
        if self._in_order:
            with self._lock:
                self._replied.wait_for(lambda: self._unreplied[0] is batch)

    def _leave(self, count: int) -> None:
        self.depth -= count
        if self.depth == 0:
            self._queue.reset()
            self._emptied.notify_all()
