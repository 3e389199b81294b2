"""How far one broker carries: simulated vehicles, more at each step, and what each step costs the broker.

A vehicle is a whole client: a connection, a state of its own, the states of all workers, lanes. Hundreds share one
process and one asyncio loop, and a worker answers with a few bytes, so that the broker has as much to do as possible.
Requests have their times in advance, and a delay counts from there: what waits behind another one is late, too.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mqinfer.bench.contestants.clients import Clients
from mqinfer.bench.contestants.driving import DrivenTurn, Load
from mqinfer.bench.contestants.site import workload_specs
from mqinfer.bench.contestants.ways import Target
from mqinfer.bench.processes import worker_processes
from mqinfer.bench.processor_time import seconds_of
from mqinfer.bench.workloads import Workload
from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.nats.server import NatsServers
from mqinfer.lab.profiling.memory import resident_bytes
from mqinfer.lab.reports import Grid
from mqinfer.lab.zoo.onnx_graph import OnnxGraph
from mqinfer.protocol.errors import ConfigError, ModelFailed

__all__ = ["ScaleOptions", "Step", "measure_scale", "measure_states", "scale_grid"]

_MODEL = "first_bytes"
_WAITING = 1024
"""Requests of a vehicle at a time, more than there are within their timeout: none waits for another one."""
_AT_ONCE = 16
"""Processes of vehicles that start at the same time."""
_PATIENCE_S = 120.0
_EACH = 100
"""Vehicles of one process: each has a timer's thread, and with many more they keep each other from running."""


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """What is tried.

    Attributes:
        vehicles: Numbers of vehicles, ascending.
        rate: Requests a second of each.
        size: Bytes of a request.
        seconds: Length of each step.
        url: Of a broker that runs already; None for one of its own.
        pid: Of its process, for its processor time and memory.
        nats: How many nats-servers are its own broker; 0 for a Mosquitto.
    """

    vehicles: Sequence[int] = (10, 100, 300, 1000)
    rate: float = 1.0
    size: int = 1000
    seconds: float = 10.0
    url: str | None = None
    pid: int | None = None
    nats: int = 0


@dataclass(frozen=True, slots=True)
class Step:
    """What so many vehicles got, and what it cost.

    Attributes:
        vehicles: How many.
        sent: Requests a second.
        answered: Results a second.
        failed: Requests without a result.
        p50: Median delay from the request's own time to its result, in seconds.
        p99: Of a hundred the slowest but one.
        broker_us: Processor time of the broker for a request, in microseconds; of all servers, where it is a cluster.
        broker_share: Share of a processor that the broker took; likewise.
        broker_bytes: Resident memory of the broker; likewise.
        vehicles_us: Processor time of the vehicles for a request, in microseconds.
        worker_us: Processor time of the worker for a request, in microseconds.
    """

    vehicles: int
    sent: float
    answered: float
    failed: int
    p50: float
    p99: float
    broker_us: float
    broker_share: float
    broker_bytes: int
    vehicles_us: float
    worker_us: float


def measure_scale(options: ScaleOptions, progress: Callable[[str], None] = lambda _: None) -> list[Step]:
    """Measure each number of vehicles, one after the other.

    Raises:
        ConfigError: A broker of another kind is named without its process.
    """
    if options.url is not None and options.pid is None:
        raise ConfigError("--broker: its processor time can't be measured without --pid, that of its process")
    with _broker(options) as (url, pids), TemporaryDirectory(prefix="mqinfer-scale-") as folder, ExitStack() as stack:
        workload = _workload(Path(folder), options.size)
        workload.save(Path(folder))
        specs = workload_specs(workload, BrokerAddress.parse(url), capacity=4096)
        worker = list(stack.enter_context(worker_processes(specs)).pids.values())
        steps: list[Step] = []
        for count in options.vehicles:
            with ExitStack() as fleets:
                drive = _fleets(fleets, Path(folder), url, count)
                steps.append(_step(options, count, drive, (pids, worker)))
            progress(f"{count} vehicles: {steps[-1].answered:.0f} results/s, p99 {1000 * steps[-1].p99:.1f} ms")
        return steps


@contextmanager
def _broker(options: ScaleOptions) -> Iterator[tuple[str, Sequence[int]]]:
    if options.url is not None and options.pid is not None:
        yield options.url, (options.pid,)
    elif options.nats:
        with NatsServers(nodes=options.nats) as servers:
            yield servers.url, servers.pids
    else:
        with MosquittoServer(configuration=_for_many) as server:
            yield server.url, (server.pid,)


def _for_many(port: int) -> str:
    """Return Mosquitto's configuration, with more connections than most sites have."""
    return render(port).replace("\nmax_connections 1000\n", "\nmax_connections 100000\n")


