"""What stands in for the parts of the product that need threads or the time of this machine.

The timer, the pool that decodes and the pipeline become events of the world, and call what the originals call, in the
same order. Events and clocks are the world's. Everything else of client and worker is the product's own.
"""

from __future__ import annotations

import math
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, Generic, TypeVar
from unittest.mock import patch

from mqinfer.broker import presence
from mqinfer.client import requester
from mqinfer.cloud_worker.batching.batcher import Batch, Batcher, Ready
from mqinfer.cloud_worker.serving import intake, replies, service, worker
from mqinfer.cloud_worker.serving.pipeline import FinishedRun
from mqinfer.fair_queue import FairQueue, Queued
from mqinfer.protocol.errors import MqinferError
from tests.simulation.world import running

__all__ = ["simulated_parts"]

M = TypeVar("M")
T = TypeVar("T")
_SPIN = 200
"""So often in a row a timer may find work that is due and change nothing."""


class EventTimer:
    """Does what `mqinfer.client.timer.Timer` does, as events."""

    def __init__(
        self,
        lock: threading.Lock,
        due: Callable[[], float],
        work: Callable[[], None],
        clock: Callable[[], float],
        failed: Callable[[Exception], None],
    ) -> None:
        del lock
        self._due, self._work, self._clock, self._failed = due, work, clock, failed
        self._node = running()
        self._node.on_leap = self._sleep
        self._stopped = False
        self._number = 0
        self._spins = 0
        self._spun_at = -math.inf
        self.running = False
        self.sleeps_until = 0.0

    def start(self) -> None:
        """Sleep until something is due."""
        self.running = True
        self._sleep()

    def look(self) -> None:
        """Wake up earlier where it is needed."""
        if self.running and self._due() < self.sleeps_until:
            self._sleep()

    def stop(self) -> None:
        """Do nothing more."""
        self._stopped, self.running = True, False

    def join(self, timeout: float | None = None) -> None:
        """Do nothing: there is no thread."""

    def _sleep(self) -> None:
        if self._stopped or not self.running:
            return
        self._number += 1
        self.sleeps_until = due = self._due()
        if due < math.inf:
            self._node.world.at(self._node.when(due) + 1e-7, self._node.call, self._wake, self._number)

    def _wake(self, number: int) -> None:
        if number != self._number or self._stopped:
            return
        self.sleeps_until = 0.0
        self._count_spins()
        try:
            self._work()
        except Exception as error:
            self._failed(error)
            raise
        self._sleep()

    def _count_spins(self) -> None:
        now = self._node.world.now
        self._spins = self._spins + 1 if now - self._spun_at < 1e-5 else 0
        self._spun_at = now
        if self._spins > _SPIN:
            self._node.world.violate(f"the timer of {self._node.name} spins: what is due stays due")


class EventPool:
    """Does what an executor does that decodes replies: each some time later, in any order."""

    def __init__(self, max_workers: int, thread_name_prefix: str = "") -> None:
        del max_workers, thread_name_prefix
        self._node = running()

    def submit(self, call: Callable[..., None], *arguments: Any) -> None:
        """Call something later."""
        self._node.after(self._node.world.random.choice((0.0005, 0.01, 0.2)), call, *arguments)

    def shutdown(self) -> None:
        """Do nothing: what was submitted still runs."""


