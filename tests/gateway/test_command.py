"""`mqinfer gateway` as a command: several processes on the same ports, one of them killed, and SIGTERM."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import pytest

from mqinfer.cli.app import main
from mqinfer.cli.exit_codes import ExitCode
from mqinfer.extras import install_command
from mqinfer.gateway.serving.fronts import check_ports
from mqinfer.gateway.settings import GatewaySettings
from mqinfer.protocol.errors import MqinferError
from tests.gateway.conftest import Fleet
from tests.gateway.test_process import PATIENCE, settings_of

Await = Callable[[str], str]


def options(fleet: Fleet, name: str, settings: GatewaySettings, *further: str) -> list[str]:
    """Return the options of the command for these ports."""
    fields = ("http_port", "grpc_port", "metrics_port", "tfs_grpc_port", "tfs_rest_port")
    chosen = [f"--{field.replace('_', '-')}={getattr(settings.ports, field)}" for field in fields]
    return ["gateway", "--broker", fleet.url, "--root", fleet.root, "--name", name, *chosen, *further]


@contextmanager
def started(command: list[str]) -> Iterator[tuple[subprocess.Popen[str], Await]]:
    """Start a command; yield it, and what waits for a line of its log that a pattern is found in."""
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    lines: SimpleQueue[str] = SimpleQueue()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            lines.put(line)

    def wait_for(pattern: str) -> str:
        seen: list[str] = []
        while not seen or not re.search(pattern, seen[-1]):
            seen.append(lines.get(timeout=PATIENCE))
        return seen[-1]

    reader = threading.Thread(target=read, name="log of the gateway")
    reader.start()
    try:
        yield process, wait_for
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        reader.join()
        assert process.stderr is not None
        process.stderr.close()


def children(pid: int) -> dict[str, int]:
    """Return the process ids of a gateway's processes, by their numbers."""
    found = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            words = (path.parent / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended
            continue
        if int(fields[1]) == pid and any(b"spawn_main" in word for word in words):
            found[path.parent.name] = int(path.parent.name)
    return found


@pytest.mark.slow
def test_several_processes(fleet: Fleet, unique: Callable[[str], str]) -> None:
    """Two of them share the ports, which no other gateway gets; a killed one comes back; SIGTERM ends all.

    Starts four interpreters, two after one another.
    """
    name, settings = unique("gw"), settings_of()
    command = [sys.executable, "-m", "mqinfer", *options(fleet, name, settings, "--processes", "2")]
    with started(command) as (process, wait_for):
        ready = {re.search(rf"{name}\.[01]", wait_for("ready: "))[0] for _ in range(2)}  # type: ignore[index]
        assert ready == {f"{name}.0", f"{name}.1"}
        own = children(process.pid)
        assert len(own) == 2
        os.kill(own.popitem()[1], signal.SIGKILL)
        assert "exit code -9" in wait_for("starts again")
        wait_for("ready: ")
        with pytest.raises(MqinferError, match=f"can't listen on 127.0.0.1:{settings.ports.http_port}"):
            check_ports(settings)
        left = children(process.pid)
        process.terminate()
        assert process.wait(PATIENCE) == 0
        assert not [pid for pid in left.values() if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize(
    ("further", "code", "message"),
    [
        (["--tls-cert", "x"], ExitCode.USAGE, "--tls-cert and --tls-key belong together"),
        (["--keys", "/nowhere/keys.toml"], ExitCode.USAGE, "key file /nowhere/keys.toml can't be read"),
        (["--name", "No Name"], ExitCode.USAGE, "can't be used in a topic"),
    ],
)
def test_wrong_options(
    fleet: Fleet,
    unique: Callable[[str], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    further: list[str],
    code: int,
    message: str,
) -> None:
    """One line and the exit code of wrong options."""
    monkeypatch.setattr(sys, "argv", ["mqinfer", *options(fleet, unique("gw"), settings_of(), *further)])
    with pytest.raises(SystemExit) as ended:
        main()
    printed = capsys.readouterr().err
    assert (ended.value.code, printed.count("\n")) == (code, 1)
    assert message in printed


def test_a_missing_extra(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """The message has the command that installs it."""
    monkeypatch.setitem(sys.modules, "orjson", None)
    monkeypatch.setattr(sys, "argv", ["mqinfer", "gateway", "--name", "gw"])
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr().err
    assert f"orjson is not installed; run: {install_command('gateway')}" in printed
