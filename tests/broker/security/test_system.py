"""mqinfer itself behind access rules: a vehicle asks, a worker answers, an operator manages, and each has no more."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from mqinfer.broker import BrokerAddress, make_link
from mqinfer.broker.link import Message
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.broker.paho.link import PahoLink
from mqinfer.cli.exit_codes import ExitCode
from mqinfer.client import AsyncClient, Client
from mqinfer.client.announcer import ClientAnnouncer
from mqinfer.client.connection import connect
from mqinfer.client.control import AsyncControl, ControlClient
from mqinfer.client.requester import Requester
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.cloud_worker.supervision.control_server import ControlServer
from mqinfer.cloud_worker.supervision.management import Management
from mqinfer.cloud_worker.supervision.process import ProcessSpec
from mqinfer.cloud_worker.supervision.supervisor import Supervisor
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import NameTaken, NotAuthorized
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.commands import mqinfer
from tests.patience import PATIENCE_S, PATIENT, wait_until

pytestmark = pytest.mark.broker

X = np.ones((1, 4), np.float32)
WriteEcho = Callable[..., Path]
Serve = Callable[..., Worker]


def test_the_way_of_a_request(secured: Any, serve: Serve, write_echo: WriteEcho) -> None:
    """Over certificates, a password and websockets, on the shared channel, a version's channel and a lane."""
    repository = write_echo("echo", version=3)
    worker = serve(secured.address("w"), repository, name="w.0")
    ways = ("car-1", secured.address), ("pass-car", secured.address), ("car-1", secured.browser)
    for login, where in ways:
        with Client(where(login), name=login) as client:
            assert client.card("echo").name == "echo"
            for version in (None, "3"):
                result = client.infer("echo", {"x": X}, version=version)
                assert (result.outcome, result.worker) == (Outcome.OK, "w.0")
                np.testing.assert_array_equal(result.outputs["x"], X)
    assert worker.statistics().counters.get("refused_by_broker", 0) == 0


def test_the_command_of_a_worker_under_another_name(secured: Any, write_echo: WriteEcho) -> None:
    """It ends as refused (78), so a service manager does not start it for ever."""
    where, login = secured.address("w"), secured.logins["w"]
    proof = ["--ca-file", login.ca_file, "--cert-file", login.cert_file, "--key-file", login.key_file]
    ended = mqinfer("worker", "--repository", write_echo("echo"), "--name", "v", "--broker", where, *proof)
    assert ended.returncode == ExitCode.REFUSED, ended.stderr
    assert "is its name that of its certificate or login" in ended.stderr


def test_a_client_under_another_name(secured: Any, serve: Serve, write_echo: WriteEcho) -> None:
    """Asking in another's name, or a made-up one, is an error at once that says which name is wanted."""
    serve(secured.address("w"), write_echo("echo"), name="w.0")
    for name in ("car-2", "car-1.roof", "car-2.rear", "client-1"):
        with Client(secured.address("car-1"), name=name) as client, pytest.raises(NotAuthorized, match="--name"):
            client.infer("echo", {"x": X}, timeout=60)


@pytest.mark.parametrize("login", ["car-1", "pass-car", "op"])
def test_the_name_of_the_login(secured: Any, serve: Serve, write_echo: WriteEcho, login: str) -> None:
    """Who states no name has that of its certificate or login, and a vehicle's processes have its sub-names."""
    serve(secured.address("w"), write_echo("echo"), name="w.0")
    for name in (None, f"{login}.rear", f"{login}.front") if login != "op" else (None,):
        with Client(secured.address(login), name=name) as client:
            assert client.name == (name or login)
            assert client.infer("echo", {"x": X}, timeout=60).outcome is Outcome.OK


@pytest.fixture
def edge() -> Iterator[Callable[..., Requester]]:
    """Connect as a replay does; at the end all report that they have stopped, as a replay does too."""
    with ExitStack() as stack:

        def start(address: BrokerAddress, name: str, **options: Any) -> Requester:
            announcer = ClientAnnouncer(name, Topics(), "drive.bag", "echo", window=8)
            requester = connect(address, name, announcer=announcer, **options)
            stack.callback(requester.close)
            stack.callback(announcer.presence.publish, "stopped")
            return requester

        yield start


