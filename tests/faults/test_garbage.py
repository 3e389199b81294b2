"""Bad messages to workers and clients, and a crash of a connection's thread."""

from __future__ import annotations

import ctypes
import multiprocessing
import random
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.faults.traffic import EchoTraffic
from benchmarks.faults.workers import Workers
from benchmarks.faults.workers import write_echo as write_model
from mqinfer.broker import make_link
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.paho.session import Session
from mqinfer.client.request import make_request
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.pipeline import RunningRequests
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ModelPlace, ProcessSpec, run_process
from mqinfer.models.repository import Repository
from mqinfer.protocol.envelope import CONTENT_TYPE, request_pieces
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.faults.figures import Figures

Start = Callable[..., Any]


def good_request() -> bytes:
    """Return a request as a client encodes it."""
    request = make_request("echo", {"x": np.array([[7, 7]], np.int64)}, {})
    return b"".join(map(bytes, request_pieces(request)))


def damaged(chance: random.Random) -> bytes:
    """Return noise, an envelope with flipped bits, or a part of one."""
    good = bytearray(good_request())
    kind = chance.randrange(4)
    if kind == 0:
        return chance.randbytes(chance.randrange(200))
    if kind == 1:
        return bytes(good[: chance.randrange(len(good))])
    if kind == 2:
        return b"MQI1" + struct.pack("<I", chance.randrange(2**32)) + chance.randbytes(64)
    for _ in range(chance.randrange(1, 6)):
        good[chance.randrange(len(good))] ^= 1 << chance.randrange(8)
    return bytes(good)


def garbage(topics: Topics, victim: EchoTraffic, worker: str, count: int) -> Iterator[Message]:
    """Yield bad messages of every kind, from a seed, for the topics of a worker and of a client."""
    chance = random.Random(11)  # noqa: S311 - no secret depends on it
    name = victim.requester.name
    to = [
        topics.infer("echo", "vandal"),
        topics.infer("echo", "vandal", "1"),
        topics.lane(worker, "echo", "vandal"),
        topics.lane(worker, "other", "vandal"),
        topics.cancel("echo", "vandal"),
        topics.result("echo", name, "0" * 32),
        topics.result("echo", name, "no_id").replace("_", " "),
        topics.worker_state("vandal-worker"),
        topics.worker_state(worker) + "x",
    ]
    replies = [
        None,
        "",
        topics.result("echo", name, "1" * 32),  # another client's results: a confused deputy would write there
        topics.result("echo", "vandal", "2" * 32),
        topics.worker_state(worker),
        "somewhere/else",
        "a" * 60_000,
    ]
    for number in range(count):
        good = number % 5 == 0
        yield Message(
            chance.choice(to),
            good_request() if good else damaged(chance),
            qos=number % 2,
            content_type=chance.choice([CONTENT_TYPE, None, "application/json", "text/html", "x" * 1000]),
            response_topic=chance.choice(replies) or None,
            correlation_data=chance.choice([None, b"", chance.randbytes(16), chance.randbytes(1000)]),
            expiry_s=chance.choice([None, 1, 2**32 - 1]),
            user_properties=chance.choice([(), (("traceparent", "?"),), (("a", "b"),) * 20]),
        )


def broken_packets(port: int, count: int) -> None:
    """Send invalid MQTT packets to the broker: bad UTF-8 in topics, wrong lengths, noise."""
    chance = random.Random(5)  # noqa: S311 - no secret depends on it
    connect = bytes.fromhex("101000044d5154540502003c0000036261") + b"d"
    publishes = [
        b"\x30\x07\x00\x02\xc3\x28\x00ab",  # a topic that is no UTF-8
        b"\x30\x08\x00\x03a\x00b\x00cd",  # a NUL in it
        b"\x30\x06\x00\x03a/#\x00",  # a wildcard
        b"\x36\x05\x00\x01a\x00",  # QoS 3
        b"\x30\xff\xff\xff\xff\x7f",  # a length of five bytes
    ]
    for number in range(count):
        # The broker may hang up after the first of the two.
        with suppress(ConnectionError), socket.create_connection(("127.0.0.1", port), timeout=5) as raw:
            raw.sendall(connect if number % 3 else chance.randbytes(40))
            raw.sendall(publishes[number % len(publishes)] + chance.randbytes(20))


def test_garbage(workers: Start, traffic: Start, own_broker: Any, topics: Topics, figure: Figures, pick: Start) -> None:
    """Thousands of bad messages crash no process and cause no reply to a foreign topic; others are served meanwhile."""
    crew: Workers = workers(5, 5, url=own_broker.url)
    client: EchoTraffic = traffic(own_broker.url, first=20)
    foreign: list[str] = []
    link = make_link(own_broker.url, client_id="vandal")
    link.open()
    link.subscribe("somewhere/#", lambda message: foreign.append(message.topic))
    count = pick(2000, 20_000)
    for number, message in enumerate(garbage(topics, client, crew.names[0], count)):
        link.publish(message)
        if number % 20 == 0:
            client.ask(30)
    link.close()
    broken_packets(own_broker.port, pick(50, 500))
    client.pace(50, 50)
    client.wait()
    counters = client.check()
    row = f"{count} bad messages to the topics of workers and clients, bad packets to the broker"
    figure(row, "workers that crashed", crew.crashes, "0", passed=crew.crashes == 0)
    figure(row, "answers to foreign topics", len(foreign), "0", passed=not foreign)
    figure(row, "ok meanwhile", f"{counters.outcomes[Outcome.OK]}/{client.asked}", "all", passed=True)
    figure(row, "bad replies refused by the client", f"{counters.malformed} unreadable, {counters.late} of no request")
    assert crew.crashes == 0
    assert not foreign
    assert counters.outcomes[Outcome.OK] == client.asked, client.outcomes()
    assert counters.malformed > 0


def run_and_fail(spec: ProcessSpec, pipe: Connection) -> None:
    """Run a worker process whose connection's thread crashes a second after its start."""
    tick, until = Session.tick, time.monotonic() + 1.0

    def failing(session: Session) -> None:
        if time.monotonic() > until:
            raise RuntimeError("a defect, for the test")
        tick(session)

    Session.tick = failing  # type: ignore[method-assign,assignment]
    run_process(spec, ModelPlace(pipe, ctypes.c_double(), (ctypes.c_ubyte * RunningRequests.SIZE)()))


def test_a_dead_connection_ends_the_process(tmp_path: Path, broker_url: str, topics: Topics, figure: Figures) -> None:
    """A worker process whose connection's thread has crashed exits with a failure code."""
    repository = write_model(tmp_path / "repository", 1)
    template = ProcessSpec(repository, "", 0, BrokerAddress.parse(broker_url), WorkerOptions("doomed", topics))
    (spec,) = plan(Repository(repository), template)
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=run_and_fail, args=(spec, theirs))
    process.start()
    theirs.close()
    try:
        assert ours.poll(60)
        assert ours.recv().error == ""
        start = time.monotonic()
        process.join(30)
        took = time.monotonic() - start
        row = "the thread of a worker's connection crashes a second after the start"
        figure(row, "exit code", process.exitcode, "not 0", passed=process.exitcode not in {0, None})
        figure.bound(row, "ended after", took, 2, ".1f s", why="1 s and 1 s")
        assert process.exitcode not in {0, None}
    finally:
        process.kill()
        process.join()
        ours.close()
