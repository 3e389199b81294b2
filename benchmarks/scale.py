"""How far one broker carries: simulated vehicles, more at each step, and what each step costs the broker.

A vehicle is a whole client: a connection, a state of its own, the states of all workers, lanes. A hundred share one
process and one asyncio loop, and a worker answers with a few bytes, so that the broker has as much to do as possible.
Requests have their times in advance, and a delay counts from there: what waits behind another one is late, too.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer

from mqinfer.bench.comparing import CompareOptions, Comparison, report_comparison
from mqinfer.bench.contestants.driving import Load
from mqinfer.bench.contestants.site import Contestant, Pids, Site
from mqinfer.bench.contestants.ways import Target
from mqinfer.bench.workloads import Workload
from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.nats.server import NatsServers
from mqinfer.cli.options import numbers
from mqinfer.lab.profiling.memory import resident_bytes
from mqinfer.lab.report_files import Report
from mqinfer.lab.zoo.onnx_graph import OnnxGraph
from mqinfer.protocol.errors import ConfigError, ModelFailed

_MODEL = "first_bytes"
_WAITING = 1024
"""Requests of a vehicle at a time, more than there are within their timeout: none waits for another one."""
_PATIENCE_S = 120.0


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    """What is tried; each field is an option of `python -m benchmarks scale`."""

    vehicles: Annotated[str, typer.Option(help="Numbers of vehicles, separated by commas.")] = "10,100,300,1000"
    rate: Annotated[float, typer.Option(help="Requests a second of each vehicle.", min=0.01)] = 1.0
    size: Annotated[int, typer.Option(help="Bytes of a request.", min=8)] = 1000
    seconds: Annotated[float, typer.Option(help="Length of each step, in seconds.", min=1)] = 10.0
    broker: Annotated[str | None, typer.Option(help="A broker that runs; a Mosquitto of its own by default.")] = None
    pid: Annotated[int | None, typer.Option(help="Process of that broker.")] = None
    nats: Annotated[int, typer.Option(help="So many nats-servers in place of a Mosquitto.", min=0)] = 0


def measure_scale(options: ScaleOptions, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Measure each number of vehicles, one after the other.

    Raises:
        ConfigError: A broker of another kind is named without its process, or a number of vehicles is wrong.
    """
    vehicles = numbers("--vehicles", [options.vehicles], int)
    if options.broker is not None and options.pid is None:
        raise ConfigError("--broker: its processor time can't be measured without --pid, that of its process")

    @cache  # the same broker and worker for each number of vehicles
    def enter(site: Site) -> tuple[Target, Pids]:
        url, pids = site.use(_broker(options))
        workers = site.serve(site.workload, BrokerAddress.parse(url), capacity=4096)
        return Target("mqtt", url=url, announce="scale"), {"broker": pids, "worker": workers}

    load = Load(seconds=options.seconds, rate=options.rate)
    how = CompareOptions(vehicles, load=load, callers=(_WAITING,), rounds=1)
    kind = options.broker or (f"{options.nats} nats-servers" if options.nats else "Mosquitto")
    with TemporaryDirectory(prefix="mqinfer-scale-") as folder:
        workload = _workload(Path(folder), options.size)
        comparison = Comparison([workload], [Contestant(kind, enter)], how, progress)
        comparison.run()
    return report_comparison(comparison, how, f"Requests of {options.size:,} bytes")


@contextmanager
def _broker(options: ScaleOptions) -> Iterator[tuple[str, Sequence[int]]]:
    if options.broker is not None and options.pid is not None:
        yield options.broker, (options.pid,)
    elif options.nats:
        with NatsServers(nodes=options.nats) as servers:
            yield servers.url, servers.pids
    else:
        with MosquittoServer(configuration=_for_many) as server:
            yield server.url, (server.pid,)


def _for_many(port: int) -> str:
    """Return Mosquitto's configuration, with more connections than most sites have."""
    return render(port).replace("\nmax_connections 1000\n", "\nmax_connections 100000\n")


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
