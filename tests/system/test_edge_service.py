"""`mqinfer edge` as a service: everything that it needs may be away when it starts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from mqinfer.broker.mosquitto.server import MosquittoServer
from tests.patience import wait_until
from tests.ports import free_port

pytestmark = [pytest.mark.broker, pytest.mark.slow]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[bytes]]]:
    """Start the service with this file of options; its standard error is in `log`."""
    started: list[subprocess.Popen[bytes]] = []

    def run(options: str) -> subprocess.Popen[bytes]:
        (tmp_path / "edge.toml").write_text(options)
        command = [sys.executable, "-m", "mqinfer", "edge", "--config", str(tmp_path / "edge.toml")]
        with (tmp_path / "log").open("wb") as errors:
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def results(path: Path) -> list[dict[str, Any]]:
    """Return the whole lines of the results."""
    content = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


def test_everything_comes_later(
    tmp_path: Path,
    start: Callable[[str], subprocess.Popen[bytes]],
    stalling: Callable[[int], str],
    serve: Any,
    write_echo: Callable[..., Path],
) -> None:
    """Broker and worker start after it, two cameras drop again and again, a third never comes; a signal is its end."""
    port, url = free_port(), stalling(30)
    process = start(f"""
[edge]
broker = "mqtt://127.0.0.1:{port}"
source = ["left={url}", "right={url}", "rear=http://127.0.0.1:1/none"]
model = ["echo"]
output = "{tmp_path}"
sink = ["jsonl"]
policy = "all"
""")
    log = tmp_path / "log"
    wait_until(lambda: log.read_text().count("; trying again") == 2)
    with MosquittoServer(port) as broker:
        config = '[image]\ninput = "image"\nwidth = 64\nheight = 48\n'
        serve(broker.url, write_echo("echo", ("image", "UINT8", [-1, 48, 64, 3]), config=config))
        both = {"left": 40, "right": 40}  # more than one connection of each has

        def have_come() -> bool:
            assert process.poll() is None, log.read_text()
            done = [line["source"] for line in results(tmp_path / "results.jsonl") if line["outcome"] == "ok"]
            return all(done.count(source) >= count for source, count in both.items())

        wait_until(have_come)
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == 0, log.read_text()
    assert have_come_in_order(results(tmp_path / "results.jsonl"))
    assert "Traceback" not in log.read_text()


def have_come_in_order(lines: list[dict[str, Any]]) -> bool:
    """Return whether the frames of each stream are numbered without a gap, and each has an outcome of its own."""
    streams: dict[str, list[int]] = {}
    for line in lines:
        streams.setdefault(line["source"], []).append(line["sequence"])
    return bool(streams) and all(numbers == list(range(len(numbers))) for numbers in streams.values())


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (
            'sources = ["camera:0"]',
            r"edge.toml, line 3, [edge] sources: there is no such option; did you mean 'source'?",
        ),
        ('source = "camera:0"', "edge.toml, line 3, [edge] source = 'camera:0': expected an array"),
        ('source = ["drive.bag"]', "source 'drive.bag' is no live source; for a recording use mqinfer replay"),
    ],
)
def test_what_is_wrong_in_the_file(
    start: Callable[[str], subprocess.Popen[bytes]], tmp_path: Path, line: str, error: str
) -> None:
    """The file, the line, the key, and what to do; the exit code is that of a wrong configuration."""
    process = start(f'[edge]\nmodel = ["echo"]\n{line}\n')
    assert process.wait(90) == 2
    assert error in " ".join((tmp_path / "log").read_text().split())