def test_two_processes_of_one_vehicle(secured: Any, edge: Callable[..., Requester]) -> None:
    """The second is refused with a way out, which works; the first one is not touched. Taking over ends it."""
    address = secured.address("car-1")
    first = edge(address, "car-1")
    for _ in range(3):  # a service that is started again and again
        with pytest.raises(NameTaken, match=r"--name, such as car-1\.rear, .*--take-over"):
            edge(address, "car-1")
    second = edge(address, "car-1.rear")
    assert (first.link.connected, second.link.connected) == (True, True)
    third = edge(address, "car-1", take_over=True)
    wait_until(lambda: isinstance(first.failure, NameTaken))
    assert (second.failure, third.failure) == (None, None)


@pytest.mark.parametrize("count", [2, 8])
def test_a_race_for_one_name(secured: Any, edge: Callable[..., Requester], count: int) -> None:
    """Of processes that start at the same time exactly one has the name in the end."""
    address, together = secured.address("car-1"), threading.Barrier(count)

    def start(_: int) -> Requester | None:
        together.wait(PATIENCE_S)
        with suppress(NameTaken):
            return edge(address, "car-1")
        return None

    with ThreadPoolExecutor(count) as pool:
        edges = [each for each in pool.map(start, range(count)) if each]
    wait_until(lambda: sum(each.failure is None for each in edges) == 1)


def test_a_name_outlives_a_restart_of_the_broker(edge: Callable[..., Requester]) -> None:
    """The broker forgets what was retained: whoever had the name keeps it, also where a newcomer connects first."""
    name = "car-1"
    with MosquittoServer() as server:
        address = BrokerAddress.parse(server.url)
        first = edge(address, name)
        server.kill()
        server.start()
        try:
            newcomer = edge(address, name)
        except NameTaken:
            return  # the first one was back before
        wait_until(lambda: isinstance(newcomer.failure, NameTaken))
        assert first.failure is None


def test_a_worker_that_may_not_read_requests(secured: Any, serve: Serve, write_echo: WriteEcho) -> None:
    """It finds out at its start and takes no turn: every request is answered by the one that may."""
    repository = write_echo("echo")
    serve(secured.address("w"), repository, name="w.0")
    with pytest.raises(NotAuthorized, match=r"read requests.*models/echo/infer/blind\.0.*mqinfer broker add"):
        serve(secured.address("blind"), repository, name="blind.0")
    with Client(secured.address("car-1"), name="car-1", options=PATIENT) as client:
        results = [future.result() for future in [client.submit("echo", {"x": X}) for _ in range(20)]]
        assert {result.worker for result in results} == {"w.0"}
        assert client.counters().retries == 0


@pytest.mark.parametrize("name", ["v.0", "w.2", "w"])
def test_a_worker_under_another_name(secured: Any, serve: Serve, write_echo: WriteEcho, name: str) -> None:
    """Another's name, one process too many, and the server's own name: refused at the start."""
    with pytest.raises(NotAuthorized, match=r"publish its state.*--name"):
        serve(secured.address("w"), write_echo("echo"), name=name)


@pytest.mark.parametrize("who", ["car-1", "dash", "op"])
def test_others_are_no_workers(secured: Any, serve: Serve, write_echo: WriteEcho, who: str) -> None:
    """A vehicle, a dashboard or an operator that would serve is refused at the start."""
    with pytest.raises(NotAuthorized):
        serve(secured.address(who), write_echo("echo"), name=f"{who}.0")


@contextmanager
def server(secured: Any, repository: Path) -> Iterator[None]:
    """A supervisor's connection without processes."""
    address = secured.address("w")
    spec = ProcessSpec(repository, "", 0, address, WorkerOptions("w"), device="cpu")
    control = ControlServer(
        spec.options,
        lambda name, will, handler: make_link(address, client_id=name, will=will, on_connection=handler),
        Management(spec, Supervisor([], lambda _: None, may_idle=True)),
    )
    control.start()
    try:
        yield
    finally:
        control.stop()


def test_an_operator_manages(secured: Any, write_echo: WriteEcho) -> None:
    """An operator manages, also twice at the same time; others, a dashboard among them, learn that they can't."""
    with server(secured, write_echo("echo")):
        with (
            ControlClient(secured.address("op"), name="op") as one,
            ControlClient(secured.address("op"), name="op") as two,
        ):
            for control in (one, two, one):
                control.wait_for("w")
                (reply,) = control.ask(Call(Operation.INDEX), timeout=30)
                assert reply.content[0]["name"] == "echo"
        with ControlClient(secured.address("dash")) as control:  # its name is that of its certificate
            for order in (Call(Operation.INDEX), Call(Operation.LOAD, "echo"), Call(Operation.UNLOAD, "echo")):
                with pytest.raises(NotAuthorized, match=r"client 'dash' to ask .*an operator's"):
                    control.ask(order, timeout=60)
        for who in ("car-1", "w"):
            with ControlClient(secured.address(who), name=who) as control, pytest.raises(NotAuthorized, match=who):
                control.ask(Call(Operation.INDEX), timeout=60)
        with ControlClient(secured.address("op"), name="op-2") as other, pytest.raises(NotAuthorized, match="--name"):
            other.ask(Call(Operation.INDEX), timeout=60)


