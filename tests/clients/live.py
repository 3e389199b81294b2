"""What the live tests of each language's client share: its programs, workers as processes, and what befalls both."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper

from mqinfer import Client, InferResult
from mqinfer.broker import BrokerAddress, make_link
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto import BrokerFolder, Ports, Role
from mqinfer.broker.mosquitto.folder import Login
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.mosquitto.serving import secured
from mqinfer.codecs import encode_tensor
from mqinfer.lab import zoo
from mqinfer.protocol import envelope
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import InferResponse
from tests.onnx_files import save_onnx
from tests.patience import PATIENCE_S, PATIENT
from tests.ports import free_port

_TIMEOUT_S = 900
"""Of a program: under a sanitizer and on a busy machine it needs minutes for what takes seconds."""
_ECHOES = {
    "echo": (("x", "FP32", [-1, 4]),),
    "slow": (("x", "FP32", [-1, 4]),),
    "words": (("words", "BYTES", [-1]),),
    "integers": (("big", "INT64", [-1]),),
    "mask": (("mask", "UINT8", [-1, 48, 64]),),
    "two": (("a", "INT32", [-1]), ("b", "UINT8", [-1])),
}


@contextmanager
def running(*command: str | Path) -> Iterator[subprocess.Popen[str]]:
    """Run a program, whose output the test reads; it is ended with the test, whatever it does."""
    pipe = subprocess.PIPE
    # What a sanitizer of the test's own process set must not reach it.
    kept = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=kept)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def finished(process: subprocess.Popen[str]) -> str:
    """End a program's input and return the rest of what it prints; fail with its errors where it has any."""
    out, errors = process.communicate(timeout=_TIMEOUT_S)
    assert (process.returncode, errors) == (0, ""), (process.returncode, errors[-4000:])
    return out


def output(*command: str | Path) -> str:
    """Return what a program prints; fail with its errors where it has any."""
    with running(*command) as process:
        return finished(process)


def lines_until(process: subprocess.Popen[str], line: str) -> None:
    """Read a program's output until a line comes."""
    assert process.stdout is not None
    for each in process.stdout:
        if each.strip() == line:
            return
    pytest.fail(f"the program ended before it printed {line!r}: {process.stderr and process.stderr.read()[-4000:]}")


class WorkerProcess:
    """`mqinfer worker`, with its processes, as a group that can be killed."""

    def __init__(self, url: str, root: str, repository: Path, name: str, log: Path) -> None:
        arguments = {"broker": url, "root": root, "repository": repository, "name": name}
        options = [text for option, value in arguments.items() for text in (f"--{option}", str(value))]
        self._command: Sequence[str] = [sys.executable, "-m", "mqinfer", "worker", *options]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; the clients wait until it serves."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """Kill it and its processes at once, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def stop(self) -> None:
        """End it as an operator does, if it runs."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
            self._process = None


@contextmanager
def worker(url: str, root: str, repository: Path, name: str, log: Path) -> Iterator[WorkerProcess]:
    """Run a worker; it may be killed and started again meanwhile."""
    process = WorkerProcess(url, root, repository, name, log)
    process.start()
    try:
        yield process
        process.stop()
    finally:
        process.kill()


def check_first_program(program: Path, url: str, serve: Callable[..., Any], repository: Path) -> None:
    """Serve `small_16`, and compare what a first program prints with what Python's client is answered."""
    zoo.build(repository, ["small_16"])
    served = serve(url, repository, "small_16")
    *numbers, name = output(program, url).split()
    with Client(url, options=PATIENT) as client:
        expected = client.infer("small_16", {"input": np.ones((1, 16), np.float32)}).outputs["output"][0]
    assert np.allclose([float(each) for each in numbers], expected, atol=1e-5)
    assert name == served.name


def write_half_plus_two(repository: Path) -> None:
    """Write the model that every serving system is tried with: half of the input, plus 2."""
    nodes = [helper.make_node("Mul", ["x", "half"], ["h"]), helper.make_node("Add", ["h", "two"], ["y"])]
    path, end = repository / "half_plus_two" / "123" / "model.onnx", (TensorProto.FLOAT, ["n"])
    save_onnx(path, nodes, {"x": end}, {"y": end}, {"half": np.float32(0.5), "two": np.float32(2)})


def write_models(write_echo: Callable[..., Path]) -> Path:
    """Write echoes of each kind of tensor, `slow` that takes a second, and `half_plus_two`; return their repository."""
    for name, inputs in _ECHOES.items():
        repository = write_echo(name, *inputs, delay_ms=1000 if name == "slow" else 0)
    write_half_plus_two(repository)
    return repository