def _fleets(stack: ExitStack, folder: Path, url: str, count: int) -> Callable[[Load], list[DrivenTurn]]:
    """Start the vehicles; return what has all of them drive for a turn."""
    starters = stack.enter_context(ThreadPoolExecutor(_AT_ONCE, "scale"))

    def start(first: int) -> Clients:
        target = Target("mqtt", url=url, announce="scale", first=first)
        return stack.enter_context(closing(Clients(target, folder, min(_EACH, count - first))))

    fleets = list(starters.map(start, range(0, count, _EACH)))
    return lambda load: list(starters.map(lambda each: each.drive(load), fleets))


def _step(
    options: ScaleOptions,
    count: int,
    drive: Callable[[Load], list[DrivenTurn]],
    roles: tuple[Sequence[int], Sequence[int]],
) -> Step:
    drive(Load(_WAITING, 1, rate=options.rate))  # each connection once, and the worker's estimates
    before = [sum(map(seconds_of, pids)) for pids in roles]
    turns = drive(Load(_WAITING, options.seconds, rate=options.rate))
    broker, worker = (sum(map(seconds_of, pids)) - spent for pids, spent in zip(roles, before, strict=True))
    delays, seconds = [delay for turn in turns for delay in turn.times], max(turn.seconds for turn in turns)
    failed = sum(sum(turn.failures.values()) + turn.dropped for turn in turns)
    done = max(1, len(delays))
    p50, p99 = np.quantile(delays or [float("nan")], (0.5, 0.99)).tolist()
    return Step(
        vehicles=count,
        sent=(len(delays) + failed) / seconds,
        answered=len(delays) / seconds,
        failed=failed,
        p50=p50,
        p99=p99,
        broker_us=1e6 * broker / done,
        broker_share=broker / seconds,
        broker_bytes=sum(map(resident_bytes, roles[0])),
        vehicles_us=1e6 * sum(turn.cpu_s for turn in turns) / done,
        worker_us=1e6 * worker / done,
    )


def _workload(repository: Path, size: int) -> Workload:
    """Write a model that takes any number of bytes and returns the first eight."""
    graph = OnnxGraph("uint8", ("n", "size"))
    graph.node("Slice", "input", graph.integers(0), graph.integers(8), graph.integers(1), output="first")
    graph.add_output("first", "uint8", ("n", 8))
    path = repository / _MODEL / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    graph.write(path)
    content = np.zeros((1, size), np.uint8)
    return Workload("scale", _MODEL, path, "input", content, "first", content[:, :8])


def measure_states(count: int) -> str:
    """Return in words how long a newcomer waits for what a broker retains, and what that takes of the broker."""
    state = json.dumps({"boot": 1, "status": "ready", "text": "x" * 300}).encode()
    with MosquittoServer() as server:
        link = make_link(server.url, client_id="scale-states")
        link.open()
        before = resident_bytes(server.pid)
        for number in range(count):
            link.publish(Message(f"scale/clients/car-{number}/state", state, retain=True))
        link.publish(Message("scale/clients/last/state", state, retain=True))
        waits = [_newcomer(server.url, count + 1) for _ in range(3)]
        link.close()
        each = (resident_bytes(server.pid) - before) / count
    return f"{count} retained states of {len(state)} bytes: {min(waits):.2f} s for a newcomer, {each:.0f} bytes each"


def _newcomer(url: str, count: int) -> float:
    came, left = threading.Event(), [count]

    def take(_: Message) -> None:
        left[0] -= 1
        if not left[0]:
            came.set()

    link = make_link(url, client_id="scale-newcomer")
    link.open()
    begin = time.perf_counter()
    link.subscribe("scale/clients/+/state", take)
    has_come = came.wait(_PATIENCE_S)
    link.close()
    if not has_come:
        raise ModelFailed(f"{left[0]} of {count} retained states did not come to a newcomer")
    return time.perf_counter() - begin


def scale_grid(options: ScaleOptions, steps: Sequence[Step]) -> Grid:
    """Return the table of a measurement."""
    rows = [
        (
            step.vehicles,
            step.answered,
            step.failed,
            1000 * step.p50,
            1000 * step.p99,
            step.broker_us,
            100 * step.broker_share,
            step.broker_bytes / 2**20,
            step.vehicles_us,
            step.worker_us,
        )
        for step in steps
    ]
    headings = (
        "vehicles",
        "results/s",
        "failed",
        "p50 ms",
        "p99 ms",
        "broker us",
        "broker %",
        "broker MiB",
        "vehicles us",
        "worker us",
    )
    title = f"{options.rate:g} requests/s of {options.size} bytes from each vehicle; processor time for a request"
    return Grid(title, headings, rows, words=0)
