"""Replays of one recording with real processes: one worker, four, and a replay that is killed in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mqinfer.lab.drives.recording import write_drive
from tests.segmenter import write_segmenter

FRAMES = 40
PATIENCE = 180.0


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """A small recording."""
    return write_drive(tmp_path / "drive", ros=2, frames=FRAMES, seed=4, width=96, height=64, truth_topic=False)


@contextmanager
def serving(repository: Path, url: str, root: str, instances: int) -> Iterator[None]:
    """Run `mqinfer worker` with so many processes, until they are ready."""
    command = [sys.executable, "-m", "mqinfer", "worker", "--repository", str(repository), "--root", root]
    command += ["--broker", url, "--instances", str(instances), "--device", "cpu"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        try:
            ready = 0
            for line in process.stderr:
                ready += " ready: " in line
                if ready == instances:
                    break
            assert ready == instances
            yield
        finally:
            process.send_signal(signal.SIGINT)
            process.stderr.read()


@pytest.mark.slow
@pytest.mark.broker
def test_the_same_recording_gives_the_same_bytes(
    tmp_path: Path, drive: Path, broker_url: str, unique: Callable[[str], str]
) -> None:
    """One worker and four, undisturbed and killed in the middle and resumed: one results.jsonl, byte for byte."""
    root, repository = unique("test"), write_segmenter(tmp_path / "models")

    def start(out: str, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "mqinfer", "replay", str(drive), "--model", "mask", "--root", root]
        command += ["--broker", broker_url, "--output", str(tmp_path / out), "--sink", "jsonl", *options]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def results(out: str) -> bytes:
        path = tmp_path / out / "results.jsonl"
        return path.read_bytes() if path.exists() else b""

    with serving(repository, broker_url, root, 1):
        assert start("one").wait(PATIENCE) == 0
    with serving(repository, broker_url, root, 4):
        assert start("four").wait(PATIENCE) == 0
        killed = start("killed", "--rate", "2")
        end = time.monotonic() + PATIENCE
        while results("killed").count(b"\n") < FRAMES // 4:
            assert killed.poll() is None
            assert time.monotonic() < end
            time.sleep(0.01)
        killed.kill()
        killed.wait()
        before = results("killed")
        assert FRAMES // 4 <= before.count(b"\n") < FRAMES
        assert start("killed", "--resume").wait(PATIENCE) == 0
    assert results("one").count(b"\n") == FRAMES
    assert results("four") == results("one")
    assert results("killed") == results("one")
    assert results("killed").startswith(before[: before.rfind(b"\n") + 1])
    times = [json.loads(line) for line in (tmp_path / "four" / "times.jsonl").read_text().splitlines()]
    assert len({line["worker"] for line in times}) > 1
    assert len({line["outputs"]["output"]["hash"] for line in map(json.loads, results("one").splitlines())}) > 1