@pytest.mark.parametrize(("who", "has_marker"), [("car-1", True), ("op", True), ("dash", False)])
def test_everybody_learns_what_there_is(
    secured: Any, serve: Serve, write_echo: WriteEcho, who: str, *, has_marker: bool
) -> None:
    """Within its rules a client finds out what the broker keeps, and when all has come; without a marker by a pause."""
    serve(secured.address("w"), write_echo("echo"), name="w.0")

    async def run() -> None:
        async with AsyncClient(secured.address(who), name=who) as client:
            registry = client.connection.registry
            assert await registry.wait_until_complete()
            assert registry.known.is_complete == has_marker
            assert registry.known.models.is_ready("echo")
            assert registry.known.card("echo")
            assert not registry.known.models.knows("other")

    asyncio.run(run())


def test_an_operator_asks_many_questions_at_a_time(secured: Any, write_echo: WriteEcho) -> None:
    """Over one connection and under one name, requests and all questions get their own replies; others are refused."""

    async def run() -> None:
        async with AsyncClient(secured.address("op"), name="op") as client:
            control = AsyncControl(client)
            expected = {
                Operation.INDEX: {"name", "version", "state", "reason"},
                Operation.SERVER: {"name", "version", "extensions", "host", "model_hashes", "processes"},
                Operation.LIVE: {"live"},
            }
            calls = [Call(operation) for operation in expected] * 10
            for call, (reply,) in zip(
                calls, await asyncio.gather(*(control.ask(call, timeout=60) for call in calls)), strict=True
            ):
                content = reply.content[0] if isinstance(reply.content, list) else reply.content
                assert set(content) - {"server"} == expected[call.operation]
            counters = client.counters()
            assert (counters.malformed, counters.late) == (0, 0)
        async with AsyncClient(secured.address("car-1"), name="car-1") as client:
            with pytest.raises(NotAuthorized, match="car-1"):
                await AsyncControl(client).ask(Call(Operation.INDEX), timeout=60)

    with server(secured, write_echo("echo")), ControlClient(secured.address("op"), name="op") as control:
        control.wait_for("w")
        asyncio.run(run())


def test_no_worker_answers_into_anothers_results(
    secured: Any, links: Mapping[str, PahoLink], serve: Serve, write_echo: WriteEcho
) -> None:
    """The worker is no deputy: it drops a request whose Response Topic is not below its sender's own results."""
    worker = serve(secured.address("w"), write_echo("echo"), name="w.0")
    got: SimpleQueue[str] = SimpleQueue()
    links["witness"].subscribe("mqinfer/v1/results/+/+/+", lambda message: got.put(message.topic))
    for topic in ("results/echo/car-2/r", "results/control/car-2/r", "control/w/state", "results/echo/car-1/r"):
        links["car-1"].publish(
            Message("mqinfer/v1/models/echo/infer/car-1", b"{}", response_topic=f"mqinfer/v1/{topic}")
        )
    assert got.get(timeout=30) == "mqinfer/v1/results/echo/car-1/r"
    while worker.depth:
        time.sleep(0)
    links["witness"].publish(Message("mqinfer/v1/results/the/last/one", b""))
    assert got.get(timeout=30) == "mqinfer/v1/results/the/last/one"
    links["witness"].unsubscribe("mqinfer/v1/results/+/+/+")
    assert worker.statistics().counters["dropped_bad_topic"] == 3


