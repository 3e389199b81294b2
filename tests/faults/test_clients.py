"""Faults of clients: floods, restarts, slow consumers, duplicate names, clock jumps and oversized messages."""

from __future__ import annotations

import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from benchmarks.faults.traffic import EchoTraffic, beside
from benchmarks.faults.workers import Workers
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.announcer import ClientAnnouncer
from mqinfer.client.connection import connect
from mqinfer.client.request import make_request
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.lab.profiling.memory import resident_bytes
from mqinfer.protocol.envelope import CONTENT_TYPE, request_pieces
from mqinfer.protocol.errors import MessageTooLarge, NameTaken
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.faults.figures import Figures

Start = Callable[..., Any]
CLIENT = """
import json, sys, time
from benchmarks.faults.traffic import EchoTraffic
from mqinfer.protocol.topics import Topics
url, root, name, rate, requests, width = sys.argv[1:4] + [float(a) for a in sys.argv[4:]]
with EchoTraffic(url, Topics(root), name=name, width=int(width), window=100) as client:
    print("connected", flush=True)
    client.pace(rate, int(requests), timeout=30)
    client.wait()
    counters = client.check()
    print(json.dumps({"outcomes": client.outcomes(), "late": counters.late}), flush=True)
"""


@contextmanager
def client_process(
    url: str, topics: Topics, name: str, rate: float, requests: int, width: int = 2
) -> Iterator[subprocess.Popen[str]]:
    """Run a client in a separate process, connected before the body runs."""
    arguments = [url, topics.root, name, str(rate), str(requests), str(width)]
    process = subprocess.Popen([sys.executable, "-c", CLIENT, *arguments], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        assert process.stdout.readline() == "connected\n"
        yield process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


def flood(url: str, topics: Topics, rate: float, seconds: float) -> int:
    """Publish requests to the model's channel without a window; return their number."""
    link = make_link(url, client_id="flooder")
    link.open()
    sent, start = 0, time.monotonic()
    try:
        while (now := time.monotonic() - start) < seconds:
            for _ in range(int(now * rate) - sent):
                request = make_request("echo", {"x": np.full((1, 2), sent, np.int64)}, {})
                payload, *tail = request_pieces(request)
                reply = topics.result("echo", "flooder", f"{sent:032x}")
                link.publish(
                    Message(
                        topics.infer("echo", "flooder"),
                        b"".join(map(bytes, (payload, *tail))),
                        content_type=CONTENT_TYPE,
                        response_topic=reply,
                        correlation_data=sent.to_bytes(16),
                    )
                )
                sent += 1
            time.sleep(0.01)
    finally:
        link.close()
    return sent


def test_flood(workers: Start, traffic: Start, broker_url: str, topics: Topics, figure: Figures, pick: Start) -> None:
    """One client floods the workers with four times their capacity; another one is served as before."""
    workers(20, 20, 20)
    seconds = pick(3, 30)
    calm: EchoTraffic = traffic()
    calm.pace(10, 10 * seconds)
    busy, other = traffic(), traffic(window=64)
    enough = time.monotonic() + seconds + 1

    def saturate() -> None:
        while time.monotonic() < enough:
            other.burst(50)
            other.wait()

    with beside(saturate):
        busy.pace(10, 10 * seconds)
    flooded: EchoTraffic = traffic()
    sent: list[int] = []
    with beside(lambda: sent.append(flood(broker_url, topics, 600, seconds + 1))):
        time.sleep(0.5)
        flooded.pace(10, 10 * seconds)
    for client in (calm, busy, other, flooded):
        client.served()
    before, beside_one, after = (client.percentile(0.95) for client in (calm, busy, flooded))
    row = f"client A floods with 600/s of 150 without a window, B asks 10/s for {seconds} s"
    figure(row, "A's requests", sent[0])
    p95 = f"{before * 1e3:.0f} ms; {beside_one * 1e3:.0f} ms; {after * 1e3:.0f} ms"
    figure(row, "B's p95 alone; beside a client with a window; beside the flood", p95)
    moved = after / beside_one - 1
    figure(row, "B's p95 moves by (flood against window)", f"{moved:+.0%}", "< 20 %", passed=moved < 0.2)
    figure(row, "B's p95 moves by (flood against alone)", f"{after / before - 1:+.0%}")
    slowest = max(each.took for client in (calm, busy, other, flooded) for each in client.ended)
    figure(row, "slowest of everybody's with a window", f"{slowest:.2f} s")
    assert after < 0.5 + 4 * beside_one, "a busy machine slows both down"


def test_edge_restart(workers: Start, traffic: Start, broker_url: str, topics: Topics, figure: Figures) -> None:
    """An edge is killed with a hundred requests in flight; its successor of the same name gets none of the replies."""
    crew: Workers = workers(20, 20)
    with client_process(broker_url, topics, "edge-1", 10_000, 100) as process:
        time.sleep(0.3)
        process.kill()
        process.wait()
    successor: EchoTraffic = traffic(name="edge-1")
    successor.pace(40, 80)
    successor.served()
    counters = successor.requester.counters()
    row = "an edge is killed with 100 requests pending, and started again under its name"
    figure(row, "ok of its own", f"{successor.asked}/{successor.asked}", "all", passed=True)
    figure(row, "replies to the killed process, counted as late", counters.late)
    tail = max(each.took for each in successor.ended[-20:])
    figure(row, "slowest of the last 20", f"{tail * 1e3:.0f} ms")
    assert crew.crashes == 0


def test_slow_consumer(
    workers: Start, traffic: Start, own_broker: MosquittoServer, topics: Topics, figure: Figures, pick: Start
) -> None:
    """A client that stops reading for three seconds loses no reply and does not affect others."""
    width = 12_500
    workers(20, 20, 20, url=own_broker.url, width=width)
    other: EchoTraffic = traffic(own_broker.url, width=width)
    seconds = pick(4, 20)
    with client_process(own_broker.url, topics, "slow", 40, 40 * seconds, width) as slow:
        time.sleep(1)
        other.pace(20, 40)
        other.wait()
        calm = other.percentile(0.95)
        before = len(other.ended)
        slow.send_signal(signal.SIGSTOP)
        other.pace(20, 60)
        slow.send_signal(signal.SIGCONT)
        assert slow.stdout
        told = json.loads(slow.stdout.readline())
    other.served()
    took = sorted(each.took for each in other.ended[before:])
    row = "a client with 100 kB a reply is stopped for 3 s (a slow consumer)"
    figure(row, "its outcomes", told["outcomes"], "ok", passed=set(told["outcomes"]) == {"ok"})
    p95 = f"{calm * 1e3:.0f} ms; {took[int(0.95 * len(took))] * 1e3:.0f} ms"
    figure(row, "another one's p95, before and meanwhile", p95)
    figure.bound(row, "broker's resident memory", resident_bytes(own_broker.pid) / 2**20, 250, ".0f MB")
    assert told["outcomes"] == {"ok": 40 * seconds}


def test_twin_clients(workers: Start, traffic: Start, own_broker: MosquittoServer, figure: Figures) -> None:
    """Of two clients with one name each receives its own replies and no others."""
    workers(20, url=own_broker.url)
    twins: list[EchoTraffic] = [traffic(own_broker.url, name="twin"), traffic(own_broker.url, name="twin")]
    for _ in range(6):
        for client in twins:
            client.pace(10, 5)
    for client in twins:
        client.served()
    connects = own_broker.log().count("as twin~")
    row = "twin client names for 6 s"
    figure.bound(row, "connects", connects, 3, "d")
    figure(row, "outcomes", [client.outcomes() for client in twins], "ok", passed=True)
    assert connects <= 3


def test_twin_edges(workers: Start, own_broker: MosquittoServer, topics: Topics, figure: Figures) -> None:
    """Of two edges with one name the second is refused; where it takes over, the first one's requests end."""
    workers(200, url=own_broker.url)

    def twin(incarnation: int, *, take_over: bool = False) -> Requester:
        announcer = ClientAnnouncer("twin", topics, "drive.bag", "echo", window=16, incarnation=incarnation)
        return connect(own_broker.url, "twin", topics, announcer=announcer, take_over=take_over)

    with ExitStack() as stack:
        elder = twin(1)
        stack.callback(elder.close)
        ended: SimpleQueue[InferResult] = SimpleQueue()
        request = make_request("echo", {"x": np.zeros((1, 2), np.int64)}, {})
        for _ in range(3):
            elder.submit(request, 30, ended.put)
        with pytest.raises(NameTaken, match="another process has the name 'twin'"):
            twin(2)
        elder.submit(request, 30, ended.put)  # it goes on
        younger = twin(3, take_over=True)
        stack.callback(younger.close)
        outcomes = [ended.get(timeout=10).outcome for _ in range(4)]
        assert isinstance(elder.failure, NameTaken)
        with pytest.raises(NameTaken, match="another process named 'twin' has started"):
            elder.submit(request, 30, ended.put)
        younger.submit(request, 30, ended.put)
        assert ended.get(timeout=10).outcome is Outcome.OK
        assert younger.failure is None
    assert Outcome.CANCELLED in outcomes
    assert set(outcomes) <= {Outcome.OK, Outcome.CANCELLED}
    connects = own_broker.log().count("as twin~")
    row = "twin edge names"
    figure.bound(row, "connects", connects, 4, "d")
    figure(row, "the elder's requests", [str(outcome) for outcome in outcomes])
    assert connects <= 4


def test_twin_workers(workers: Start, traffic: Start, own_broker: MosquittoServer, figure: Figures) -> None:
    """Of two workers with one name the first exits without a restart; all requests are served."""
    elder: Workers = workers(20, url=own_broker.url, name="twin")
    client: EchoTraffic = traffic(own_broker.url)
    client.burst(50)
    younger: Workers = workers(20, url=own_broker.url, name="twin")
    client.pace(20, 120)
    client.served()
    connects = own_broker.log().count("as twin-0")
    row = "twin worker names for 6 s"
    figure.bound(row, "connects", connects, 3, "d")
    figure(row, "outcomes", client.outcomes(), "ok", passed=True)
    figure(row, "publishes a request", f"{client.publishes():.3f}")
    assert connects <= 3
    assert (elder.failed, younger.failed) == (1, 0)


def test_clock_jumps(
    serve: Start,
    write_echo: Start,
    traffic: Start,
    figure: Figures,
    monkeypatch: pytest.MonkeyPatch,
    broker_url: str,
    topics: Topics,
) -> None:
    """The wall clock of client and worker jumps by an hour at each reading, without effect on any request."""
    serve(broker_url, write_echo("echo", ("x", "INT64", [1, 2])), topics=topics)
    jumps = itertools.count()
    real, real_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: real() + 3600 * (-1) ** next(jumps))
    monkeypatch.setattr(time, "time_ns", lambda: real_ns() + 3600 * 10**9 * (-1) ** next(jumps))
    client: EchoTraffic = traffic()
    for _ in range(100):
        time.time()
        client.ask(60.0)
    client.served()
    row = "the wall clock jumps by +-1 h at each reading, client and worker"
    figure.every(row, "ok", len(client.ended), client.asked)


