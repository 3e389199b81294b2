"""With `--log-format json` each line that a service prints is a record, whatever its libraries would print."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest

from tests.ports import free_port

pytestmark = pytest.mark.slow


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
    """Run a command without a broker until words of it have come, stop it, and return its lines as records."""

    def run(*arguments: str, until: set[str]) -> list[dict[str, object]]:
        options = ["--broker", f"mqtt://127.0.0.1:{free_port()}", "--log-format", "json"]
        command = [sys.executable, "-m", "mqinfer", *arguments, *options]
        lines: list[str] = []
        missing = set(until)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
            for line in process.stdout or ():
                lines.append(line)
                missing -= {words for words in missing if words in line}
                if not missing:
                    process.send_signal(signal.SIGTERM)
        assert not missing
        return [json.loads(line) for line in lines]

    return run


def test_an_edge(printed: Callable[..., list[dict[str, object]]], damaged: str, tmp_path: Path) -> None:
    """A damaged video and a camera that is not there; its report at the end is a record too."""
    sources = ["--source", damaged, "--source", "camera:97"]
    spool = ["--model", "echo", "--spool", str(tmp_path / "spool")]
    records = printed("edge", *sources, *spool, until={"camera:97: can't be opened", "v.mp4: the camera stopped"})
    assert "summary" in records[-1]


def test_a_replay_that_cannot_begin(printed: Callable[..., list[dict[str, object]]], tmp_path: Path) -> None:
    """No broker is there: the error that ends the command is a record."""
    (tmp_path / "v.mp4").write_bytes(b"no video")
    records = printed("replay", str(tmp_path / "v.mp4"), "--model", "echo", until={'"level": "error"'})
    assert records[-1]["level"] == "error"
