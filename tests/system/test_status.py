from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer import Client
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.protocol.states import ServedModel, ServerState, ServerStatus, WorkerState, WorkerStatus
from mqinfer.protocol.topics import Topics
from tests.commands import mqinfer

pytestmark = pytest.mark.broker
LONG = "a-model-with-a-name-of-sixty-characters-that-no-table-may-cut"


def status(url: str, root: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `mqinfer status` with its output in a pipe."""
    return mqinfer("status", "--broker", url, "--root", root, "--interval", "0.1", *options)


@pytest.mark.slow
def test_everything_at_a_glance(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str, unique: Callable[[str], str]
) -> None:
    """Servers, lost ones too, processes and models with their load; in a pipe no name is cut and no markup is read."""
    write_echo(LONG)
    repository = write_echo("echo", version=7)
    (repository / "faulty").mkdir()
    (repository / "faulty" / "config.pbtxt").write_text("[/x] is no configuration", encoding="utf-8")
    server = managed(repository)
    root = server.topics.root
    assert {server.events.get(timeout=60).kind for _ in range(2)} == {"ready"}
    link = make_link(broker_url, client_id=unique("watcher"))
    link.open()
    lost = ServerState("gone", ServerStatus.LOST, 1)
    link.publish(Message(server.topics.control_state("gone"), lost.to_json(), retain=True))
    with Client(broker_url, root=root) as client:
        for _ in range(5):
            client.infer("echo", {"x": np.zeros((1, 4), np.float32)})
        done = status(broker_url, root)
        found = json.loads(status(broker_url, root, "--json").stdout)
    link.close()
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    headline = done.stdout.splitlines()[0]
    assert headline == "servers: 1 lost, 1 ready; processes: 2 ready; model versions: 2 ready, 1 unavailable"
    assert ["gone", "lost", "none"] in lines
    assert [server.name, "ready", "2", "of", "2", "ready"] in lines
    assert any(line[2:4] == [LONG, "1"] for line in lines)
    assert [LONG, "1", "-", "READY", server.name] in [line[:5] for line in lines]
    (reason,) = (line for line in done.stdout.splitlines() if "[/x] is no configuration" in line)
    assert reason.startswith(f"faulty on {server.name}: ")
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    echo = next(each for each in found["models"] if each["model"] == "echo")
    assert (echo["ok"], echo["failed"], echo["depth"], echo["processes"], echo["version"]) == (5, 0, 0, 1, "7")
    assert echo["rate"] == 0
    assert echo["p50_ms"] > 0
    assert {each["server"]: each["state"] for each in found["servers"]} == {"gone": "lost", server.name: "ready"}


def test_nothing_serves(broker_url: str, unique: Callable[[str], str]) -> None:
    """Exit code 1 on a broker without a worker that is ready; a lost one is listed, and states are enough."""
    topics = Topics(unique("test"))
    done = status(broker_url, topics.root)
    assert (done.returncode, done.stdout) == (1, "servers: none; processes: none; model versions: none\n")
    link = make_link(broker_url, client_id=unique("watcher"))
    link.open()
    state = WorkerState("w.0", WorkerStatus.LOST, 1, (ServedModel("m", "1"),), 8, 3, 1500, {"ok": 2, "expired": 1})
    link.publish(Message(topics.worker_state("w.0"), state.to_json(), retain=True))
    done = status(broker_url, topics.root)
    assert done.returncode == 1
    assert "w.0      lost   m      1        3/8    1.500       2   1" in done.stdout
    link.close()


def test_without_a_broker(unique: Callable[[str], str]) -> None:
    """One message, no traceback."""
    done = status("mqtt://127.0.0.1:1", unique("test"))
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (1, "", False)
    assert done.stderr.startswith("error: no broker answers")