def test_oversize(topics: Topics, figure: Figures, tmp_path: Path) -> None:
    """A message at the broker's limit passes; one byte more is refused by the client, and the connection stays."""
    limit = 200_000
    configuration = lambda port: render(port).replace("max_packet_size 67108864", f"max_packet_size {limit}")  # noqa: E731
    with MosquittoServer(configuration=configuration) as broker:
        refused = []
        link = make_link(broker.url, client_id="oversize")
        link.open()
        arrived: list[int] = []
        link.subscribe("t/+", lambda message: arrived.append(len(message.payload)))
        for qos in (0, 1):
            size = limit
            while True:
                try:
                    link.publish(Message(f"t/{qos}", bytes(size), qos=qos))
                except MessageTooLarge:
                    refused.append(size)
                    size -= 1
                else:
                    break
        deadline = time.monotonic() + 10
        while len(arrived) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
        link.close()
        assert len(arrived) == 2
        assert limit - max(arrived) < 20
        assert broker.log().count("as oversize") == 1
        with Workers(tmp_path / "small", broker.url, (5,), topics, width=2), EchoTraffic(broker.url, topics) as client:
            large = make_request("echo", {"x": np.zeros((1, limit // 8), np.int64)}, {})
            with pytest.raises(MessageTooLarge, match=str(limit)):
                client.requester.submit(large, 10, lambda _: None)
            client.burst(20)
            client.wait()
            client.check()
            assert client.outcomes() == {"ok": 20}
            assert broker.log().count(f"as {client.requester.name}~") == 1
    row = "at the broker's Maximum Packet Size and above it, QoS 0 and 1"
    figure(row, "at the limit", "arrives", "arrives", passed=True)
    figure(row, "1 byte above", "refused here, connection stands", "refused locally", passed=True)