def run(*arguments: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command of mqinfer."""
    command = [sys.executable, "-m", "mqinfer", *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, **environment}, text=True, capture_output=True, timeout=60, check=False
    )


@contextmanager
def started(*arguments: str | Path, until: str, **environment: str) -> Iterator[str]:
    """Run a command until it says that it is ready; yields that line."""
    command = [sys.executable, "-u", "-m", "mqinfer", *map(str, arguments)]
    process = subprocess.Popen(
        command, env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout
    try:
        yield next(line for line in process.stdout if until in line)
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)


def test_a_replay_under_another_name_ends_at_once(
    secured: Any, serve: Serve, write_echo: WriteEcho, tmp_path: Path
) -> None:
    """What is under way is refused, and nothing more is sent; screen, summary and exit code name the reason."""
    serve(secured.address("w"), write_echo("echo", ("image", "UINT8", [-1, 32, 48, 3])), name="w.0")
    drive = write_drive(tmp_path / "drive.bag", ros=1, frames=40, seed=1, width=96, height=64, truth_topic=False)
    address, login = secured.address("car-1"), secured.logins["car-1"]
    files = ("--ca-file", login.ca_file, "--cert-file", login.cert_file, "--key-file", login.key_file)
    where = ("--broker", f"mqtts://{address.host}:{address.port}", *files, "--name", "somebody")
    ended = run("replay", drive, "--model", "echo", *map(str, where), "--summary", tmp_path / "s.json")
    assert ended.returncode == 78, ended.stderr
    assert "x not_authorized: model 'echo': the broker does not allow client 'somebody'" in ended.stdout
    told = json.loads((tmp_path / "s.json").read_text())
    failure = next(each for each in told["failures"] if each["code"] == "not_authorized")
    assert (told["ended"], failure["count"] <= 8) == ("failed", True)  # the window
    assert "does not allow client 'somebody'" in told["reason"]
    assert told["frames_read"] < 40


@pytest.mark.slow
def test_the_commands(secured: Any, write_echo: WriteEcho, tmp_path: Path) -> None:
    """`broker init`, `broker --config`, `worker`, `infer`, `status`, and what those say who may not."""
    folder = secured.folder.path.parent / "commands"
    clients = [f"--client={role}" for role in ("vehicle:car-1", "worker:w", "operator:op")]
    told = run("broker", "init", folder, "--bind", "127.0.0.1", *clients)
    assert told.returncode == 0, told.stderr
    assert f"mqinfer broker --config {folder}" in told.stdout

    def identity(name: str) -> dict[str, str]:
        files = folder / "clients" / f"{name}.crt", folder / "clients" / f"{name}.key"
        return {
            "MQINFER_CA_FILE": str(folder / "ca.crt"),
            "MQINFER_CERT_FILE": str(files[0]),
            "MQINFER_KEY_FILE": str(files[1]),
        }

    np.save(tmp_path / "x.npy", X)
    repository = write_echo("echo")
    with started("broker", "--config", folder, "--port", "0", until="ready") as line:
        found = re.search(r"mqtts://\S+", line)
        assert found
        where = {"MQINFER_BROKER": found[0]}
        infer = ("infer", "echo", "--input", f"x={tmp_path / 'x.npy'}")
        with started("worker", "--repository", repository, until="ready", **where, **identity("w")):
            answered = run(*infer, **where, **identity("car-1"))
            assert answered.returncode == 0, answered.stderr
            listed = run("status", "--json", **where, **identity("op"))
            assert '"READY"' in listed.stdout, listed.stderr
            refused = run("models", "unload", "echo", **where, **identity("car-1"))
            assert (refused.returncode, "does not allow client 'car-1'" in refused.stderr) == (ExitCode.REFUSED, True)
            stranger = run(*infer, **where, MQINFER_CA_FILE=str(folder / "ca.crt"))
            assert (stranger.returncode, "wants a client certificate" in stranger.stderr) == (ExitCode.REFUSED, True)
            second = run("worker", "--repository", repository, **where, **identity("w"))
            assert (second.returncode, "another process has the name 'w'" in second.stderr) == (ExitCode.REFUSED, True)
            other = run("worker", "--repository", repository, "--name", "v", **where, **identity("w"))
            assert (other.returncode, "access rules don't let worker" in other.stderr) == (ExitCode.REFUSED, True)
            listed = run("broker", "list", folder)
            assert [line.split()[:2] for line in listed.stdout.splitlines()[2:]] == [
                ["vehicle", "car-1"],
                ["operator", "op"],
                ["worker", "w"],
            ]


@pytest.mark.parametrize(("login", "sees_others"), [("dash", True), ("op", True), ("car-1", False)])
def test_who_may_read_what_waits_in_clients(secured: Any, login: str, *, sees_others: bool) -> None:
    """Dashboards and operators read the states of all clients; a vehicle that of its own name alone."""

    async def look() -> set[str]:
        async with AsyncClient(secured.address(login), name=login) as client:
            client.connection.registry.watches_clients = True
            assert await client.connection.registry.wait_until_complete()
            return set(client.connection.registry.known.clients)

    with ExitStack() as stack:
        for car in ("car-1", "car-2"):
            stack.enter_context(Client(secured.address(car), name=car, announce="drive.bag"))
        assert asyncio.run(look()) == ({"car-1", "car-2"} if sees_others else {"car-1"})
