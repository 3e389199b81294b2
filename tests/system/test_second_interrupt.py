"""Ctrl-C twice: a command that has not ended after the first one ends at the second, with one line."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from queue import SimpleQueue

import pytest

from mqinfer.broker.connect import make_link
from mqinfer.broker.link import Message
from mqinfer.lab.drives.recording import write_drive
from tests.commands import command
from tests.dashboard.programs import Program, Programs
from tests.patience import wait_until
from tests.ports import free_port

pytestmark = [pytest.mark.broker, pytest.mark.slow]
PATIENCE = 120.0


@pytest.fixture
def programs(tmp_path: Path, broker_url: str) -> Iterator[Programs]:
    """Start commands at the broker of the tests."""
    with Programs(tmp_path, broker_url) as found:
        yield found


def interrupt(program: Program) -> str:
    """Press Ctrl-C until it ends, which the second time does; return the last line of what it printed.

    The system may join two signals that follow one another, so that they are repeated.
    """
    count = 0
    while program.process.poll() is None:
        count += 1
        os.killpg(program.process.pid, signal.SIGINT)
        try:
            program.process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    assert count > 1, program.log()
    assert program.process.returncode == 130, program.log()
    wait_until(lambda: not alive(program.process.pid))
    said = [line for line in program.log().splitlines() if "ended at once" in line]
    assert program.log().splitlines()[-1:] == said, program.log()
    assert "Traceback" not in program.log()
    return said[0]


def alive(session: int) -> list[int]:
    """Return the processes of a session that run."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of, *_ = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(of) == session and state != "Z":
            found.append(int(path.parent.name))
    return found


def words_of(pid: int) -> bytes:
    """Return the command line of a process."""
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def test_commands_that_wait_for_a_model(
    programs: Programs,
    broker_url: str,
    write_echo: Callable[..., Path],
    unique: Callable[[str], str],
    stalling: Callable[[int], str],
    tmp_path: Path,
) -> None:
    """A replay, an edge and gateways say what they leave, and so does the worker itself, whose processes are gone."""
    root, port, ports = unique("test"), free_port(), free_port()
    drive = write_drive(tmp_path / "drive.bag", ros=1, frames=9, seed=1, width=48, height=32, truth_topic=False)
    repository = write_echo("echo", ("image", "UINT8", [-1, -1, -1, 3]))
    heard: SimpleQueue[Message] = SimpleQueue()

    def await_request(client: str) -> None:
        while f"/{client}" not in (heard.get(timeout=PATIENCE).response_topic or ""):
            pass

    with closing(make_link(broker_url, client_id=unique("observer"))) as link:
        link.open()
        link.subscribe(f"{root}/#", heard.put)
        worker = programs.start("worker", "--repository", repository, "--root", root, "--run-timeout", "0")
        wait_until(lambda: " ready: " in worker.log())
        (process,) = [pid for pid in alive(worker.process.pid) if b"spawn_main" in words_of(pid)]
        os.kill(process, signal.SIGSTOP)  # every request waits
        site = ["--model", "echo", "--root", root, "--log-format", "json"]
        replay = programs.start("replay", drive, *site, "--name", "replay", "--output", tmp_path / "out")
        edge = programs.start("edge", "--source", stalling(9), *site, "--name", "edge", "--timeout", "600")
        off = ["--metrics-port=0", "--tfs-grpc-port=0", "--tfs-rest-port=0", "--grpc-port=0", "--root", root]
        alone = programs.start("gateway", *off, "--http-port", str(port), "--name", "gate")
        several = programs.start("gateway", *off, "--http-port", str(ports), "--name", "gates", "--processes", "2")
        calls = [
            threading.Thread(target=call, args=(each, of), name="call", daemon=True)
            for each, of in ((alone, port), (several, ports))
        ]
        for each in calls:
            each.start()
        for client in ("replay", "edge", "gate/", "gates."):
            await_request(client)
    assert json.loads(interrupt(replay))["message"].startswith("ended at once; frames without an outcome: ")
    assert "; --resume goes on with the first of them" in replay.log()
    assert json.loads(interrupt(edge))["message"].startswith("ended at once; frames without an outcome: ")
    assert interrupt(alone).endswith(" gate: ended at once; calls without an answer were cut")
    assert interrupt(several).endswith(
        " gates: ended at once; gateway processes killed, with the calls that they had: 2"
    )
    for each in calls:
        each.join()
    assert "ended at once; worker processes killed: 1; clients send the requests of these to other" in interrupt(worker)


