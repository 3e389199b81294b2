"""mqinfer itself, with everything on: QoS 1, deadlines, pending table, timings, one worker process."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TypeVar

from mqinfer.bench.contestants.contestant import Drive, Stopwatch
from mqinfer.bench.starting import next_ready
from mqinfer.bench.workloads import Workload
from mqinfer.broker.address import BrokerAddress
from mqinfer.client.client import Client
from mqinfer.client.result import InferResult
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.supervisor import Event, Supervisor
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelFailed, ModelNotLoadable

__all__ = ["OverMqtt"]

_Answer = TypeVar("_Answer", InferResult, "Future[InferResult]")
_START_TIMEOUT_S = 60.0
_REQUEST_TIMEOUT_S = 30.0


class OverMqtt:
    """A worker process under a supervisor, and a client in this process, through a broker that is there already.

    Args:
        workload: What to ask.
        broker: URL.
        broker_pid: The broker's process, whose time counts too.
    """

    name = "mqinfer"

    def __init__(self, workload: Workload, broker: str, broker_pid: int) -> None:
        self._workload = workload
        self._broker = broker
        self._broker_pid = broker_pid
        self._worker_name = f"bench-{workload.model.replace('_', '-')}-{os.getpid()}"
        self._supervisor: Supervisor | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None

    def start(self) -> None:
        """Start the worker, wait until it serves, and connect.

        Raises:
            ModelNotLoadable: The worker did not start.
        """
        events: SimpleQueue[Event] = SimpleQueue()
        spec = ProcessSpec(
            repository=self._workload.path.parents[2],
            model=self._workload.model,
            version=1,
            broker=BrokerAddress.parse(self._broker),
            options=WorkerOptions(self._worker_name),
        )
        self._supervisor = Supervisor([spec], events.put)
        self._thread = threading.Thread(target=self._supervisor.run, name="mqinfer-bench-supervisor")
        self._thread.start()
        next_ready(events, _START_TIMEOUT_S)
        self._client = Client(self._broker)
        self.infer()

    def infer(self) -> Mapping[str, Array]:
        """Ask once."""
        return self._ask(self._connected().infer).outputs

    def drive(self, callers: int, seconds: float) -> Drive:
        """Let callers ask: one blocks for each result; many are futures whose ends start the next requests."""
        if callers == 1:
            return self._drive_one(seconds)
        return self._drive_many(callers, seconds)

    def pids(self) -> Mapping[str, int]:
        """The worker and the broker."""
        worker = self._supervisor.pids.get(self._worker_name) if self._supervisor else None
        if worker is None:
            raise ModelFailed(f"the bench's worker for {self._workload.name} does not run; it says why above")
        return {"broker": self._broker_pid, "server": worker}

    def close(self) -> None:
        """Disconnect and stop the worker."""
        if self._client is not None:
            self._client.close()
        if self._supervisor is not None and self._thread is not None:
            self._supervisor.stop()
            self._thread.join()

    def _ask(self, way: Callable[..., _Answer]) -> _Answer:
        workload = self._workload
        return way(workload.model, workload.feeds, timeout=_REQUEST_TIMEOUT_S, outputs=[workload.output])

    def _drive_one(self, seconds: float) -> Drive:
        infer = self._connected().infer
        watch = Stopwatch(seconds)
        while not watch.is_over():
            since = time.perf_counter_ns()
            result = self._ask(infer)
            watch.lap(since, [result.timings])
        return watch.drive()

    def _drive_many(self, callers: int, seconds: float) -> Drive:
        submit = self._connected().submit
        ended: SimpleQueue[tuple[int, Future[InferResult]]] = SimpleQueue()
        watch = Stopwatch(seconds)

        def ask() -> None:
            since = time.perf_counter_ns()
            self._ask(submit).add_done_callback(lambda future: ended.put((since, future)))

        for _ in range(callers):
            ask()
        in_flight = callers
        while in_flight:
            since, future = ended.get()
            watch.lap(since, [future.result().timings])
            if watch.is_over():
                in_flight -= 1
            else:
                ask()
        return watch.drive()

    def _connected(self) -> Client:
        if self._client is None:
            raise ModelNotLoadable("the contestant has not been started")
        return self._client
