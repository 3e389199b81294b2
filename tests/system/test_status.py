"""`mqinfer status` in a pipe and in a terminal, once and again and again, on a real broker."""

from __future__ import annotations

import fcntl
import json
import math
import os
import pty
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec import ValidationError, convert
from rich.console import Console

from mqinfer import Client, __version__
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.cli.watching.overview import ServerReplies, _Server, _statistics, _usage
from mqinfer.cli.watching.status import _picture, _tables
from mqinfer.client.control.question import ControlReply
from mqinfer.protocol.control import ModelStatistics
from mqinfer.protocol.states import (
    ClientState,
    PendingRequests,
    ProcessStatus,
    ServedModel,
    ServerState,
    WorkerState,
    WorkerStatus,
)
from mqinfer.protocol.topics import Topics
from tests.commands import command, mqinfer
from tests.patience import wait_until

pytestmark = pytest.mark.broker
HEAD = r"\d\d:\d\d:\d\d  "
LONG = "a-model-with-a-name-of-sixty-characters-that-no-table-may-cut"


def status(url: str, root: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run `mqinfer status` with its output in a pipe."""
    return mqinfer("status", *options, "--broker", url, "--root", root, "--interval", "0.1")


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
    lost = ServerState("gone", ProcessStatus.LOST, 1)
    link.publish(Message(server.topics.control_state("gone"), lost.to_json(), retain=True))
    with Client(broker_url, root=root) as client:
        for _ in range(5):
            client_hash = client.infer("echo", {"x": np.zeros((1, 4), np.float32)}).model_hash

        def read() -> Any:
            return json.loads(status(broker_url, root, "--json").stdout)

        wait_until(lambda: read()["lag"]["echo"]["pending"] == 0)  # workers state their depth every other second
        done, found = status(broker_url, root), read()
        of_one = json.loads(status(broker_url, root, "--json", "echo").stdout)
        of_none = status(broker_url, root, "ecko")
    link.close()
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    headline = done.stdout.splitlines()[0]
    assert re.fullmatch(HEAD + "servers: 1 lost, 1 ready; workers: 2 ready; .*: 2 ready, 1 unavailable; .*", headline)
    assert ["gone", "lost", "-", "-", "0/0", "-"] in lines
    assert [server.name, "ready", socket.gethostname(), __version__, "2/2"] in [line[:5] for line in lines]
    assert [LONG, "1", "-", "ready", "1/1"] in [line[:5] for line in lines]
    (row,) = (line for line in lines if line[1:3] == ["ready", "echo"])
    (process,) = (each for each in found["processes"] if each["model"] == "echo")
    assert process["hash"] == client_hash
    assert process["memory_bytes"] > 1 << 20
    assert row[3:7] == ["7", client_hash.removeprefix("sha256:")[:8], "cpu", "fp32"]
    (reason,) = (line for line in done.stdout.splitlines() if "[/x] is no configuration" in line)
    assert reason.split()[:2] == ["faulty", server.name]
    assert all(line == line.rstrip() for line in done.stdout.splitlines())
    echo = next(each for each in found["models"] if each["model"] == "echo")
    assert (echo["ok"], echo["failed"], echo["depth"], echo["processes"], echo["version"]) == (5, 0, 0, 1, "7")
    assert (echo["rate"], echo["rows"], echo["runs"]) == (0, 5, 5)
    assert min(echo["p50_ms"], echo["compute_infer_ms"], echo["memory_bytes"]) > 0
    assert found["lag"]["echo"] == {"pending": 0, "oldest_ms": 0, "workers": 1, "capacity": 64}
    states = {each["server"]: (each["state"], each["uptime_s"] is None) for each in found["servers"]}
    assert states == {"gone": ("lost", True), server.name: ("ready", False)}
    assert [each["server"] for each in of_one["servers"]] == [server.name]
    assert [each["model"] for part in ("processes", "models") for each in of_one[part]] == ["echo", "echo"]
    assert of_none.returncode == 1
    assert "there is no model 'ecko'; models there: " in of_none.stdout
    assert "did you mean 'echo'?" in of_none.stdout


def test_nothing_serves(broker_url: str, unique: Callable[[str], str]) -> None:
    """Exit code 1 on a broker without a worker that is ready; a lost one is listed, and states are enough."""
    topics = Topics(unique("test"))
    done = status(broker_url, topics.root)
    assert done.returncode == 1
    assert re.fullmatch(HEAD + "servers: none; workers: none; model versions: none; clients: 0\n+", done.stdout)
    link = make_link(broker_url, client_id=unique("watcher"))
    link.open()
    state = WorkerState("w.0", WorkerStatus.LOST, 1, (ServedModel("m", "1"),), 8, 3, 1500, {"ok": 2, "expired": 1})
    link.publish(Message(topics.worker_state("w.0"), state.to_json(), retain=True))
    done = status(broker_url, topics.root)
    assert done.returncode == 1
    assert ["w.0", "lost", "m", "1", "-", "-", "-", "3/8", "1.5", "2", "1"] in map(str.split, done.stdout.splitlines())
    link.close()


def test_without_a_broker(unique: Callable[[str], str]) -> None:
    """One message, no traceback."""
    done = status("mqtt://127.0.0.1:1", unique("test"))
    assert (done.returncode, done.stdout, "Traceback" in done.stderr) == (1, "", False)
    assert done.stderr.startswith("error: no broker answers")


def test_pictures_are_counted_with_watch_alone(unique: Callable[[str], str]) -> None:
    """A number of pictures without the option that shows several is an error before anything connects."""
    done = status("mqtt://127.0.0.1:1", unique("test"), "--count", "2")
    assert (done.returncode, "add --watch" in done.stderr) == (2, True)


@pytest.mark.slow
def test_what_goes_on(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str, unique: Callable[[str], str]
) -> None:
    """Models with labels and lag, workers, streams, and what was dropped by reason; each picture is a line of JSON."""
    server = managed(write_echo("echo"))
    root = server.topics.root
    assert server.events.get(timeout=60).kind == "ready"
    server.control.traffic("echo", stable=1)
    link = make_link(broker_url, client_id=unique("watcher"))
    link.open()
    pending = (PendingRequests("echo", 3, 2, 1500),)
    edge = ClientState("car-1", ProcessStatus.READY, 1, "/camera", "echo", 8, pending=pending)
    link.publish(Message(server.topics.client_state("car-1"), edge.to_json(), retain=True))
    counters = {"ok": 2, "expired": 1, "dropped_flood": 4, "batches_rerun": 9}
    shadow = {"agreed": 2, "differed": 1, "failed_expired": 1, "dropped_busy": 2, "own_ns": 6e6, "beside_ns": 3e6}
    counters |= {f"shadow_2_{what}": int(count) for what, count in shadow.items()}
    lost = WorkerState("gone.0", WorkerStatus.LOST, 1, (ServedModel("echo", "1"),), 8, 3, 1500, counters)
    link.publish(Message(server.topics.worker_state("gone.0"), lost.to_json(), retain=True))
    with Client(broker_url, root=root) as client:
        for _ in range(5):
            client.infer("echo", {"x": np.zeros((1, 4), np.float32)})
    done = status(broker_url, root, "--watch", "--count", "2", "--json")
    first, second = map(json.loads, done.stdout.splitlines())
    (model,) = second["models"]
    assert (model["label"], model["ok"], model["failed"], model["rate"]) == ("stable", 5, 0, 0)
    assert first["models"][0]["rate"] == 0
    assert second["lag"]["echo"]["pending"] == 5
    assert second["lag"]["echo"]["oldest_ms"] >= 1500
    done = status(broker_url, root, "--watch", "--count", "1")
    link.close()
    lines = [line.split() for line in done.stdout.splitlines()]
    head = "servers: 1 ready; workers: 1 lost, 1 ready; model versions: 1 ready; clients: 1"
    assert re.fullmatch(HEAD + head, done.stdout.splitlines()[0])
    assert ["echo", "1", "stable", "ready", "1/2"] in [line[:5] for line in lines]
    assert ["gone.0", "lost", "echo", "1", "-", "-", "-", "3/8", "1.5", "-", "-", "2", "1"] in lines
    assert ["car-1", "/camera", "echo", "3", "2", "8"] in [line[:6] for line in lines]
    assert ["dropped", "flood", "gone.0", "4"] in lines
    assert ["expired", "gone.0", "1"] in lines
    assert ["echo", "2", "echo", "1", "expired", "1", "busy", "2", "4", "2", "1", "2.000", "1.000"] in lines
    assert "\x1b" not in done.stdout


@pytest.mark.slow
def test_a_terminal(broker_url: str, unique: Callable[[str], str]) -> None:
    """It shows pictures in place of each other until Ctrl-C, which is no error."""
    process, terminal = pty.fork()
    if not process:
        where = "--broker", broker_url, "--root", unique("test")
        os.execv(sys.executable, command("status", "--watch", *where, "--interval", "0.2"))  # noqa: S606 - the test's own
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    seen, stopped = b"", False
    with suppress(OSError):  # the end of the terminal
        while True:
            seen += os.read(terminal, 65536)
            if seen.count(b"servers: ") >= 2 and not stopped:
                stopped = True
                os.kill(process, signal.SIGINT)
    assert os.waitpid(process, 0)[1] == 0
    assert seen.count(b"servers: none; workers: none; ") >= 2
    assert b"Traceback" not in seen


def test_cores() -> None:
    """A process's CPU is counted between two replies; of one that was started anew since it is not known."""
    stated = [("s.0", 7, 1.0), ("s.1", 8, 1.0)], [("s.0", 7, 4.0), ("s.1", 9, 0.5)]
    before, now = (ServerReplies(at=at) for at in (10.0, 12.0))
    for replies, processes in zip((before, now), stated, strict=True):
        used = {name: {"pid": pid, "cpu_s": cpu_s, "memory_bytes": 5} for name, pid, cpu_s in processes}
        replies.servers["s"] = convert({"processes": used}, _Server)
    cores = [_usage(name, before, now)["cpu_cores"] for name in ("s.0", "s.1", "s.2")]
    assert cores == [1.5, None, None]


@pytest.mark.parametrize(
    "wrong",
    [
        {"inference_stats": {"success": {"count": math.inf}}},
        {"inference_stats": {"queue": {"count": 3, "ns": 10**400}}},
        {"response_time": {"count": 3, "p50_ns": 10**400}},
        {"memory_usage": [{"byte_size": math.inf}]},
        {"execution_count": "5"},
        {"inference_count": [1]},
    ],
)
def test_statistics_that_nobody_counts(wrong: dict[str, Any]) -> None:
    """A server that means something else by them has none, and the others are shown."""
    good = ModelStatistics(execution_count=4).to_record("m", "1")
    for entry, runs in ((good, 4), (good | wrong, None)):
        found = _statistics(ControlReply("s", {"model_stats": [entry]})).get(("s", "m", "1"), {})
        assert found.get("runs") == runs
    huge = {"processes": {"s.0": {"memory_bytes": 10**400}}}
    with pytest.raises(ValidationError):
        convert(huge, _Server)


def overview(workers: int) -> dict[str, Any]:
    """Make what many workers report."""
    process = {"server": "s", "state": "ready", "model": "a-model-of-a-long-name", "version": "1", "capacity": 64}
    process |= {"hash": "sha256:" + 64 * "f", "device": "cuda:0", "precision": "fp32"}
    process |= {"cpu_cores": 1.25, "memory_bytes": 3 << 30, "gpu_memory_bytes": None, "gpu_ratio": None}
    names = [f"a-server-of-a-long-name.{number}" for number in range(workers)]
    processes = [
        process | {"process": name, "depth": 1, "service_time_us": 900, "counters": {"ok": 7}} for name in names
    ]
    return {"servers": [], "processes": processes, "models": [], "clients": [], "lag": {}, "problem": ""}


@pytest.mark.parametrize("width", [80, 160])
@pytest.mark.parametrize("workers", [0, 1, 200])
def test_a_picture_fits(width: int, workers: int) -> None:
    """No line is longer than the terminal, no number is cut, and what has no room is counted."""
    console = Console(width=width, height=40, record=True, file=StringIO())
    console.print(_picture(overview(workers), 40))
    lines = console.export_text().splitlines()
    assert all(len(line) <= width for line in lines)
    assert len(lines) <= 40
    shown = sum(bool(re.search(r" 7 +0 *$", line)) for line in lines)
    assert shown == workers or f"... and {workers - shown} more" in "\n".join(lines)


def test_names_are_no_markup() -> None:
    """What a state names is shown as it is."""
    found = overview(1)
    found["processes"][0]["process"] = "[bold]x[/bold]\x1b[2J"
    (_, workers) = _tables(found)
    console = Console(width=100, record=True, file=StringIO())
    console.print(_picture(found, 40))
    assert "[bold]x[/bold]" in console.export_text()
    assert "\x1b" not in console.export_text()
    assert len(workers.rows) == 1
