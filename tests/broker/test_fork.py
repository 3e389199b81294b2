"""Processes with links that fork: whatever the child does and however it ends, nothing reaches the parent's socket."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from tempfile import TemporaryFile

import pytest

from mqinfer.broker.mosquitto.configuration import render
from mqinfer.broker.mosquitto.server import MosquittoServer
from tests.patience import wait_until
from tests.ports import free_port

pytestmark = pytest.mark.broker

Unique = Callable[[str], str]
FORKS = """
import gc, os, sys
from queue import SimpleQueue
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.paho.link import PahoLink

url, client_id, how, *files = sys.argv[1:]
named = dict(zip(("ca_file", "cert_file", "key_file"), files))
arrived, told = SimpleQueue(), []
link = PahoLink(BrokerAddress.parse(url, **named), client_id=client_id, on_connection=told.append)
link.open()
topic = f"{client_id}/t"
link.subscribe(topic, lambda message: arrived.put(bytes(message.payload)))
for _ in range(5):
    child = os.fork()
    if not child and how == "exits":
        sys.exit(0)
    if not child and how == "is collected":
        del link
        gc.collect()
        sys.exit(0)
    if not child and how == "uses it":
        for use in (link.close, link.open, lambda: link.publish(Message(topic, b"child"))):
            try:
                use()
            except RuntimeError:
                continue
            os._exit(1)
        sys.exit(0)
    if not child:  # stays: the parent's end must be the connection's end
        import signal
        signal.alarm(60)
        signal.pause()
    for size in (1, 20_000):
        link.publish(Message(topic, b"x" * size))
        assert len(arrived.get(timeout=30)) == size
    if how == "stays":
        break
    assert os.waitpid(child, 0)[1] == 0
    link.publish(Message(topic, b"after"))
    assert arrived.get(timeout=30) == b"after"
assert told == [True]
if how == "stays":
    print(child, flush=True)
    os._exit(0)  # a crash: no DISCONNECT
link.close()
print("fine", flush=True)
"""


@pytest.fixture(params=["tcp", "websockets", "tls"])
def target(request: pytest.FixtureRequest) -> Iterator[tuple[MosquittoServer, list[str]]]:
    """A broker, and the URL and files to connect with, for each kind of connection."""
    if request.param == "tls":
        secured = request.getfixturevalue("secured")
        login = secured.logins["witness"]
        files = [str(path) for path in (login.ca_file, login.cert_file, login.key_file)]
        yield secured.server, [f"mqtts://127.0.0.1:{secured.server.port}", *files]
        return
    websockets = free_port()
    with MosquittoServer(configuration=lambda port: render(port, websockets_port=websockets)) as server:
        yield server, [server.url if request.param == "tcp" else f"ws://127.0.0.1:{websockets}"]


def run(arguments: list[str], how: str, client_id: str) -> subprocess.CompletedProcess[str]:
    """Run the script with five children, or with one that stays."""
    url, *files = arguments
    # Into a file: a child that stays would keep a pipe open.
    with TemporaryFile("w+") as output:
        # Python 3.12 and later warn of each fork of a process with threads, which is what is tried here.
        command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", FORKS, url, client_id, how, *files]
        done = subprocess.run(command, stdout=output, stderr=output, text=True, check=False, timeout=150)
        output.seek(0)
        return subprocess.CompletedProcess(command, done.returncode, output.read())


@pytest.mark.parametrize("how", ["exits", "is collected", "uses it"])
def test_children_that_end(target: tuple[MosquittoServer, list[str]], unique: Unique, how: str) -> None:
    """Their interpreters end in the ordinary way: the parent's messages go on, over its one connection."""
    server, arguments = target
    client_id = unique("forks")
    done = run(arguments, how, client_id)
    assert (done.returncode, done.stdout) == (0, "fine\n")
    assert server.log().count(f" as {client_id} ") == 1


def test_a_child_that_stays(target: tuple[MosquittoServer, list[str]], unique: Unique) -> None:
    """When the parent crashes the broker notices, although a child lives on: it does not hold the connection open."""
    server, arguments = target
    client_id = unique("forks")
    done = run(arguments, "stays", client_id)
    assert done.returncode == 0, done.stdout
    child = int(done.stdout)
    try:
        wait_until(lambda: f"Client {client_id} " in server.log())
        ends = [line for line in server.log().splitlines() if f"Client {client_id} " in line]
        assert len(ends) == 1
        assert "timeout" not in ends[0]
    finally:
        os.kill(child, signal.SIGKILL)
