"""A full disk under the spool of `mqinfer replay`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mqinfer.bags.writer import BagWriter
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.images.picture import RawImage
from tests.faults.figures import Figures

Start = Callable[..., Any]
HEIGHT, WIDTH, RATE = 48, 64, 100
DISK = 1 << 20
"""Bytes of the disk: about 80 frames as they are, which are less than a second."""


@dataclass
class Disk:
    """A small disk.

    Attributes:
        folder: Where it is mounted.
    """

    folder: Path

    def fill(self) -> None:
        """Fill the disk to the last byte."""
        with (self.folder / "of-others").open("ab", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                return


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    """A disk of a megabyte, which takes the permission to mount one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", str(folder)]
    try:
        mounted = subprocess.run(mount, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        mounted = False
    if not mounted:
        pytest.skip("no permission to mount a small disk")
    (folder / "of-others").touch()  # a full disk has no room for a new name either
    yield Disk(folder)
    subprocess.run(["umount", str(folder)], check=True)


@pytest.fixture
def record(tmp_path: Path) -> Callable[..., Path]:
    """Record a bag of numbered pictures: `record("drive", 300)`."""

    def write(name: str, frames: int) -> Path:
        path = tmp_path / f"{name}.bag"
        with BagWriter(path, "bag") as bag:
            for number in range(frames):
                pixels = bytes([number % 256]) * (3 * HEIGHT * WIDTH)
                image = RawImage("rgb8", HEIGHT, WIDTH, 3 * WIDTH, is_bigendian=False, data=pixels)
                bag.write(f"/{name}", image, number + 1, 10**9 + number * 10**9 // RATE)
        return path

    return write


class Replaying:
    """A process of `mqinfer replay` with a spool on the disk."""

    def __init__(self, source: Path, url: str, disk: Disk, out: Path) -> None:
        self._out = out
        out.mkdir()
        self._log = out / "log"
        words = f"replay {source} --model echo --broker {url} --encoding raw --rate 1 --spool {disk.folder / 'spool'}"
        words += f" --output {out} --sink jsonl --summary {out / 'summary.json'}"
        with self._log.open("w") as log:
            command = [sys.executable, "-m", "mqinfer", *words.split()]
            self.process = subprocess.Popen(command, stdout=log, stderr=log)

    def log(self) -> str:
        """Return its log with the lines joined."""
        return " ".join(self._log.read_text().split())

    def results(self) -> list[dict[str, Any]]:
        """Return the frames that have their outcome, in the order of writing."""
        return self._lines("results.jsonl")

    def messages(self) -> list[str]:
        """Return the messages of their errors, empty where there is none."""
        return [(line["error"] or {"message": ""})["message"] for line in self._lines("times.jsonl")]

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self._out / name
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for(self, what: Callable[[], object]) -> None:
        """Wait until a condition is true while the process runs."""
        end = time.monotonic() + 60
        while not what():
            assert self.process.poll() is None, self.log()
            assert time.monotonic() < end, self.log()
            time.sleep(0.02)

    def end(self) -> dict[str, Any]:
        """Wait until the process ends; return its summary, whose sums balance."""
        self.process.wait(60)
        assert "Traceback" not in self.log()
        summary: dict[str, Any] = json.loads((self._out / "summary.json").read_text())
        assert sum(summary["outcomes"].values()) == summary["requests"] == summary["frames_read"]
        assert Counter(line["outcome"] for line in self.results()) == Counter(summary["outcomes"])
        return summary


@pytest.fixture
def replaying(tmp_path: Path, own_broker: MosquittoServer, disk: Disk) -> Iterator[Callable[[Path], Replaying]]:
    """Start replays against the test's own broker: `replaying(bag)`."""
    started: list[Replaying] = []

    def start(source: Path) -> Replaying:
        started.append(Replaying(source, own_broker.url, disk, tmp_path / f"out-{len(started)}"))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


@pytest.fixture
def echo(serve: Start, write_echo: Start, own_broker: MosquittoServer) -> None:
    """Serve a model that returns its pictures."""
    serve(own_broker.url, write_echo("echo", ("image", "UINT8", [-1, HEIGHT, WIDTH, 3])))


def kept(disk: Disk) -> int:
    """Return the number of frames in the spool; assert that none is damaged."""
    assert not list((disk.folder / "spool").glob("*.damaged"))
    return len(list((disk.folder / "spool").glob("*.frame")))


def fill_in_an_outage(replay: Replaying, broker: MosquittoServer, disk: Disk) -> None:
    """Kill the broker under load, wait until the spool is full, and fill the rest of the disk."""
    replay.wait_for(lambda: len(replay.results()) >= 20)
    broker.kill()
    replay.wait_for(lambda: "stores no more frames" in replay.log())
    disk.fill()
    before = len(replay.results())
    time.sleep(1.5)
    assert replay.process.poll() is None
    assert len(replay.results()) == before, "the reader waits; no frame is dropped"


@pytest.mark.usefixtures("echo")
def test_a_full_disk_in_an_outage(
    own_broker: MosquittoServer, disk: Disk, record: Start, replaying: Start, figure: Figures
) -> None:
    """Without a broker the disk fills up and the reader waits; then all frames are answered once, in order."""
    frames = 3 * RATE
    replay: Replaying = replaying(record("drive", frames))
    fill_in_an_outage(replay, own_broker, disk)
    assert sum(path.stat().st_size for path in (disk.folder / "spool").iterdir()) > DISK // 2
    own_broker.start()
    summary = replay.end()
    row = f"a spool's disk of 1 MB, full to the last byte while the broker is gone; {frames} frames at {RATE}/s"
    figure(row, "ok", f"{summary['outcomes']['ok']}/{frames}", "all", passed=summary["outcomes"]["ok"] == frames)
    figure(row, "frames left in the spool", kept(disk), "0", passed=kept(disk) == 0)
    assert replay.process.returncode == 0
    assert [line["sequence"] for line in replay.results()] == list(range(frames))
    assert summary["outcomes"]["ok"] == frames
    assert kept(disk) == 0


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
@pytest.mark.usefixtures("echo")
def test_a_run_that_ends_while_the_disk_is_full(
    own_broker: MosquittoServer, disk: Disk, record: Start, replaying: Start, figure: Figures, how: signal.Signals
) -> None:
    """When the run ends in the outage, each frame is kept or reported as not kept; the next run sends the kept ones."""
    replay: Replaying = replaying(record("drive", 3 * RATE))
    fill_in_an_outage(replay, own_broker, disk)
    os.kill(replay.process.pid, how)
    replay.process.wait(60)
    waiting = kept(disk)
    served = {line["sequence"] for line in replay.results() if line["outcome"] == "ok"}
    row = f"a spool's disk of 1 MB, full while the broker is gone, and {how.name} to the edge"
    if how is signal.SIGTERM:
        replay.end()
        said = Counter("not kept" in message for message in replay.messages())
        assert said[False] == len(served) + waiting
        figure(row, "frames answered; kept; said not to be kept", f"{len(served)}; {waiting}; {said[True]}")
        assert all(line["outcome"] in {"ok", "cancelled"} for line in replay.results())
        assert "another --spool" in replay.messages()[-1]
    own_broker.start()
    following: Replaying = replaying(record("next", 20))
    summary = following.end()
    late = [line["sequence"] for line in following.results() if line["source"] == "/drive"]
    figure(row, "kept frames that the next run delivers", f"{len(late)}/{waiting}", "all", passed=len(late) == waiting)
    assert summary["outcomes"]["ok"] == waiting + 20
    assert len(set(late)) == len(late) == waiting
    assert not served & set(late), "nothing that was answered is sent again"
    assert kept(disk) == 0
