"""A newer frame takes the place of one that was sent and not begun: counted in virtual time, with the real window."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pytest

from mqinfer.broker.link import ReasonCode
from mqinfer.client.dispatch.dispatcher import Dispatcher
from mqinfer.client.dispatch.pending import PendingRequest
from mqinfer.client.result import InferResult
from mqinfer.client.window import Policy, StreamWindow
from mqinfer.protocol.states import ServedModel, WorkerState, WorkerStatus
from mqinfer.protocol.types import InferRequest, InferResponse, Outcome, Timings, WorkerLoad

_FPS, _WAY_S, _SECONDS = 30.0, 0.02, 40.0


@dataclass
class Worker:
    """One at a time, in the order of coming."""

    name: str
    queue: deque[tuple[str, float]] = field(default_factory=deque)
    busy: bool = False
    cancelled: set[str] = field(default_factory=set)


class Drive:
    """A camera of 30 frames a second, the client's dispatcher, and workers 20 ms away; all in virtual time."""

    def __init__(
        self,
        seconds_of: Callable[[float], float],
        workers: int,
        *,
        supersedes: bool,
        outage: tuple[float, float] | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self.ages: list[float] = []
        self.now = 0.0
        self._seconds_of, self._supersedes = seconds_of, supersedes
        self._events: list[tuple[float, int, Callable[..., None], Any]] = []
        self._numbers = count()
        self._connected = True
        self._dispatcher = Dispatcher("car")
        self._stream: StreamWindow[float] = StreamWindow(Policy.LATEST, 8)
        self._sent: dict[str, float] = {}  # when each frame without an outcome was taken, the oldest first
        self._workers = {f"w{number}": Worker(f"w{number}") for number in range(workers)}
        self._announce()
        if outage:
            self._at(outage[0], self._disconnect)
            self._at(outage[1], self._connect)
        self._at(0.0, self._take_frame)
        self._at(0.0, self._tick)
        while self._events[0][0] < _SECONDS:
            self.now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
        assert self.counts["frames"] == self.counts["ok"] + self.counts["superseded"] + len(self._sent) + (
            1 if self._stream.wants_room else 0
        )

    def _at(self, delay: float, call: Callable[..., None], *arguments: Any) -> None:
        heapq.heappush(self._events, (self.now + delay, next(self._numbers), call, arguments))

    def _announce(self) -> None:
        for name in self._workers:
            state = WorkerState(name, WorkerStatus.READY, 1, (ServedModel("m", "1"),), 8, 0, 0)
            self._dispatcher.update(state, self.now)

    def _disconnect(self) -> None:
        self._connected = False
        self._dispatcher.connection(False, 0.0)

    def _connect(self) -> None:
        self._connected = True
        self._dispatcher.connection(True, self.now)
        self._announce()
        self._pump()

    def _tick(self) -> None:
        self._pump()
        self._at(0.01, self._tick)

    def _take_frame(self) -> None:
        self._at(1 / _FPS, self._take_frame)
        self.counts["frames"] += 1
        self.counts["superseded"] += self._stream.put(self.now) is not None
        self._advance()
        if self._supersedes and self._stream.wants_room:
            found = self._dispatcher.table.replaceable(list(self._sent), self.now, connected=self._connected)
            if found and (entry := self._dispatcher.settle(found, Outcome.SUPERSEDED, is_reply=False)):
                self.counts["superseded"] += 1
                if entry.attempts and self._connected:
                    self._at(_WAY_S, self._cancel, found)
                self._finish(InferResult(found, Outcome.SUPERSEDED, "m"))

    def _advance(self) -> None:
        for taken in self._stream.take():
            name = f"{next(self._numbers):032x}"
            self._sent[name] = taken
            self._dispatcher.submit(
                PendingRequest(InferRequest(name, "m", ()), lambda _: None, submitted=self.now, deadline=self.now + 60)
            )
        self._pump()

    def _pump(self) -> None:
        while (entry := self._dispatcher.take(self.now, connected=self._connected).send) is not None:
            self._dispatcher.acked(entry, entry.attempts, ReasonCode.SUCCESS, self.now)
            self.counts["sent"] += 1
            assert entry.lane
            self._at(_WAY_S, self._receive, self._workers[entry.lane.worker], entry.request.id)

    def _receive(self, worker: Worker, name: str) -> None:
        if self._connected:
            worker.queue.append((name, self.now))
            self._work(worker)

    def _cancel(self, name: str) -> None:
        for worker in self._workers.values():
            worker.cancelled.add(name)

    def _work(self, worker: Worker) -> None:
        while worker.queue and not worker.busy:
            name, came = worker.queue.popleft()
            if name not in worker.cancelled:
                worker.busy = True
                seconds = self._seconds_of(self.now)
                timings = Timings(server_queue=_ns(self.now - came), inference=_ns(seconds))
                self._at(seconds, self._end, worker, name, timings)

    def _end(self, worker: Worker, name: str, timings: Timings) -> None:
        worker.busy = False
        self.counts["runs"] += 1
        load = WorkerLoad(len(worker.queue) + 1, 50_000, 8)
        self._at(_WAY_S, self._answer, InferResponse(name, "m", worker=worker.name, load=load, timings=timings))
        self._work(worker)

    def _answer(self, response: InferResponse) -> None:
        if self._connected and self._dispatcher.replied(response, self.now):
            entry = self._dispatcher.settle(response.id, Outcome.OK)
            assert entry
            self.counts["ok"] += 1
            self.ages.append(self.now - self._sent[response.id])
            self._finish(entry.answered(response, {}, None, self.now))

    def _finish(self, result: InferResult) -> None:
        del self._sent[result.id]
        self._stream.finish(result, self.now)
        self._advance()


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


def stalls(now: float) -> float:
    """A model of 50 ms that stalls for three seconds every ten."""
    return 3.0 if now > 5 and now % 10 < 1 else 0.05


def steady(now: float) -> float:
    """A model of 50 ms."""
    del now
    return 0.05


def both(seconds_of: Callable[[float], float], workers: int, **options: Any) -> Sequence[Drive]:
    """Drive without and with superseding."""
    return [Drive(seconds_of, workers, supersedes=each, **options) for each in (False, True)]


def test_less_is_run_in_vain_where_workers_stall() -> None:
    """Frames behind the one that a silent worker runs give way: fewer runs in vain and stale results, more of all."""
    before, after = both(stalls, 2)
    in_vain = [each.counts["runs"] - each.counts["ok"] for each in (before, after)]
    assert in_vain[1] <= in_vain[0] / 2  # 9 and 21
    assert after.counts["ok"] >= before.counts["ok"]  # 905 and 868
    assert sum(age > 1 for age in after.ages) <= sum(age > 1 for age in before.ages) / 3  # 5 and 24


def test_the_first_frames_after_an_outage_are_fresh() -> None:
    """Without a connection each newer frame takes the place of the oldest: none of before the outage is answered."""
    before, after = both(steady, 2, outage=(10, 16))
    assert max(before.ages) > 5
    assert max(after.ages) < 1


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_a_worker_that_answers_in_time_keeps_its_frames(workers: int) -> None:
    """Nothing is sent twice over where all is well: as many frames go out, and as many results come back."""
    before, after = both(steady, workers)
    assert after.counts == before.counts
    assert after.counts["ok"] >= after.counts["sent"] - 8


def test_a_reply_that_is_being_decoded_is_not_superseded() -> None:
    """Its worker may have been quarantined meanwhile: nothing is in flight there any more, and the result counts."""
    dispatcher = Dispatcher("car")
    dispatcher.update(WorkerState("w", WorkerStatus.READY, 1, (ServedModel("m", "1"),), 8, 0, 50_000), 0.0)
    dispatcher.submit(PendingRequest(InferRequest("1", "m", ()), lambda _: None, submitted=0.0, deadline=60.0))
    entry = dispatcher.take(0.0).send
    assert entry
    assert entry.lane
    assert dispatcher.replied(InferResponse("1", "m", worker="w", load=WorkerLoad(1, 50_000, 8)), 0.1)
    entry.lane.quarantine.begin(0.1, entry.lane.silence)
    assert dispatcher.table.replaceable(["1"], 0.2, connected=True) is None
    assert dispatcher.settle("1", Outcome.OK) is entry
