from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.client.control import ControlClient
from mqinfer.protocol.control import Call, Operation
from mqinfer.protocol.errors import BadTensor, InvalidRequest, ModelNotFound, NoWorker
from mqinfer.protocol.topics import Topics
from tests.patience import wait_until

pytestmark = [pytest.mark.broker, pytest.mark.slow]
WriteEcho = Callable[..., Path]
X = np.zeros((2, 4), np.float32)
SPEC = {"name": "x", "datatype": "FP32", "shape": [-1, 4]}


def rr(broker_url: str, topics: Topics, server: str, path: str, body: str = "") -> Any:
    """Send a control request with `mosquitto_rr`; return the JSON of the reply."""
    where = urlsplit(broker_url)
    command = ["mosquitto_rr", "-h", where.hostname or "", "-p", str(where.port), "-q", "1", "-W", "60"]
    reply_to = topics.control_result("shell", "r1")
    done = subprocess.run(
        [*command, "-t", topics.control(server, "shell", path), "-e", reply_to, *(["-m", body] if body else ["-n"])],
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout)


@contextmanager
def all_servers(broker_url: str, topics: Topics, client: str) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Send requests to all servers over bare MQTT; expect two replies with the Correlation Data of the request."""
    replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
    with closing(make_link(broker_url, client_id=client)) as link:
        link.open()
        link.subscribe(topics.control_result.filter(client=client), replies.put)

        def ask(path: str) -> dict[str, Any]:
            link.publish(
                Message(
                    topics.control("all", client, path),
                    b"",
                    response_topic=topics.control_result(client, "1"),
                    correlation_data=b"question",
                )
            )
            found = [replies.get(timeout=30) for _ in range(2)]
            assert [reply.correlation_data for reply in found] == [b"question"] * 2
            return {dict(reply.user_properties)["server"]: json.loads(bytes(reply.payload)) for reply in found}

        yield ask


def test_a_shell_requests_the_state_of_a_model(
    write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str
) -> None:
    """Server and model metadata, readiness and configuration by `mosquitto_rr` and JSON alone."""
    server = managed(write_echo("echo", version=3, config="max_batch_size = 4\n"))
    name = server.name
    ask = partial(rr, broker_url, server.topics, name)
    server.control.load("echo")
    about = ask("server")
    assert (about["name"], about["server"]) == ("mqinfer", name)
    assert {"model_repository", "model_configuration", "statistics"} <= set(about["extensions"])
    assert ask("health/live")["live"] is True
    assert ask("health/ready")["ready"] is True
    metadata = ask("models/echo")
    assert (metadata["name"], metadata["versions"], metadata["platform"]) == ("echo", ["3"], "mqinfer_echo")
    assert (metadata["inputs"], metadata["outputs"]) == ([SPEC], [SPEC])
    assert ask("models/echo/versions/3/ready") == {"name": "echo", "ready": True, "server": name}
    assert ask("models/echo/versions/2/ready")["ready"] is False
    config = ask("models/echo/config")
    assert (config["max_batch_size"], config["version_policy"]) == (4, {"latest": {"num_versions": 1}})
    assert config["input"] == [{"name": "x", "data_type": "TYPE_FP32", "dims": [4]}]


def test_a_shell_requests_statistics(write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str) -> None:
    """Ten requests of two rows and a bad one: the statistics add up, by stage and by batch."""
    server = managed(write_echo("echo", version=3))
    server.control.load("echo")
    with Client(broker_url, root=server.topics.root) as client:
        for _ in range(10):
            client.infer("echo", {"x": X})
        with pytest.raises(BadTensor):
            client.infer("echo", {"y": X})

    def read() -> Any:
        (found,) = rr(broker_url, server.topics, server.name, "models/echo/stats")["model_stats"]
        return found

    def all_count() -> bool:  # a reply is counted once it is sent
        return [read()["inference_stats"][outcome]["count"] for outcome in ("success", "fail")] == [10, 1]

    wait_until(all_count)
    stats = read()
    assert (stats["name"], stats["version"]) == ("echo", "3")
    assert (stats["inference_count"], stats["execution_count"]) == (20, 10)
    counts = {stage: duration["count"] for stage, duration in stats["inference_stats"].items()}
    stages = ("success", "queue", "compute_input", "compute_infer", "compute_output")
    assert counts == {"fail": 1} | dict.fromkeys(stages, 10)
    assert stats["inference_stats"]["compute_infer"]["ns"] > 0
    assert [(batch["batch_size"], batch["compute_infer"]["count"]) for batch in stats["batch_stats"]] == [(2, 10)]
    assert stats["memory_usage"][0]["byte_size"] > 1 << 20
    assert stats["last_inference"] > 0


def test_a_shell_loads_and_unloads(write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str) -> None:
    """Index, load and unload by `mosquitto_rr` alone; errors are replies, nothing outside is read."""
    write_echo("echo", version=3)
    repository = write_echo("broken")
    server = managed(repository)
    name = server.name
    ask = partial(rr, broker_url, server.topics, name)
    server.control.load("echo")
    server.control.load("broken")
    (repository / "broken" / "1" / "model.echo").unlink()
    entries = ask("repository/index", '{"ready": true}')
    assert [(each["name"], each["version"], each["state"]) for each in entries] == [
        ("broken", "1", "READY"),
        ("echo", "3", "READY"),
    ]
    assert ask("repository/models/echo/unload") == {"name": "echo", "server": name}
    states = {each["name"]: (each["state"], each["reason"]) for each in ask("repository/index")}
    assert states["echo"] == ("UNAVAILABLE", "not loaded")
    assert ask("models/echo")["code"] == "model_not_found"
    assert ask("repository/models/echo/load") == {"name": "echo", "versions": ["3"], "server": name}
    failed = ask("repository/models/broken/load")
    assert failed["code"] == "model_not_loadable"
    assert "no model in it" in failed["error"]
    assert ask("repository/models/nothing/load")["code"] == "model_not_found"
    assert ask("repository/models/..%2fetc/load")["code"] == "bad_topic"
    assert ask("models/echo/versions/x/ready")["code"] == "bad_topic"
    assert "repository/index" in ask("nonsense")["error"]
    assert ask("repository/index", "no JSON")["code"] == "bad_envelope"


def test_a_request_to_all_servers(write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str) -> None:
    """Each of two servers replies to a request for `all`; a model stays available until both have unloaded it."""
    repository = write_echo("echo")
    one = managed(repository, load=False)
    two = managed(repository, one.topics, load=False)
    both = {one.name, two.name}
    with all_servers(broker_url, one.topics, "operator") as ask:
        loaded = ask("repository/models/echo/load")
        assert {name: reply["versions"] for name, reply in loaded.items()} == {key: ["1"] for key in both}
        index = ask("repository/index")
        assert {name: [entry["state"] for entry in reply] for name, reply in index.items()} == {
            key: ["READY"] for key in both
        }
        assert {entry["server"] for reply in index.values() for entry in reply} == both
        for path in ("models/echo", "models/echo/ready", "models/echo/config", "models/stats", "server"):
            assert ask(path).keys() == both
        # One of two servers unloads it: its card stays, for the other one serves it.
        one.control.unload("echo", server=one.name)
        with Client(broker_url, root=one.topics.root) as client:
            assert client.card("echo").version == "1"
            assert client.infer("echo", {"x": X}).worker.startswith(two.name)
        assert {name: reply["ready"] for name, reply in ask("models/echo/ready").items()} == {
            one.name: False,
            two.name: True,
        }
        one.control.unload("echo", server=two.name)
    with Client(broker_url, root=one.topics.root) as client, pytest.raises(ModelNotFound):
        client.card("echo", timeout=0.5)


def test_requests_that_are_refused(write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str) -> None:
    """Models from messages and foreign reply topics are refused, and an absent server is reported."""
    server = managed(write_echo("echo"), load=False)
    order = server.topics.control(server.name, "operator", "repository/models/echo/load")
    replies: queue.SimpleQueue[Message] = queue.SimpleQueue()
    with closing(make_link(broker_url, client_id="operator")) as link:
        link.open()
        link.subscribe(f"{server.topics.root}/results/#", replies.put)
        elsewhere = server.topics.control_result("victim", "1")
        link.publish(Message(server.topics.control(server.name, "operator", "server"), b"", response_topic=elsewhere))
        link.publish(Message(server.topics.control(server.name, "operator", "server"), b""))
        own = server.topics.control_result("operator", "2")
        given = json.dumps({"parameters": {"config": "{}", "response_topic": own}})
        link.publish(Message(order, given.encode()))
        refused = replies.get(timeout=30)
    assert refused.topic == own
    assert json.loads(bytes(refused.payload))["code"] == InvalidRequest.code
    assert replies.empty()
    with pytest.raises(NoWorker, match=f"no server 'elsewhere' .*ready: {server.name}"):
        server.control.ask(Call(Operation.INDEX), server="elsewhere")
    with ControlClient(broker_url, root="nobody/here") as lonely, pytest.raises(NoWorker, match="no server is ready"):
        lonely.ask(Call(Operation.INDEX))


def test_a_process_that_hangs_holds_nobody_up(
    write_echo: WriteEcho, managed: Callable[..., Any], broker_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statistics of the other processes arrive within about a second, and the halted one is named."""
    monkeypatch.setattr("mqinfer.cloud_worker.supervision.supervisor._STATISTICS_TIMEOUT_S", 1.0)
    write_echo("hangs")
    server = managed(write_echo("works"))
    server.control.load("hangs")
    server.control.load("works")
    pids = {view.spec.model: (view.spec.options.name, view.pid) for view in server.supervisor.processes}
    name, pid = pids["hangs"]

    def replied() -> tuple[list[str], list[str] | None]:
        (reply,) = server.control.ask(Call(Operation.ALL_STATS), timeout=30)
        return [entry["name"] for entry in reply.content["model_stats"]], reply.content.get("unanswered")

    os.kill(pid, signal.SIGSTOP)
    try:
        for _ in range(3):
            wait_until(lambda: replied() == (["works"], [name]))  # a busy machine may hold up the other one, too
        with Client(broker_url, root=server.topics.root) as client:
            client.infer("works", {"x": X})
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_until(lambda: replied() == (["hangs", "works"], None))
