"""A replay that is killed, and a disk that is full under its results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import cv2
import pytest
from mcap.exceptions import EndOfFile
from mcap.reader import SeekingReader
from mcap.records import Channel, Message
from mcap.stream_reader import StreamReader

from mqinfer.lab.drives.recording import write_drive

HEIGHT, WIDTH = 64, 96
RATE, SPEED = 20, 4
KILLS = 10 if os.environ.get("MQINFER_FAULTS") == "full" else 4
PATIENCE = 180.0
CLIP = RATE + 1
"""Frames of a video that a kill may lose: a second of video, and the first frame, which waits for the rate."""


@pytest.fixture(scope="module")
def drive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A recording of ten seconds."""
    path = tmp_path_factory.mktemp("drive") / "drive.bag"
    return write_drive(path, ros=1, frames=10 * RATE, seed=2, rate=RATE, width=WIDTH, height=HEIGHT, truth_topic=False)


@pytest.fixture
def start(drive: Path, write_echo: Callable[..., Path]) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start `mqinfer replay --local` into a folder, with its standard error in a file: `start(out, log, "--loop")`."""
    repository = write_echo("echo", ("image", "UINT8", [-1, HEIGHT, WIDTH, 3]))
    started: list[subprocess.Popen[bytes]] = []

    def run(out: Path, log: Path, *options: str, source: str = str(drive), first: str = "") -> subprocess.Popen[bytes]:
        program = f"{first}\nfrom mqinfer.cli.app import main\nmain()"
        command = [sys.executable, "-c", program, "replay", source, "--model", "echo", "--local"]
        command += ["--repository", str(repository), "--output", str(out), "--picture-every", "7", *options]
        with log.open("wb") as errors:
            started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors))
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.wait()


def lines(path: Path) -> list[dict[str, object]]:
    """Return the whole lines of a file."""
    content = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in content[: content.rfind(b"\n") + 1].splitlines()]


def wait_for_lines(process: subprocess.Popen[bytes], path: Path, count: int) -> None:
    """Wait until a file has so many lines."""
    end = time.monotonic() + PATIENCE
    while not path.exists() or path.read_bytes().count(b"\n") < count:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.01)


def video_frames(path: Path) -> int:
    """Count the frames that really decode; assert the rate."""
    video, count = cv2.VideoCapture(str(path)), 0
    assert video.get(cv2.CAP_PROP_FPS) == pytest.approx(RATE, rel=0.2)
    while video.read()[0]:
        count += 1
    video.release()
    return count


def messages(path: Path) -> int:
    """Count the results in an MCAP file with a reader that seeks."""
    with path.open("rb") as file:
        found = SeekingReader(file, validate_crcs=True).iter_messages()
        return sum(channel.topic.endswith("/result") for _, channel, _ in found)


def streamed_messages(path: Path) -> int:
    """Count the results in an MCAP file without an end, up to its last chunk."""
    topics: dict[int, str] = {}
    count = 0
    with path.open("rb") as file, suppress(EndOfFile):
        for record in StreamReader(file, validate_crcs=True).records:
            if isinstance(record, Channel):
                topics[record.id] = record.topic
            count += isinstance(record, Message) and topics[record.channel_id].endswith("/result")
    return count


@pytest.mark.full
@pytest.mark.slow
def test_kills_leave_readable_files(tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]) -> None:
    """Each file of each killed run can be read at once, and the next run into the folder overwrites nothing."""
    chance, out = Random(5), tmp_path / "out"  # noqa: S311 - no secret depends on it
    written: list[int] = []
    for attempt in range(KILLS):
        process = start(out, tmp_path / f"log-{attempt}", "--loop", "--rate", str(SPEED))
        if attempt:
            wait_for_lines(process, out / f"run.{attempt}" / "run.json", 0)  # now `results.jsonl` is the new one
        wait_for_lines(process, out / "results.jsonl", chance.randint(3 * RATE * SPEED, 5 * RATE * SPEED))
        process.send_signal(signal.SIGKILL)
        process.wait()
        written.append(len(lines(out / "results.jsonl")))
        assert written[-1] - CLIP <= video_frames(out / "overlay-camera-image_raw.mp4") <= written[-1] + 1
        found = streamed_messages(out / "results.mcap")
        assert 0 < written[-1] - 2 * RATE * SPEED <= found <= written[-1] + 1
    last = start(out, tmp_path / "log")
    assert last.wait(PATIENCE) == 0
    for number, count in enumerate(written, 1):
        earlier = out / f"run.{number}"
        assert len(lines(earlier / "results.jsonl")) == count
        assert 0 < count - 2 * RATE * SPEED <= messages(earlier / "results.mcap")
        assert count - CLIP <= video_frames(earlier / "overlay-camera-image_raw.mp4")
    assert len(lines(out / "results.jsonl")) == messages(out / "results.mcap") == 10 * RATE
    assert video_frames(out / "overlay-camera-image_raw.mp4") == 10 * RATE
    pictures = list(out.rglob("*.png"))
    assert len(pictures) > 10 * KILLS
    assert all(cv2.imread(str(path)) is not None for path in pictures)


def test_a_killed_run_with_parquet_goes_on_with_the_first_frame_that_has_no_row(
    tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]]
) -> None:
    """What the last part lacks is sent again, so both have each frame once; the log as it was is kept."""
    parquet: Any = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow, of the extra parquet")
    out, kinds = tmp_path / "out", ("--sink", "jsonl", "--sink", "parquet")
    small = "from mqinfer.edge_agent.sinks import parquet_sink\nparquet_sink._PART_ROWS = 64"
    process = start(out, tmp_path / "killed", *kinds, first=small)
    wait_for_lines(process, out / "results.jsonl", 90)
    process.send_signal(signal.SIGKILL)
    process.wait()
    kept = parquet.read_table(out / "results.parquet").num_rows
    assert 64 <= kept <= len(lines(out / "results.jsonl")) < 10 * RATE
    assert start(out, tmp_path / "log", *kinds, "--resume", first=small).wait(PATIENCE) == 0
    written = lines(out / "results.jsonl")
    rows = parquet.read_table(out / "results.parquet").to_pylist()
    assert [row["sequence"] for row in rows] == [line["sequence"] for line in written] == list(range(10 * RATE))
    hashes = [[each["hash"] for _, each in row["outputs"]] for row in rows]
    told: list[Any] = written
    assert hashes == [[each["hash"] for each in line["outputs"].values()] for line in told]
    assert f"{kept} frames have their result" in " ".join((tmp_path / "log").read_text().split())


@pytest.mark.parametrize(
    "room",
    [pytest.param(60, marks=pytest.mark.full), 300, pytest.param(700, marks=pytest.mark.full)],
    ids="{} kB".format,
)
def test_a_full_disk_under_the_results(
    tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]], room: int
) -> None:
    """The run ends with the file's name and what to do; what was written before can be read, and no traceback."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={room}k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("no permission to mount a small disk")
    try:
        process = start(disk / "out", tmp_path / "log", "--summary", str(tmp_path / "summary.json"))
        assert process.wait(PATIENCE) == 2
        log = " ".join((tmp_path / "log").read_text().split())
        assert "Traceback" not in log
        assert "error: cannot write" in log
        assert "make room there" in log
        summary = json.loads((tmp_path / "summary.json").read_text())
        assert summary["outcomes"]["ok"] == summary["frames_read"] > 0
        told = lines(disk / "out" / "results.jsonl")
        assert Counter(line["outcome"] for line in told) == Counter(ok=len(told))
        for path in (disk / "out").glob("*.png"):
            assert cv2.imread(str(path)) is not None
        assert not list((disk / "out").glob("*.new"))
        for path in (disk / "out").glob("*.mp4"):
            # The other files may fill the disk before one second of video is there.
            assert room < 700 or video_frames(path) > 0
    finally:
        subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.parametrize("kind", ["results.jsonl", "overlay-camera-image_raw-000000.png"])