def write_deadly(write_echo: Callable[..., Path]) -> Path:
    """Write `deadly`, whose input 13 ends its worker's process; return its repository."""
    repository = write_echo("deadly")
    path = repository / "deadly" / "1" / "model.echo"
    path.write_text(f"die_on = 13\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    return repository


def output_while_killed(repository: Path, root: str, log: Path, command: Callable[[str], Sequence[str | Path]]) -> str:
    """Kill the worker four times and the broker twice while a program asks, and return what it printed last.

    Args:
        repository: With the models that it asks.
        root: Of the topics.
        log: For the worker.
        command: The program, by the broker's URL; it prints a line for each hundred of answers.
    """
    with (
        MosquittoServer() as broker,
        worker(broker.url, root, repository, f"{root}-w", log) as server,
        running(*command(broker.url)) as process,
    ):
        for answered in range(100, 700, 100):
            lines_until(process, str(answered))
            killed = broker if answered % 300 == 0 else server
            killed.kill()
            killed.start()
        return finished(process)


@contextmanager
def opened(url: str, client_id: str) -> Iterator[Any]:
    """Connect to a broker without a client's rules."""
    link = make_link(url, client_id=client_id)
    try:
        link.open()
        yield link
    finally:
        link.close()


@contextmanager
def forger(url: str, root: str, model: str, asker: str) -> Iterator[None]:
    """Answer with five replies that are damaged or another's before the right one, `x` of ones.

    Args:
        url: Of the broker.
        root: Of the topics.
        model: What the requests ask.
        asker: Name of the client that asks.
    """
    tensor = encode_tensor("x", np.ones((1, 4), np.float32))

    def reply(message: Message) -> None:
        request = envelope.decode_request(message.payload)
        right = Topics(root).result(model, asker, request.id)
        assert message.response_topic == right

        def send(payload: bytes, topic: str = right) -> None:
            link.publish(Message(topic, payload, correlation_data=message.correlation_data))

        answer = envelope.encode_response(InferResponse(request.id, model, outputs=(tensor,)))
        send(b"no message")
        send(envelope.encode_response(InferResponse("ab" * 16, model, outputs=(tensor,))))
        send(envelope.encode_response(InferResponse(request.id, "other", outputs=(tensor,))))
        send(envelope.encode_response(InferResponse(request.id, model, outputs=(tensor,), attempt=9)))
        send(answer, Topics(root).result(model, asker, "ab" * 16))
        send(answer)

    with opened(url, f"{root}-forger") as link:
        link.subscribe(f"{root}/models/{model}/infer/+", reply, share="workers")
        yield


def results_after_damage(url: str, root: str, model: str) -> list[InferResult]:
    """Publish two damaged results of a client `other`, then let it ask for four times 0, 1, 2, 3 and 4."""

    def acknowledge(taken: threading.Event, _: int) -> None:
        taken.set()

    topic = Topics(root).result(model, "other", "r1")
    with opened(url, f"{root}-vandal") as link, Client(url, name="other", root=root, options=PATIENT) as client:
        for payload, properties in ((b"no message", ()), (b"MQI1", (("xxh3", "0" * 16),))):
            taken = threading.Event()
            link.publish(Message(topic, payload, user_properties=properties), partial(acknowledge, taken))
            assert taken.wait(PATIENCE_S)
        return [client.infer(model, {"x": np.full((1, 4), number, np.float32)}) for number in range(5)]


@dataclass(frozen=True)
class SecuredBroker:
    """A broker that wants logins.

    Attributes:
        url: Its port for passwords.
        websockets_url: The same over websockets.
        address: Its port for certificates, with the login of a worker named `w`.
        car: The login `car-1`, by password; there is a `car-2` besides.
        driver: The login `car-3`, by certificate.
    """

    url: str
    websockets_url: str
    address: BrokerAddress
    car: Login
    driver: Login


@contextmanager
def secured_broker() -> Iterator[SecuredBroker]:
    """Run a broker with TLS and logins."""
    with TemporaryDirectory(prefix="mqinfer-live-") as place:
        Path(place).chmod(0o755)  # the account that Mosquitto takes on under root has to enter it
        folder = BrokerFolder(Path(place) / "broker")
        ports = Ports(1, free_port(), free_port(), "127.0.0.1")
        folder.init(ports=ports)
        car = folder.add(Role.VEHICLE, "car-1", by_password=True)
        folder.add(Role.VEHICLE, "car-2", by_password=True)
        driver = folder.add(Role.VEHICLE, "car-3")
        login = folder.add(Role.WORKER, "w")
        with secured(folder, 0) as server:
            files = {"ca_file": login.ca_file, "cert_file": login.cert_file, "key_file": login.key_file}
            yield SecuredBroker(
                f"mqtts://127.0.0.1:{ports.passwords}",
                f"wss://127.0.0.1:{ports.websockets}",
                BrokerAddress.parse(f"mqtts://127.0.0.1:{server.port}", **files),
                car,
                driver,
            )
