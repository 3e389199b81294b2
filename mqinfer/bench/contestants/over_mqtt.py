"""mqinfer itself, with everything on: QoS 1, deadlines, pending table, checksums, timings, one worker process."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TypeVar

from mqinfer.bench.processes import worker_processes
from mqinfer.bench.workloads import Workload
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.client import Client
from mqinfer.client.result import InferResult
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.lab.load import Drive, Overlapping, repeat
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelFailed, MqinferError

_Result = TypeVar("_Result", InferResult, "Future[InferResult]")
_REQUEST_TIMEOUT_S = 30.0


@dataclass(frozen=True, slots=True)
class BrokerAccess:
    """How a client and a worker reach a broker that runs already.

    Attributes:
        client: The client's address of the broker.
        worker: The worker's.
        broker_pid: The broker's process, whose time counts too.
        client_name: Of the client; made up where None.
        worker_name: Of the worker; made up where None.
    """

    client: BrokerAddress
    worker: BrokerAddress
    broker_pid: int
    client_name: str | None = None
    worker_name: str | None = None

    @classmethod
    def to(cls, broker: MosquittoServer) -> BrokerAccess:
        """Return the route to a broker that asks for no certificates."""
        address = BrokerAddress.parse(broker.url)
        return cls(address, address, broker.pid)

    def spec(self, workload: Workload) -> ProcessSpec:
        """Return what the worker process for a workload does."""
        name = self.worker_name or f"bench-{workload.model.replace('_', '-')}-{os.getpid()}"
        return ProcessSpec(workload.path.parents[2], workload.model, 1, self.worker, WorkerOptions(name), device="cpu")


class OverMqtt:
    """A worker process under a supervisor, and a client in this process.

    Args:
        workload: What to ask.
        route: To the broker.
        name: As in the tables.

    Raises:
        ModelNotLoadable: The worker did not start.
    """

    name = "mqinfer"

    def __init__(self, workload: Workload, route: BrokerAccess, name: str = "mqinfer") -> None:
        self.name = name
        self._workload = workload
        self._route = route
        self._spec = route.spec(workload)
        with ExitStack() as stack:
            self._supervisor = stack.enter_context(worker_processes([self._spec]))
            self._client = stack.enter_context(Client(route.client, name=route.client_name))
            self.infer()
            self._stack = stack.pop_all()

    def infer(self) -> Mapping[str, Array]:
        """Ask once."""
        return self._ask(self._client.infer).outputs

    def drive(self, callers: int, seconds: float) -> Drive:
        """Send requests: one caller blocks for each result; many are futures whose ends start the next requests."""
        if callers == 1:
            return repeat(lambda: self._ask(self._client.infer).timings, seconds)
        return Overlapping(lambda: self._ask(self._client.submit), seconds, _fail).callers(callers)

    def pids(self) -> Mapping[str, int]:
        """The worker and the broker."""
        worker = self._supervisor.pids.get(self._spec.options.name)
        if worker is None:
            raise ModelFailed(f"the bench's worker for {self._workload.name} does not run; its error is printed above")
        return {"broker": self._route.broker_pid, "server": worker}

    def close(self) -> None:
        """Disconnect and stop the worker."""
        self._stack.close()

    def _ask(self, send: Callable[..., _Result]) -> _Result:
        workload = self._workload
        return send(workload.model, workload.feeds, timeout=_REQUEST_TIMEOUT_S, outputs=[workload.output])


def _fail(error: MqinferError) -> None:
    raise error
