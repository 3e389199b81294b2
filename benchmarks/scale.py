"""How far one broker carries: simulated vehicles, more at each step, and what each step costs the broker.

A vehicle is a whole client: a connection, a state of its own, the states of all workers, lanes. A hundred share one
process and one asyncio loop, and a worker answers with a few bytes, so that the broker has as much to do as possible.
Requests have their times in advance, and a delay counts from there: what waits behind another one is late, too.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from mqinfer.bench.contestants.site import Contestant, Pids, Site
from mqinfer.bench.contestants.ways import Target
from mqinfer.bench.workloads import Workload
from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.nats.server import NatsServers
from mqinfer.lab.profiling.memory import resident_bytes
from mqinfer.lab.zoo.onnx_graph import OnnxGraph
from mqinfer.protocol.errors import ModelFailed

_PATIENCE_S = 120.0


@contextmanager
def scale_workload(size: int) -> Iterator[Workload]:
    """Yield a model that takes any number of bytes and returns the first eight, and a request of a size for it."""
    graph = OnnxGraph("uint8", ("n", "size"))
    graph.node("Slice", "input", graph.integers(0), graph.integers(8), graph.integers(1), output="first")
    graph.add_output("first", "uint8", ("n", 8))
    with TemporaryDirectory(prefix="mqinfer-scale-") as folder:
        path = Path(folder) / "first_bytes" / "1" / "model.onnx"
        path.parent.mkdir(parents=True)
        graph.write(path)
        content = np.zeros((1, size), np.uint8)
        yield Workload("scale", "first_bytes", path, "input", content, "first", content[:, :8])


def one_broker(nats: int) -> Contestant:
    """Return a Mosquitto, or a cluster of so many nats-servers, the same one for each number of vehicles."""

    @cache
    def enter(site: Site) -> tuple[Target, Pids]:
        if nats:
            cluster = site.use(NatsServers(nodes=nats))
            url, pids = cluster.url, cluster.pids
        else:
            server = site.use(MosquittoServer(configuration=_for_many))
            url, pids = server.url, [server.pid]
        workers = site.serve(site.workload, BrokerAddress.parse(url), capacity=4096)
        return Target("mqtt", url=url, announce="scale"), {"broker": pids, "worker": workers}

    return Contestant(f"{nats} nats-servers" if nats else "Mosquitto", enter)


def _for_many(port: int) -> str:
    """Return a configuration that takes more connections than most sites have."""
    return render(port).replace("\nmax_connections 1000\n", "\nmax_connections 100000\n")


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
