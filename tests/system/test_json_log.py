"""With `--log-format json` each line that a service prints is a record, whatever its libraries would print."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.ports import free_port
from tests.system.small_models import build

pytestmark = pytest.mark.slow
GARBAGE = (
    bytes(50),
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(500),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\x00\x00\xff\x09\xff" * 20,
    b"GET / HTTP/1.1\r\nHost: \xff\r\n\r\n",
    b"POST /v2/models/a/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\nContent-Encoding: gzip\r\n\r\n" + bytes(20),
    b"GET /mqtt HTTP/1.1\r\nUpgrade: websocket\r\n\r\n" + b"A" * 70_000,
)
"""What no server of HTTP or gRPC expects."""


@pytest.fixture
def damaged(tmp_path: Path) -> Iterator[str]:
    """URL of a video with holes, of which FFmpeg says much."""
    folder = tmp_path / "served"
    folder.mkdir()
    video = cv2.VideoWriter(str(folder / "v.mp4"), cv2.VideoWriter.fourcc(*"mp4v"), 10, (96, 64))
    noise = np.random.default_rng(0)
    for _ in range(60):
        video.write(noise.integers(0, 255, (64, 96, 3), dtype=np.uint8))
    video.release()
    content = bytearray((folder / "v.mp4").read_bytes())
    for place in range(3000, len(content) - 6000, 997):
        content[place : place + 40] = bytes(40)
    (folder / "v.mp4").write_bytes(content)
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, name="damaged-video")
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/v.mp4"
        server.shutdown()
        thread.join()


@pytest.fixture
def printed() -> Callable[..., list[dict[str, object]]]:
    """Run a command until words of it have come, stop it, and return its lines as records.

    It has no broker unless one is named. `then` is called before it is stopped.
    """

    def run(
        *arguments: str, until: set[str], broker: str = "", then: Callable[[], None] = lambda: None
    ) -> list[dict[str, object]]:
        options = ["--broker", broker or f"mqtt://127.0.0.1:{free_port()}", "--log-format", "json"]
        command = [sys.executable, "-m", "mqinfer", *arguments, *options]
        lines: list[str] = []
        missing = set(until)
        plain = {name: value for name, value in os.environ.items() if name != "TF_CPP_MIN_LOG_LEVEL"}
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=plain
        ) as process:
            for line in process.stdout or ():
                lines.append(line)
                was_missing, missing = missing, {words for words in missing if words not in line}
                if was_missing and not missing:
                    try:
                        then()
                    finally:
                        process.send_signal(signal.SIGTERM)
        assert not missing
        return [json.loads(line) for line in lines]

    return run


def test_an_edge(printed: Callable[..., list[dict[str, object]]], damaged: str, tmp_path: Path) -> None:
    """A damaged video and a camera that is not there; its report at the end is a record too."""
    sources = ["--source", damaged, "--source", "camera:97"]
    spool = ["--model", "echo", "--spool", str(tmp_path / "spool")]
    records = printed(
        "edge", *sources, *spool, until={"camera:97: can't be opened", "v.mp4: it can be opened and no picture comes"}
    )
    assert "summary" in records[-1]


def test_a_replay_that_cannot_begin(printed: Callable[..., list[dict[str, object]]], tmp_path: Path) -> None:
    """No broker is there: the error that ends the command is a record."""
    (tmp_path / "v.mp4").write_bytes(b"no video")
    records = printed("replay", str(tmp_path / "v.mp4"), "--model", "echo", until={'"level": "error"'})
    assert records[-1]["level"] == "error"


@pytest.mark.broker
@pytest.mark.parametrize(
    "kind",
    [
        "saved-model",
        pytest.param("frozen-graph", marks=pytest.mark.full),  # the library is that of a SavedModel
        pytest.param("tflite", marks=pytest.mark.full),
        "onnx",
        "openvino",
        "torchscript",
    ],
)
def test_a_worker(
    printed: Callable[..., list[dict[str, object]]],
    broker_url: str,
    unique: Callable[[str], str],
    tmp_path: Path,
    kind: str,
) -> None:
    """An engine loads a whole model, and one that is cut."""
    repository = tmp_path / "models"
    build(repository, "whole", kind)
    for path in sorted((build(repository, "cut", kind) / "1").rglob("*")):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    names = ["--root", unique("test"), "--name", unique("worker")]
    until = {'"event": "ready"', '"event": "failed"'}
    records = printed("worker", "--repository", str(repository), *names, until=until, broker=broker_url)
    assert records[-1]["event"] == "stopped"


@pytest.mark.broker
@pytest.mark.parametrize("kind", ["gateway", "dashboard"])
def test_what_serves_callers(printed: Callable[..., list[dict[str, object]]], broker_url: str, kind: str) -> None:
    """Each port gets what is no call: noise, TLS, HTTP/2, HTTP and a WebSocket with wrong or endless headers."""
    names = ["http", "grpc", "tfs-grpc", "tfs-rest", "metrics"]
    ports = {f"--{name}-port": free_port() for name in names} if kind == "gateway" else {"--port": free_port()}

    def send_garbage() -> None:
        for port in ports.values():
            for content in GARBAGE:
                # a server that has closed meanwhile makes `shutdown` fail with ENOTCONN, which is no ConnectionError
                with socket.create_connection(("127.0.0.1", port), 60) as caller, suppress(OSError):
                    caller.sendall(content)
                    caller.shutdown(socket.SHUT_WR)
                    while caller.recv(65536):
                        pass

    options = [f"{option}={port}" for option, port in ports.items()]
    records = printed(kind, *options, until={"ready: "}, broker=broker_url, then=send_garbage)
    assert {record["logger"] for record in records} <= {"mqinfer.gateway", "mqinfer.dashboard"}