def test_one_file_that_can_not_be_written_costs_no_other(
    tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]], kind: str
) -> None:
    """The run goes on without this kind of files, all others are whole, and its end says what is missing."""
    out = tmp_path / "out"
    out.mkdir()
    (out / kind).symlink_to("/dev/full")
    if kind.endswith(".png"):
        (out / kind).unlink()
        (out / (kind + ".new")).mkdir()
    process = start(out, tmp_path / "log")
    assert process.wait(PATIENCE) == 2
    log = " ".join((tmp_path / "log").read_text().split())
    assert "Traceback" not in log
    assert f"error: cannot write {out / kind}" in log or f"error: cannot write {out / kind}.new" in log
    assert "kinds of files that are incomplete: 1" in log
    frames = 10 * RATE
    assert kind == "results.jsonl" or len(lines(out / "results.jsonl")) == frames
    assert messages(out / "results.mcap") == frames
    assert video_frames(out / "overlay-camera-image_raw.mp4") == frames


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_a_stop_while_the_camera_stalls(
    tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]], stalling: Callable[[int], str], how: signal.Signals
) -> None:
    """The stream stays open and delivers nothing: the run ends all the same, and its files are complete."""
    out = tmp_path / "out"
    process = start(out, tmp_path / "log", source=stalling(40))
    wait_for_lines(process, out / "results.jsonl", 20)
    process.send_signal(how)
    assert process.wait(PATIENCE) == 0  # the regular end of a live source
    log = (tmp_path / "log").read_text()
    assert "Traceback" not in log
    assert "error:" not in log
    assert messages(out / "results.mcap") == len(lines(out / "results.jsonl")) >= 20


def test_a_camera_that_stalls_comes_back(
    tmp_path: Path, start: Callable[..., subprocess.Popen[bytes]], stalling: Callable[[int], str]
) -> None:
    """The run opens it again and goes on, with one line for the outage and one for its end; the numbers go on too."""
    out = tmp_path / "out"
    process = start(out, tmp_path / "log", source=stalling(40))
    wait_for_lines(process, out / "results.jsonl", 50)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
    log = " ".join((tmp_path / "log").read_text().split())
    assert "the camera stopped or stalled after" in log
    assert " is back after " in log
    numbers = [line["sequence"] for line in lines(out / "results.jsonl")]
    assert numbers == list(range(len(numbers)))


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize(("option", "code", "ended"), [("--rate=0.5", 130, "interrupted"), ("--loop", 0, "complete")])
def test_a_stop_before_the_end(
    tmp_path: Path,
    start: Callable[..., subprocess.Popen[bytes]],
    how: signal.Signals,
    option: str,
    code: int,
    ended: str,
) -> None:
    """Of a recording it is an interruption, by exit code and summary; a loop has no other end."""
    out, summary = tmp_path / "out", tmp_path / "summary.json"
    process = start(out, tmp_path / "log", option, "--sink", "jsonl", "--summary", str(summary))
    wait_for_lines(process, out / "results.jsonl", 3)
    process.send_signal(how)
    assert process.wait(90) == code
    told = json.loads(summary.read_text())
    assert (told["ended"], told["reason"], told["failures"]) == (ended, None, [])
    assert told["frames_read"] == told["outcomes"]["ok"] == len(lines(out / "results.jsonl")) >= 3
