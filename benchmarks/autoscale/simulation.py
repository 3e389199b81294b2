"""A fleet and its workers on one virtual clock: how a rule follows a pattern of frames.

Clients are the product's `Dispatcher`, the site is its `Registry` and `lag`, a worker has its `FairQueue`, `LoadMeter`
and `Admission`; only network and model are times. Messages arrive at once, states as often as the product sends them.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from benchmarks.autoscale.patterns import Frame
from mqinfer.broker.link import ReasonCode
from mqinfer.client.dispatch.dispatcher import Dispatcher
from mqinfer.client.dispatch.pending import PendingRequest
from mqinfer.client.options import ClientOptions
from mqinfer.client.registry import Registry
from mqinfer.cloud_worker.serving.load import Admission, LoadMeter
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.control_server import LOOK_S
from mqinfer.fair_queue import FairQueue
from mqinfer.metrics.lag import Lag, lag
from mqinfer.protocol.errors import Rejected
from mqinfer.protocol.states import (
    ClientState,
    PendingRequests,
    ProcessStatus,
    ServedModel,
    WorkerState,
    WorkerStatus,
)
from mqinfer.protocol.types import ErrorInfo, InferRequest, InferResponse, Outcome, Timings

_MODEL = "m"
MOST = 8
"""Workers."""
_STATES_S, _SERVICE_S = 2.0, 1.0


class Rule(Protocol):
    """Decides how many workers there are."""

    def update(self, now: float, lag: Lag, workers: Sequence[WorkerState]) -> int:
        """Return how many workers the model needs, by what waits and by the states of its workers."""


@dataclass(frozen=True, slots=True)
class SiteOptions:
    """What the rules are tried on.

    Attributes:
        start_s: Seconds from the start of a worker until it serves: its process, its engine, its model.
        seconds: Length of the pattern; what waits at its end is awaited.
    """

    start_s: float = 5.0
    seconds: float = 3600.0


@dataclass(slots=True)
class Followed:
    """What a rule made of a pattern.

    Attributes:
        frames: How many there were.
        late: Those without an answer in time.
        worker_s: Seconds of all workers, from the order to start until the end.
        starts: Workers started, the first one left out.
        turns: How often the number of workers went up after it had gone down, or the other way round.
        curve: Number of workers by time, from each change on.
    """

    frames: int
    late: int = 0
    worker_s: float = 0.0
    starts: int = 0
    turns: int = 0
    curve: list[tuple[float, int]] = field(default_factory=list, repr=False)


@dataclass(slots=True, eq=False)
class _Worker:
    name: str
    born: float
    meter: LoadMeter
    admission: Admission
    status: WorkerStatus = WorkerStatus.STOPPED
    queue: FairQueue[tuple[_Client, PendingRequest, int, float]] = field(default_factory=FairQueue)
    depth: int = 0


@dataclass(slots=True, eq=False)
class _Client:
    name: str
    dispatcher: Dispatcher
    waiting: deque[PendingRequest] = field(default_factory=deque)
    wakes_at: float = math.inf
    stated: bool = False


class _Site:
    def __init__(self, frames: Sequence[Frame], rule: Rule, options: SiteOptions) -> None:
        self.now = 0.0
        self.found = Followed(len(frames))
        self._rule, self._options = rule, options
        self._worker_options = WorkerOptions("w")
        self._known = Registry(lambda: self.now)
        self._events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._number = self._settled = self._direction = 0
        self._workers: list[_Worker] = []
        vehicles = sorted({vehicle for _, vehicle, _ in frames})
        self._clients = {each: _Client(f"car-{each}", Dispatcher(f"car-{each}", ClientOptions())) for each in vehicles}
        self._frames = iter(frames)
        self._start(0.0)
        self.found.starts = 0
        self._next_frame()
        self._at(0.0, self._look)
        self._at(0.5, self._state)

    def run(self) -> Followed:
        """Run until each frame has its outcome."""
        while self._settled < self.found.frames or self.now < self._options.seconds:
            self.now, _, call, arguments = heapq.heappop(self._events)
            call(*arguments)
        self.found.worker_s += sum(self.now - worker.born for worker in self._workers)
        return self.found

    def _at(self, when: float, call: Callable[..., None], *arguments: Any) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, call, arguments))

    def _next_frame(self) -> None:
        frame = next(self._frames, None)
        if frame is not None:
            at, vehicle, within = frame
            self._number += 1
            entry = PendingRequest(InferRequest(str(self._number), _MODEL, ()), lambda _: None, at, at + within)
            self._at(at, self._submit, self._clients[vehicle], entry)

    def _submit(self, client: _Client, entry: PendingRequest) -> None:
        client.waiting.append(entry)
        self._pump(client)
        self._next_frame()

    def _pump(self, client: _Client) -> None:
        dispatcher, more = client.dispatcher, True
        while more:
            while client.waiting and dispatcher.room > 0:
                dispatcher.submit(client.waiting.popleft())
            step = dispatcher.take(self.now)
            self.found.late += len(step.ended)
            self._settled += len(step.ended)
            if step.send is not None:
                self._send(client, step.send)
            more = step.send is not None
        if dispatcher.wake_at != client.wakes_at:
            client.wakes_at = dispatcher.wake_at
            if client.wakes_at < math.inf:
                self._at(max(self.now, client.wakes_at), self._wake, client, client.wakes_at)

    def _wake(self, client: _Client, due: float) -> None:
        if client.wakes_at == due:
            client.wakes_at = math.inf
            self._pump(client)

    def _send(self, client: _Client, entry: PendingRequest) -> None:
        lane = entry.lane
        worker = next((each for each in self._workers if lane is not None and each.name == lane.worker), None)
        if worker is None or worker.status is not WorkerStatus.READY:
            client.dispatcher.acked(entry, entry.attempts, ReasonCode.NO_MATCHING_SUBSCRIBERS, self.now)
        elif worker.depth >= self._worker_options.capacity:
            name, busy = entry.request.id, ErrorInfo(Rejected.code, "it has as many as it accepts")
            refusal = InferResponse(name, _MODEL, outcome=Outcome.REJECTED, error=busy, worker=worker.name)
            client.dispatcher.replied(refusal, self.now)
        else:
            worker.admission.enter(client.name, 1, self.now)
            worker.depth += 1
            worker.queue.put((client, entry, entry.attempts, self.now), client.name)
            if worker.depth == 1:
                self._run_next(worker)

    def _run_next(self, worker: _Worker) -> None:
        self._at(self.now + _SERVICE_S, self._end_run, worker, worker.queue.pop().item, self.now)

    def _end_run(self, worker: _Worker, item: tuple[_Client, PendingRequest, int, float], began: float) -> None:
        client, entry, attempt, received = item
        timings = Timings(server_queue=round((began - received) * 1e9), inference=round(_SERVICE_S * 1e9))
        worker.meter.served(_SERVICE_S, 1)
        worker.meter.answered(Outcome.OK, timings)
        worker.admission.leave(1)
        window = worker.admission.window(worker.meter.service_s)
        response = InferResponse(
            entry.request.id,
            _MODEL,
            "1",
            worker=worker.name,
            timings=timings,
            attempt=attempt,
            load=worker.meter.load(worker.depth, window),
        )
        worker.depth -= 1
        if worker.depth:
            self._run_next(worker)
        elif worker.status is WorkerStatus.DRAINING:
            self._end(worker)
        if client.dispatcher.replied(response, self.now) and client.dispatcher.settle(entry.request.id, Outcome.OK):
            self._settled += 1
        self._pump(client)

    def _state(self) -> None:
        for worker in self._workers:
            if worker.status is not WorkerStatus.STOPPED:
                self._publish(worker)
        for client in self._clients.values():
            queued = len(client.waiting)
            pending = client.dispatcher.table.by_model(self.now)
            if queued:
                first = pending[0]
                pending = (PendingRequests(_MODEL, first.queued + queued, first.in_flight, first.oldest_ms),)
            if pending or client.stated:
                client.stated = bool(pending)
                state = ClientState(client.name, ProcessStatus.READY, 1, pending=pending)
                self._known.put_client(client.name, state)
        self._at(self.now + _STATES_S, self._state)

    def _publish(self, worker: _Worker) -> None:
        state = WorkerState(
            worker.name,
            worker.status,
            1,
            (ServedModel(_MODEL, "1"),),
            self._worker_options.capacity,
            worker.depth,
            worker.meter.load(0).service_time_us,
            worker.meter.counters(),
            clients=worker.admission.accepted(),
        )
        self._known.put_worker(worker.name, state)
        for client in self._clients.values():
            client.dispatcher.update(state, self.now)

    def _look(self) -> None:
        at_work = list(self._known.workers.values())
        needed = self._rule.update(self.now, lag(self._known, self.now).get(_MODEL, Lag()), at_work)
        wanted = max(1, min(MOST, needed))
        kept = [worker for worker in self._workers if worker.status is not WorkerStatus.DRAINING]
        for _ in range(wanted - len(kept)):
            self._start(self._options.start_s)
        for worker in kept[wanted:]:
            self._drain(worker)
        if wanted != len(kept):
            direction = 1 if wanted > len(kept) else -1
            self.found.turns += self._direction not in {0, direction}
            self._direction = direction
            self.found.curve.append((self.now, wanted))
        self._at(self.now + LOOK_S, self._look)

    def _start(self, seconds: float) -> None:
        self.found.starts += 1
        self._number += 1
        meter, admission = LoadMeter(lambda: self.now, _SERVICE_S), Admission(self._worker_options, 1)
        worker = _Worker(f"w-{self._number}", self.now, meter, admission)
        self._workers.append(worker)
        self._at(self.now + seconds, self._serve, worker)

    def _serve(self, worker: _Worker) -> None:
        if worker in self._workers:
            worker.status = WorkerStatus.READY
            self._publish(worker)
            for client in self._clients.values():
                self._pump(client)

    def _drain(self, worker: _Worker) -> None:
        if worker.status is WorkerStatus.STOPPED or not worker.depth:
            self._end(worker)
        else:
            worker.status = WorkerStatus.DRAINING
            self._publish(worker)

    def _end(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        self.found.worker_s += self.now - worker.born
        if worker.status is not WorkerStatus.STOPPED:
            worker.status = WorkerStatus.STOPPED
            self._publish(worker)


def follow(frames: Sequence[Frame], rule: Rule, options: SiteOptions | None = None) -> Followed:
    """Let a rule follow the frames of a fleet."""
    return _Site(frames, rule, options or SiteOptions()).run()