class Event:
    """Does what `threading.Event` does; the world goes on while somebody waits."""

    def __init__(self) -> None:
        self._is_set = False

    def set(self) -> None:
        """Let everybody go on."""
        self._is_set = True

    def clear(self) -> None:
        """Let everybody wait from now on."""
        self._is_set = False

    def is_set(self) -> bool:
        """Return whether nobody waits."""
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it is set."""
        return running().wait(self.is_set, timeout)


class EventPipeline(Generic[M, T]):
    """Does what `mqinfer.cloud_worker.serving.pipeline.Pipeline` does, as events in place of threads.

    Attributes:
        depth: As there.
        closing: As there.
        failure: As there.
    """

    def __init__(
        self,
        batcher: Batcher[T],
        prepare: Callable[[M], Ready[T] | None],
        run: Callable[[Sequence[T]], FinishedRun],
        threads: int,
        *,
        concurrency: int = 1,
        in_order: bool = False,
        most_bytes: int,
        clock: Callable[[], float],
        record: Callable[[int, Sequence[M | T]], None],
    ) -> None:
        self._record = record
        del most_bytes  # requests of the simulation have some numbers each
        self._tasks: dict[int, Sequence[M | T]] = {}  # by the number of the thread
        self._batcher, self._prepare, self._run, self._clock = batcher, prepare, run, clock
        self._concurrency, self._in_order = concurrency, in_order
        self._queue: FairQueue[M] = FairQueue()
        self._node = running()
        self._idle = self.threads = max(threads, concurrency + 1)
        self._preparing = self._runs = 0
        self._unreplied: deque[tuple[Batch[T], Callable[[], None] | None]] = deque()
        self.depth = 0
        self.closing = False
        self.failure: MqinferError | None = None

    @property
    def busy_since(self) -> float:
        """When a task that has not ended began; infinite where there is none."""
        return math.inf if self._idle == self.threads else 0.0

    @property
    def queued(self) -> int:
        """Requests that nothing has been done with, or that wait for the model."""
        return len(self._queue) + len(self._batcher)

    @property
    def prepared(self) -> int:
        """Of those the ones that wait for the model."""
        return len(self._batcher)

    def start(self) -> None:
        """Do nothing: there are no threads."""

    def receive(self, message: M, client: str = "") -> None:
        """Queue a message."""
        self.depth += 1
        self._queue.put(message, client)
        self._look_in(0.0)

    def evict(self, client: str) -> M | T | None:
        """Make room, as there."""
        counts = self._batcher.count_by_client() + self._queue.count_by_client()
        (most, count), *_ = counts.most_common(1) or [("", 0)]
        if count < counts[client] + 2:
            return None
        self.depth -= 1
        message = self._queue.pop_last(most)
        return self._batcher.pop_last(most) if message is None else message

    def drain(self, timeout: float) -> bool:
        """Wait until nothing is left."""
        return running().wait(lambda: self.depth == 0, timeout)

    def fail(self, error: BaseException) -> None:
        """Report a defect."""
        self.failure = MqinferError(repr(error))
        self._node.world.violate(f"a thread of {self._node.name} failed: {error!r}")

    def stop(self, timeout: float | None = None) -> list[M | T]:
        """Wait for what has begun, and return the rest."""
        self.closing = True
        running().wait(lambda: self._idle == self.threads, timeout)
        self.depth = 0
        return [*self._queue.clear(), *self._batcher.clear()]

    def _look_in(self, seconds: float) -> None:
        """Let an idle thread look for a task; a switch of threads takes a moment."""
        moment = self._node.world.random.uniform(0, 2e-4)
        self._node.after(seconds / self._node.rate + moment, self._look)

    def _look(self) -> None:
        while self._idle and not self.closing:
            free = self._concurrency - self._runs
            taken = self._batcher.take(self._clock(), free) if free else None
            if isinstance(taken, Batch):
                self._idle -= 1
                self._begin(taken)
            elif len(self._queue) and not (self._in_order and self._preparing):
                self._preparing += 1
                self._idle -= 1
                queued = self._queue.pop()
                self._take_time((queued.item,), partial(self._end_preparation, queued))
            else:
                if taken is not None:
                    self._look_in(taken)
                return

    def _take_time(self, items: Sequence[M | T], task: Callable[[], Callable[[], None]]) -> None:
        """Do a task now, and what follows from it when its time is over; one that hangs keeps its thread."""
        number = next(number for number in range(self.threads) if number not in self._tasks)
        self._tasks[number] = items
        self._record(number, items)
        follow, node = task(), self._node
        if node.is_stuck:
            node.is_stuck = False
            return
        seconds, node.lead = node.lead + node.world.random.uniform(1e-5, 3e-4), 0.0
        node.after(seconds, self._follow, number, follow)

    def _follow(self, number: int, follow: Callable[[], None]) -> None:
        follow()
        del self._tasks[number]
        self._record(number, ())
        self._idle += 1
        self._look_in(0.0)

    def _end_preparation(self, queued: Queued[M]) -> Callable[[], None]:
        ready = self._prepare(queued.item)

        def follow() -> None:
            self._preparing -= 1
            if ready is None:
                self._leave(1)
            else:
                self._batcher.add(ready, self._clock(), queued.turn)

        return follow

    def _begin(self, batch: Batch[T]) -> None:
        self._runs += 1
        if self._in_order:
            self._unreplied.append((batch, None))
        self._queue.served(batch.turn)
        self._take_time(batch.items, partial(self._run_batch, batch))

    def _run_batch(self, batch: Batch[T]) -> Callable[[], None]:
        finished = self._run(batch.items)

        def follow() -> None:
            self._runs -= 1
            self._batcher.ended(batch, finished.rows, self._clock())
            if not self._in_order:
                finished.reply()
                self._leave(len(batch.items))
                return
            self._unreplied = deque(
                (each, finished.reply if each is batch else reply) for each, reply in self._unreplied
            )
            while self._unreplied and (reply := self._unreplied[0][1]) is not None:
                first, _ = self._unreplied.popleft()
                reply()
                self._leave(len(first.items))

        return follow

    def _leave(self, count: int) -> None:
        self.depth -= count
        if self.depth == 0:
            self._queue.reset()


def _nanoseconds() -> int:
    """Return the monotonic clock of the process whose code runs."""
    return round(running().clock() * 1e9)


def _wall() -> int:
    """Return its wall clock."""
    return running().wall_ns()


@contextmanager
def simulated_parts() -> Iterator[None]:
    """Let the product's modules use these parts."""
    clock = SimpleNamespace(perf_counter_ns=_nanoseconds, time_ns=_wall)
    threads = SimpleNamespace(Event=Event, Lock=threading.Lock, Thread=threading.Thread)
    with ExitStack() as stack:
        for module, name, part in (
            (requester, "Timer", EventTimer),
            (requester, "ThreadPoolExecutor", EventPool),
            (worker, "Pipeline", EventPipeline),
            (intake, "threading", threads),
            (presence, "threading", threads),
            (presence, "time", clock),
            (service, "time", clock),
            (replies, "time", clock),
        ):
            stack.enter_context(patch.object(module, name, part))
        yield