def call(gateway: Program, port: int) -> None:
    """Ask for an inference, which has no answer."""
    wait_until(lambda: " ready: " in gateway.log())
    tensor = {"name": "image", "datatype": "UINT8", "shape": [1, 1, 1, 3], "data": [1, 2, 3]}
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    with closing(connection):
        connection.request("POST", "/v2/models/echo/infer", json.dumps({"inputs": [tensor]}))
        with pytest.raises((ConnectionError, http.client.HTTPException)):
            connection.getresponse()


@pytest.mark.parametrize("command", ["worker", "gateway"])
def test_interrupts_while_processes_start(
    command: str, programs: Programs, write_echo: Callable[..., Path], unique: Callable[[str], str]
) -> None:
    """Those are still importing modules, and go on: Ctrl-C reaches the group, and their parent decides."""
    off = [f"--{front}-port=0" for front in ("metrics", "tfs-grpc", "tfs-rest", "grpc")]
    options: dict[str, list[str | Path]] = {
        "worker": ["--repository", write_echo("echo", ("image", "UINT8", [-1]))],
        "gateway": [*off, "--http-port", str(free_port()), "--processes", "2"],
    }
    program = programs.start(command, *options[command], "--root", unique("test"))

    def interrupted_until_ready() -> bool:
        for pid in alive(program.process.pid):
            with suppress(OSError):  # it has ended
                if b"spawn_main" in words_of(pid):
                    os.kill(pid, signal.SIGINT)
        return " ready: " in program.log() or "exit code" in program.log()

    wait_until(interrupted_until_ready)
    assert "Traceback" not in program.log()
    assert "exit code" not in program.log()


@pytest.mark.parametrize("scheme", ["http", "rtsp"])
def test_a_camera_that_does_not_answer(programs: Programs, scheme: str) -> None:
    """FFmpeg waits for it on the main thread, so that Python runs no handler of a signal."""
    with socket.create_server(("127.0.0.1", 0)) as camera:
        camera.settimeout(PATIENCE)
        url = f"{scheme}://127.0.0.1:{camera.getsockname()[1]}/video"
        replay = programs.start("replay", url, "--model", "echo")
        with camera.accept()[0]:
            assert interrupt(replay).endswith(" replay: ended at once; frames without an outcome: 0")


def test_a_dashboard(programs: Programs) -> None:
    """A browser has opened a WebSocket, and neither uses nor closes it."""
    url, dashboard = programs.dashboard()
    place = url.removeprefix("http://").rstrip("/")
    lines = ["GET /mqtt HTTP/1.1", f"Host: {place}", f"Origin: http://{place}", "Upgrade: websocket"]
    lines += ["Connection: Upgrade", "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: MTIzNDU2Nzg5MDEyMzQ1Ng=="]
    lines += ["Sec-WebSocket-Protocol: mqtt", "", ""]
    host, _, port = place.partition(":")
    with socket.create_connection((host, int(port)), PATIENCE) as browser:
        browser.sendall("\r\n".join(lines).encode())
        assert browser.recv(4096).startswith(b"HTTP/1.1 101 ")
        assert interrupt(dashboard).endswith("ended at once; connections of browsers were cut")


def test_a_broker(tmp_path: Path) -> None:
    """Its Mosquitto is halted, so that it does not end by itself."""
    broker = Program("mqinfer broker", tmp_path / "log", command("broker", "--port", "0"), {})
    wait_until(lambda: "broker ready" in broker.log())
    (mosquitto,) = [pid for pid in alive(broker.process.pid) if b"server.conf" in words_of(pid)]
    os.kill(mosquitto, signal.SIGSTOP)
    assert interrupt(broker).endswith("ended at once; the broker was killed")
