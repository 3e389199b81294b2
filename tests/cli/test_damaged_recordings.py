"""A sweep: copies of recordings, cut, flipped or zeroed at random places, through `mqinfer replay`.

`MQINFER_DAMAGED_COPIES=200 pytest tests/cli/test_damaged_recordings.py` runs more, and prints what became of them.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
import pytest

from mqinfer.bags.info import describe
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.errors import MqinferError
from tests.commands import run_main

COPIES = int(os.environ.get("MQINFER_DAMAGED_COPIES", "50"))
FRAMES = 40
TOPIC = "/camera/image_raw"


def record(folder: Path, kind: Any) -> Path:
    """Record a drive in one file."""
    if kind == "video":
        return _encode(folder / "drive.mp4")
    small: dict[str, Any] = {"frames": FRAMES, "seed": 1, "width": 96, "height": 64, "truth_topic": False}
    if kind == "bag":
        return write_drive(folder / "drive.bag", ros=1, **small)
    drive = write_drive(folder / "drive", ros=2, storage=kind, **small)
    return next(path for path in drive.iterdir() if path.suffix != ".yaml")


def _encode(path: Path, codec: str = "libx264") -> Path:
    generator = np.random.default_rng(1)
    options = {"movflags": "faststart"} if path.suffix == ".mp4" else {}
    with av.open(str(path), "w", options=options) as file:
        stream: Any = file.add_stream(codec, rate=25, options={"g": "10"})
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        for _ in range(FRAMES):
            picture = np.repeat(np.repeat(generator.integers(0, 255, (16, 24, 3), np.uint8), 4, 0), 4, 1)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())
    return path


def damage(whole: bytes, seed: str) -> bytes:
    """Cut a copy, flip ten of its bits, or overwrite up to an eighth of it with zeros."""
    at_random, copy = random.Random(seed), bytearray(whole)  # noqa: S311 - seeded damage
    kind, at = at_random.choice(["cut", "flip", "zero"]), at_random.randrange(len(copy))
    if kind == "cut":
        return bytes(copy[:at])
    if kind == "flip":
        for _ in range(10):
            copy[at_random.randrange(len(copy))] ^= 1 << at_random.randrange(8)
    else:
        length = min(at_random.randrange(1, len(copy) // 8), len(copy) - at)
        copy[at : at + length] = bytes(length)
    return bytes(copy)


def stated(path: Path) -> int:
    """Return how many frames a recording says that it has; 0 where it can't be opened."""
    try:
        return sum(stream.count or 0 for stream in describe(str(path)).streams if stream.is_image)
    except MqinferError:
        return 0


@pytest.fixture
def replay(write_echo: Callable[..., Path]) -> Callable[[Path, Path], int]:
    """Replay a recording against an echo model in this process; return the exit code."""
    repository = write_echo("eye", ("image", "UINT8", [-1, 32, 48, 3]))
    options = ("--model", "eye", "--local", "--repository", repository)
    return lambda path, summary: run_main("replay", path, *options, "--summary", summary)


def test_a_video_that_is_cut_off(tmp_path: Path, replay: Callable[[Path, Path], int], capfd: Any) -> None:
    """What is there gets its outcome; the exit code and the summary report that the rest is missing."""
    video, summary = record(tmp_path, "video"), tmp_path / "summary.json"
    video.write_bytes(video.read_bytes()[: video.stat().st_size // 2])
    assert replay(video, summary) == 3
    written = json.loads(summary.read_text())
    read = written["frames_read"]
    assert 0 < read < FRAMES
    assert (written["ended"], written["outcomes"]["ok"]) == ("incomplete", read)
    error = f"the video is cut off or damaged: {FRAMES - read} of {FRAMES} frames are missing"
    assert written["reason"].endswith(error)
    assert error in capfd.readouterr().err


@pytest.mark.parametrize("suffix", [".h264", ".ts", ".mpg"])
def test_a_stream_with_zeros_in_it(tmp_path: Path, replay: Callable[[Path, Path], int], suffix: str) -> None:
    """It states no number of frames; its pictures tell, and it ends with 3."""
    video, summary = tmp_path / f"drive{suffix}", tmp_path / "summary.json"
    whole = _encode(video, "mpeg2video" if suffix == ".mpg" else "libx264").read_bytes()
    assert replay(video, summary) == 0
    at, length = len(whole) // 2, len(whole) // 8
    video.write_bytes(whole[:at] + bytes(length) + whole[at + length :])
    assert replay(video, summary) == 3
    written = json.loads(summary.read_text())
    assert written["ended"] == "incomplete"
    assert "damaged" in written["reason"]


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bag", "sqlite3", "mcap", "video"])
def test_no_damage_passes_for_a_success(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, replay: Callable[[Path, Path], int], capfd: Any, kind: str
) -> None:
    """None ends with 0 and fewer frames than it says, or with a traceback, or leaves a process or a folder behind."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    others = set(multiprocessing.active_children())  # of fixtures that outlive a test
    whole = record(tmp_path, kind)
    summary, copy = tmp_path / "summary.json", tmp_path / f"copy{whole.suffix}"
    assert replay(whole, summary) == 0
    ends: Counter[int] = Counter()
    for number in range(COPIES):
        copy.write_bytes(damage(whole.read_bytes(), f"{kind} {number}"))
        summary.unlink(missing_ok=True)
        capfd.readouterr()
        code = replay(copy, summary)
        printed = capfd.readouterr()
        assert "Traceback" not in printed.err + printed.out, number
        if code == 0:
            assert json.loads(summary.read_text())["frames_read"] >= stated(copy), number
        ends[code] += 1
    assert set(ends) <= {0, 1, 3}
    assert ends[1] + ends[3] > COPIES / 4
    assert set(multiprocessing.active_children()) <= others
    assert not list(folder.iterdir())
    with capfd.disabled():
        if COPIES > 50:
            print(kind, dict(ends))  # noqa: T201 - asked for


@pytest.mark.parametrize("name", [b"\xe4.mp4", b"\xe4.png"])
def test_names_that_are_not_utf_8(name: bytes, write_echo: Callable[..., Path], tmp_path: Path) -> None:
    """As older systems wrote them: the recording is read, and files of every kind and the report are written."""
    repository = write_echo("echo", ("image", "UINT8", [-1, -1, -1, 3]))
    folder = tmp_path / os.fsdecode(b"\xe4")
    folder.mkdir()
    path = folder / os.fsdecode(name)
    if name.endswith(b"4"):
        record(tmp_path, "video").rename(path)
    else:
        path.write_bytes(cv2.imencode(".png", np.zeros((64, 64, 3), np.uint8))[1].tobytes())
    kinds = [part for kind in ("jsonl", "mcap", "rosbag", "csv", "npz", "pictures") for part in ("--sink", kind)]
    files = ["--output", folder / "out", "--report", folder / "report.html"]
    assert run_main("replay", path, "--local", "--repository", repository, "--model", "echo", *kinds, *files) == 0
    assert 'href="out/results.jsonl"' in (folder / "report.html").read_text()
