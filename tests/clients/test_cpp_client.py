"""The C++ client: golden and broken messages, and a real Mosquitto with real workers, under sanitizers."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.broker import BrokerAddress, make_link
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto import BrokerFolder, Ports, Role
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.mosquitto.serving import secured
from mqinfer.codecs import encode_tensor
from mqinfer.protocol import envelope
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import InferResponse
from tests.clients.cpp import built, counters, finished, lines_until, output, program
from tests.clients.node import worker
from tests.clients.test_js_client import write_half_plus_two
from tests.golden.test_golden import FOLDER
from tests.patience import PATIENCE_S, PATIENT
from tests.ports import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
_ECHOES = {
    "echo": (("x", "FP32", [-1, 4]),),
    "slow": (("x", "FP32", [-1, 4]),),
    "words": (("words", "BYTES", [-1]),),
    "integers": (("big", "INT64", [-1]),),
    "mask": (("mask", "UINT8", [-1, 48, 64]),),
    "two": (("a", "INT32", [-1]), ("b", "UINT8", [-1])),
}


@pytest.fixture(scope="module")
def programs() -> Path:
    """Folder of the programs, with the sanitizers for memory and undefined behaviour."""
    return built("address,undefined", "golden", "live", "infer")


def test_golden_and_broken_messages(programs: Path) -> None:
    """Each golden message is read, and written again byte by byte; each broken one is refused with its code."""
    (said,) = output(programs / "golden", str(FOLDER))
    assert re.fullmatch(r"10 golden messages, 1[89]\d broken ones", said)


@pytest.mark.broker
def test_answers_and_errors(
    programs: Path,
    broker_url: str,
    unique: Callable[[str], str],
    write_echo: Callable[..., Path],
    tmp_path: Path,
) -> None:
    """Numbers, words, 64-bit integers, masks, chosen outputs; each fault ends with the code that it should."""
    for name, inputs in _ECHOES.items():
        repository = write_echo(name, *inputs, delay_ms=1000 if name == "slow" else 0)
    write_half_plus_two(repository)
    root = unique("test")
    with worker(broker_url, root, repository, unique("w"), tmp_path / "log"):
        lines = output(programs / "live", "answers", broker_url, root)
    found = dict(line.split(": ", 1) for line in lines if ": " in line)
    halved = "y=2.500000,3.000000,4.500000"
    assert found == {
        "half_plus_two": halved,
        "version": halved,
        "words": f"words=<grün:5><:0><{'a' * 8}:5000>",
        "int64": f"big={-(2**63)},{2**53 + 1}",
        "outputs": "b=7,8",
        "lz4": "x=" + ",".join(["2.000000"] * 8),
        "shuffle": "x=" + ",".join(["2.000000"] * 8),
        "mask": "same camera",
        "wrong_tensor": "bad_tensor",
        "wrong_name": "thrown bad_topic",
        "wrong_version": "thrown bad_topic",
        "too_large": "message_too_large",
        "slow": "x=" + ",".join(["0.000000"] * 4),
        "expired": "expired",
        "cancel": "10 cancelled",
        "typed": "bad_tensor",
        "closed": "cancelled",
        "unknown": "no_worker",
        "crowded": "expired expired rejected",
    }
    (numbers,) = [counters(line) for line in lines if line.startswith("submitted=")]
    outcomes = ("ok", "error", "expired", "superseded", "rejected", "cancelled")
    assert sum(numbers[name] for name in outcomes) == numbers["submitted"]
    assert {numbers[name] for name in ("pending", "malformed", "mismatched", "bad_states")} == {0}


@pytest.mark.full
@pytest.mark.parametrize("sanitizers", ["address,undefined", "thread"])
def test_a_thousand_answers_while_worker_and_broker_are_killed(
    sanitizers: str, write_echo: Callable[..., Path], unique: Callable[[str], str], tmp_path: Path
) -> None:
    """Each of 1,000 requests gets its own result, once, while the worker is killed four times and the broker twice."""
    live = built(sanitizers, "live") / "live"
    repository = write_echo("echo", delay_ms=4)
    with ExitStack() as stack:
        broker = stack.enter_context(MosquittoServer())
        root = unique("test")
        server = stack.enter_context(worker(broker.url, root, repository, unique("w"), tmp_path / "log"))
        process = stack.enter_context(program(live, "many", broker.url, root, "1000"))
        for answered in range(100, 700, 100):
            lines_until(process, str(answered))
            if answered % 300 == 0:
                broker.kill()
                broker.start()
            else:
                server.kill()
                server.start()
        *_, said, last = finished(process)
    assert said == "answered=1000 wrong=0 twice=0"
    numbers = counters(last)
    assert (numbers["submitted"], numbers["ok"], numbers["pending"]) == (1000, 1000, 0)
    assert {numbers[name] for name in ("in_flight", "malformed", "mismatched", "bad_states")} == {0}
    assert numbers["retries"] > 0


@pytest.mark.broker
def test_a_reply_of_another_is_no_result(programs: Path, broker_url: str, unique: Callable[[str], str]) -> None:
    """Damaged, foreign and retained replies are counted; the first that belongs to the request ends it."""
    root, model = unique("test"), "forged"
    topics = Topics(root)
    with ExitStack() as stack:
        link = make_link(broker_url, client_id=unique("forger"))
        stack.callback(link.close)
        link.open()
        tensor = encode_tensor("x", np.ones((1, 4), np.float32))

        def reply(message: Message) -> None:
            request = envelope.decode_request(message.payload)
            assert message.response_topic is not None
            right = topics.result(model, "asker", request.id)
            assert message.response_topic == right

            def send(payload: bytes, topic: str = right, **properties: Any) -> None:
                link.publish(Message(topic, payload, correlation_data=message.correlation_data, **properties))

            answer = envelope.encode_response(InferResponse(request.id, model, outputs=(tensor,)))
            send(b"no message")
            send(envelope.encode_response(InferResponse("ab" * 16, model, outputs=(tensor,))))
            send(envelope.encode_response(InferResponse(request.id, "other", outputs=(tensor,))))
            send(envelope.encode_response(InferResponse(request.id, model, outputs=(tensor,), attempt=9)))
            send(answer, topics.result(model, "asker", "ab" * 16))
            send(answer)

        link.subscribe(f"{root}/models/{model}/infer/+", reply, share="workers")
        process = stack.enter_context(program(programs / "live", "one", broker_url, root, "asker", model))
        lines = finished(process)
    assert lines[:2] == ["connected", "ok"]
    numbers = counters(lines[2])
    assert (numbers["ok"], numbers["malformed"], numbers["mismatched"], numbers["late"]) == (1, 1, 3, 1)


@pytest.mark.broker
def test_a_request_that_crashes_two_workers_is_poison(
    programs: Path, broker_url: str, unique: Callable[[str], str], write_echo: Callable[..., Path], tmp_path: Path
) -> None:
    """It ends with the second crash, and is sent to no further worker."""
    root = unique("test")
    repository = write_echo("deadly")
    path = repository / "deadly" / "1" / "model.echo"
    path.write_text(f"die_on = 13\n{path.read_text(encoding='utf-8')}", encoding="utf-8")
    with worker(broker_url, root, repository, unique("w"), tmp_path / "log"):
        lines = output(programs / "live", "one", broker_url, root, "asker", "deadly")
    assert lines[1].startswith("poison: model 'deadly': the workers "), lines
    assert counters(lines[2])["error"] == 1


def acknowledge(taken: threading.Event, _: int) -> None:
    """Note that the broker has taken a message."""
    taken.set()


@pytest.mark.broker
def test_the_results_of_others(
    programs: Path,
    broker_url: str,
    unique: Callable[[str], str],
    write_echo: Callable[..., Path],
    serve: Callable[..., Any],
) -> None:
    """Watches receive what a Python client is answered; a small buffer drops the oldest, damage is counted."""
    root, model = unique("test"), "echo"
    topics = Topics(root)
    served = serve(broker_url, write_echo(model), topics=topics)
    with ExitStack() as stack:
        process = stack.enter_context(program(programs / "live", "watching", broker_url, root, model, "5"))
        lines_until(process, "watching")
        client = stack.enter_context(Client(broker_url, name="other", root=root, options=PATIENT))
        link = make_link(broker_url, client_id=unique("vandal"))
        stack.callback(link.close)
        link.open()
        for payload, properties in ((b"no message", ()), (b"MQI1", (("xxh3", "0" * 16),))):
            taken = threading.Event()
            message = Message(topics.result(model, "other", "r1"), payload, user_properties=properties)
            link.publish(message, partial(acknowledge, taken))
            assert taken.wait(PATIENCE_S)
        results = [client.infer(model, {"x": np.full((1, 4), number, np.float32)}) for number in range(5)]
        *seen, first, second = finished(process)
    assert seen == [
        f"other {result.id} ok {served.name} x={','.join([f'{number:.6f}'] * 4)}"
        for number, result in enumerate(results)
    ]
    assert counters(first) == {"received": 7, "dropped": 0, "malformed": 2, "retained": 0}
    assert counters(second) == {"received": 7, "dropped": 3, "malformed": 2, "retained": 0}


@pytest.mark.broker
def test_logins_over_tls(programs: Path, write_echo: Callable[..., Path], serve: Callable[..., Any]) -> None:
    """A wrong password ends for good and says what to check; a certificate of an unknown authority is no connection."""
    with TemporaryDirectory(prefix="mqinfer-cpp-") as place, ExitStack() as stack:
        Path(place).chmod(0o755)  # the account that Mosquitto takes on under root has to enter it
        folder = BrokerFolder(Path(place) / "broker")
        password_port = free_port()
        folder.init(ports=Ports(1, password_port, free_port(), "127.0.0.1"))
        car = folder.add(Role.VEHICLE, "car-1", by_password=True)
        folder.add(Role.VEHICLE, "car-2", by_password=True)
        login = folder.add(Role.WORKER, "w")
        server = stack.enter_context(secured(folder, 0))
        address = BrokerAddress.parse(
            f"mqtts://127.0.0.1:{server.port}",
            ca_file=login.ca_file,
            cert_file=login.cert_file,
            key_file=login.key_file,
        )
        serve(address, write_echo("echo"), name="w.0")
        url = f"mqtts://127.0.0.1:{password_port}"
        lines = output(programs / "live", "login", url, "mqinfer/v1", "car-1", str(car.password), str(car.ca_file))
    assert lines[0] == "right: car-1 w.0"
    assert re.fullmatch("wrong: not_authorized .*; check user and password", lines[1])
    assert re.fullmatch("without: not_authorized .*; it wants a user and a password", lines[2])
    assert lines[3].startswith("stranger: broker_unreachable ")
    assert lines[4].startswith("another's name: not_authorized ")


@pytest.mark.broker
def test_the_first_program(
    programs: Path, broker_url: str, write_echo: Callable[..., Path], serve: Callable[..., Any]
) -> None:
    """The example runs as it is printed, over the model's lane and without TLS."""
    repository = write_echo("unused").parent / "models"
    write_half_plus_two(repository)
    served = serve(broker_url, repository, "half_plus_two")
    assert output(programs / "infer", broker_url) == [f"2.5 3 4.5 {served.name}"]
