"""`mqinfer top` in a pipe and in a terminal, on a real broker."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import signal
import struct
import sys
import termios
from collections.abc import Callable
from contextlib import suppress
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mqinfer import Client
from mqinfer.broker import make_link
from mqinfer.broker.link import Message
from mqinfer.cli.watching.top import _picture, _tables
from mqinfer.protocol.states import (
    ClientState,
    ClientStatus,
    PendingRequests,
    ServedModel,
    WorkerState,
    WorkerStatus,
)
from tests.commands import command, mqinfer

pytestmark = [pytest.mark.broker, pytest.mark.slow]


def test_what_goes_on(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str, unique: Callable[[str], str]
) -> None:
    """Models with labels and lag, workers, streams, and what was dropped by reason; the second picture has rates."""
    server = managed(write_echo("echo"))
    root = server.topics.root
    assert server.events.get(timeout=60).kind == "ready"
    server.control.traffic("echo", stable=1)
    link = make_link(broker_url, client_id=unique("watcher"))
    link.open()
    pending = (PendingRequests("echo", 3, 2, 1500),)
    edge = ClientState("car-1", ClientStatus.READY, 1, "/camera", "echo", 8, pending=pending)
    link.publish(Message(server.topics.client_state("car-1"), edge.to_json(), retain=True))
    counters = {"ok": 2, "expired": 1, "dropped_flood": 4, "batches_rerun": 9}
    lost = WorkerState("gone.0", WorkerStatus.LOST, 1, (ServedModel("echo", "1"),), 8, 3, 1500, counters)
    link.publish(Message(server.topics.worker_state("gone.0"), lost.to_json(), retain=True))
    with Client(broker_url, root=root) as client:
        for _ in range(5):
            client.infer("echo", {"x": np.zeros((1, 4), np.float32)})
    where = "--broker", broker_url, "--root", root
    done = mqinfer("top", *where, "--count", "2", "--every", "0.2", "--json")
    first, second = map(json.loads, done.stdout.splitlines())
    (model,) = second["models"]
    assert (model["label"], model["ok"], model["failed"], model["rate"]) == ("stable", 5, 0, 0)
    assert first["models"][0]["rate"] is None
    assert second["lag"]["echo"]["pending"] == 5
    assert second["lag"]["echo"]["oldest_ms"] >= 1500
    done = mqinfer("top", *where, "--count", "1")
    link.close()
    lines = [line.split() for line in done.stdout.splitlines()]
    assert re.fullmatch(
        r"\d\d:\d\d:\d\d  servers: 1 ready; workers: 1 lost, 1 ready; clients: 1", done.stdout.splitlines()[0]
    )
    assert ["echo", "1", "stable", "1/2"] in [line[:4] for line in lines]
    assert ["gone.0", "lost", "echo", "1", "3/8", "1.5", "2"] in lines
    assert ["car-1", "/camera", "echo", "3", "2", "8"] in [line[:6] for line in lines]
    assert ["dropped", "flood", "gone.0", "4"] in lines
    assert ["expired", "gone.0", "1"] in lines
    assert "\x1b" not in done.stdout


def test_a_terminal(broker_url: str, unique: Callable[[str], str]) -> None:
    """It shows pictures in place of each other until Ctrl-C, which is no error."""
    process, terminal = pty.fork()
    if not process:
        os.execv(sys.executable, command("top", "--broker", broker_url, "--root", unique("test"), "--every", "0.2"))  # noqa: S606 - the test's own
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    seen, stopped = b"", False
    with suppress(OSError):  # the end of the terminal
        while True:
            seen += os.read(terminal, 65536)
            if seen.count(b"servers: ") >= 2 and not stopped:
                stopped = True
                os.kill(process, signal.SIGINT)
    assert os.waitpid(process, 0)[1] == 0
    assert seen.count(b"servers: none; workers: none; clients: 0") >= 2
    assert b"Traceback" not in seen


def overview(workers: int) -> dict[str, Any]:
    """Make what many workers report."""
    process = {"server": "s", "state": "ready", "model": "a-model-of-a-long-name", "version": "1", "capacity": 64}
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
    shown = sum(line.rstrip().endswith(" 7") for line in lines)
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
