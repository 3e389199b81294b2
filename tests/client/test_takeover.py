"""Another connection that takes a client's id: it has to know it, and then it costs a reconnect and no request."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest

from mqinfer import Client, ClientOptions
from mqinfer.broker import Message, make_link
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client.announcer import ClientAnnouncer
from mqinfer.client.connection import connect
from mqinfer.client.request import make_request
from mqinfer.client.result import InferResult
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.client.conftest import Serve, WriteEcho
from tests.patience import PATIENT, wait_until

pytestmark = pytest.mark.broker

PATIENCE = 60
ECHO = ("x", "INT64", [-1, 2])


def take(server: MosquittoServer, client_id: str) -> None:
    """Connect with a client id, wait until the broker has accepted, and leave."""
    name = client_id.encode()
    content = b"\x00\x04MQTT\x05\x02\x00\x0a\x00" + len(name).to_bytes(2) + name
    with socket.create_connection(("127.0.0.1", server.port), PATIENCE) as sock, suppress(OSError):
        sock.sendall(b"\x10" + bytes((len(content),)) + content)
        sock.recv(100)


def ids_in_log(server: MosquittoServer, name: str) -> list[str]:
    """What the administrator reads: the client ids of a name, in the order of their connections."""
    return re.findall(rf"New client connected from \S+ as ({re.escape(name)}~\S+)", server.log())


def only_id_in_log(server: MosquittoServer, name: str) -> str:
    """Return the one client id of a name, once the thread that reads Mosquitto's log has come to it."""
    wait_until(lambda: bool(ids_in_log(server, name)))
    (client_id,) = set(ids_in_log(server, name))
    return client_id


def guesses(states: dict[str, int], number: int) -> Iterator[str]:
    """Yield what client ids may be made of: names, incarnations, numbers."""
    for name, boot in list(states.items()):
        yield name
        for secret in (f"{boot:x}", str(boot), f"{boot + number % 1000:x}", f"{number:016x}"):
            yield f"{name}~{secret}"


def test_all_that_is_public_is_not_enough(server: MosquittoServer, serve: Serve, write_echo: WriteEcho) -> None:
    """An attacker takes over each id that it can make of names and incarnations: nothing happens to anybody."""
    topics = Topics()
    serve(server.url, write_echo("echo", ECHO, delay_ms=2), name="gpu-1")
    announcer = ClientAnnouncer("car-1", topics, "drive.bag", "echo", window=8)
    edge = connect(server.url, "car-1", topics, replace(PATIENT, window=8), announcer=announcer)
    stop, states, lost = threading.Event(), dict[str, int](), list[str]()
    attempts = 0

    def read(message: Message) -> None:
        name, state = message.topic.split("/")[-2], json.loads(bytes(message.payload))
        states[name] = state["boot"]
        if state["status"] == "lost":
            lost.append(name)

    spy = make_link(server.url, client_id="spy")
    spy.open()
    spy.subscribe("mqinfer/v1/+/+/state", read)

    def attack() -> None:
        nonlocal attempts
        while not stop.is_set():
            for client_id in guesses(states, attempts):
                take(server, client_id)
                attempts += 1

    attackers = [threading.Thread(target=attack) for _ in range(2)]
    ended: list[InferResult] = []
    done = threading.Semaphore(0)

    def settle(result: InferResult) -> None:
        ended.append(result)
        done.release()

    try:
        for attacker in attackers:
            attacker.start()
        for number in range(300):
            request = make_request("echo", {"x": np.full((1, 2), number, np.int64)}, {})
            edge.submit(request, PATIENCE, settle)
            assert done.acquire(timeout=PATIENCE)
        assert set(states) == {"gpu-1", "car-1"}
        wait_until(lambda: attempts > 100)
        counters = edge.counters()
    finally:
        stop.set()
        for attacker in attackers:
            attacker.join()
        edge.close()
        spy.close()
    assert [result.outcome for result in ended] == [Outcome.OK] * 300
    assert counters.retries == 0
    assert lost == [], "a will was published, so a connection was ended"


def test_the_right_id_costs_a_reconnect_and_no_request(
    server: MosquittoServer, serve: Serve, write_echo: WriteEcho
) -> None:
    """The broker's administrator takes client and worker over, once and then again and again: all requests succeed."""
    serve(server.url, write_echo("echo", ECHO, delay_ms=2), name="gpu-1")
    with Client(server.url, name="car-1", options=ClientOptions(window=8)) as client:
        for name in ("car-1", "gpu-1"):
            client_id = only_id_in_log(server, name)
            for times in (1, 15):
                futures = [
                    client.submit("echo", {"x": np.full((1, 2), number, np.int64)}, timeout=PATIENCE)
                    for number in range(200)
                ]
                for _ in range(times):
                    before = len(ids_in_log(server, name))
                    take(server, client_id)
                    deadline = threading.Event()
                    for _ in range(PATIENCE * 10):  # until it is back, to be taken over again
                        if len(ids_in_log(server, name)) >= before + 2:
                            break
                        deadline.wait(0.1)
                for number, future in enumerate(futures):
                    assert (future.result(PATIENCE).outputs["x"] == number).all()
            assert set(ids_in_log(server, name)) == {client_id}, "it keeps its id"
        counters = client.counters()
        assert counters.outcomes[Outcome.OK] == counters.submitted == 800
