"""Collected frames while processes are killed and links are cut: none twice, none half, and the budget is kept."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from functools import partial
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import pytest

from mqinfer.bags.sources import open_source
from mqinfer.edge_agent.collecting.store import Store
from mqinfer.edge_agent.collecting.upload import upload
from mqinfer.lab.drives.recording import write_drive
from mqinfer.protocol.errors import MqinferError
from tests.commands import command, run_main
from tests.edge_agent.test_collecting import DAY_S, ROOM, SIZE, answers, frame, keep
from tests.edge_agent.test_redaction import BOX, detector
from tests.patience import PATIENCE_S, wait_until

pytestmark = pytest.mark.slow
KILLS = 40 if os.environ.get("MQINFER_FAULTS") == "full" else 3
CUTS = 10
DAY_BYTES = 12 * ROOM
COLLECTING = f"""
import sys
from pathlib import Path
import numpy as np
from mqinfer.bags.frame import Frame
from mqinfer.edge_agent.collecting.store import Drop, Store
from mqinfer.images.picture import RawImage

store = Store(Path(sys.argv[1]), 1 << 30, {DAY_BYTES}, lambda: {DAY_S / 2})
for number in range(10**6):
    pixels = np.random.default_rng(number).integers(0, 256, {SIZE}, np.uint8).tobytes()
    image = RawImage("bayer_rggb8", {SIZE} // 32, 32, 32, is_bigendian=False, data=pixels)
    drop = store.keep(Frame("/camera/image", number, 10**18 + number * 10**9, number, "", image), lambda: "{{}}")
    print(number, flush=True)
    if drop is Drop.DAY:
        break
"""
UPLOADING = """
import shutil, sys, time
from pathlib import Path
from mqinfer.edge_agent.collecting import upload

def slowly(source, target):
    while piece := source.read(512):
        target.write(piece)
        target.flush()
        time.sleep(0.001)

shutil.copyfileobj = slowly
for _ in upload.upload(Path(sys.argv[1]), sys.argv[2]):
    print("done", flush=True)
"""


def whole(folder: Path) -> list[int]:
    """Return the numbers of the frames of a folder; assert that each file is whole, and has one that no other has."""
    found = []
    for path in sorted(folder.glob("*.mcap")):
        with closing(open_source(str(path))) as source:
            (one,) = source.frames()
        found.append((one.capture_time_ns - 10**18) // 10**9)
        assert bytes(one.image.data) == bytes(frame(found[-1]).image.data)
    assert len(set(found)) == len(found)
    return found


@pytest.fixture
def start() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start programs: `start(PROGRAM, folder)`; what is left of them ends with the test."""
    started: list[subprocess.Popen[str]] = []

    def run(program: str, *words: object) -> subprocess.Popen[str]:
        line = [sys.executable, "-c", program, *map(str, words)]
        started.append(subprocess.Popen(line, stdout=subprocess.PIPE, text=True))
        return started[-1]

    yield run
    for each in started:
        each.kill()
        each.communicate()


def test_a_process_that_is_killed_while_it_collects(
    tmp_path: Path, start: Callable[..., subprocess.Popen[str]]
) -> None:
    """At any moment: the next one goes on, with what is left of the day's bytes."""
    chance = Random(3)  # noqa: S311 - no secret depends on it
    for _ in range(KILLS):
        process = start(COLLECTING, tmp_path)
        assert process.stdout is not None
        for _ in range(chance.randint(1, 4)):
            process.stdout.readline()
        time.sleep(chance.uniform(0, 0.03))  # a moment that nothing tells
        process.kill()
        process.wait()
        sizes = sum(path.stat().st_size for path in tmp_path.glob("*.mcap"))
        assert sizes <= json.loads((tmp_path / "budget.json").read_text())["used"] <= DAY_BYTES
    before = whole(tmp_path)
    last = start(COLLECTING, tmp_path)
    assert last.wait(PATIENCE_S) == 0
    after = whole(tmp_path)
    assert after == [*range(len(after))]
    assert len(before) < len(after)
    largest = max(path.stat().st_size for path in tmp_path.glob("*.mcap"))
    sizes = sum(path.stat().st_size for path in tmp_path.glob("*.mcap"))
    assert DAY_BYTES - ROOM - (KILLS + 1) * largest < sizes <= DAY_BYTES
    assert {path.suffix for path in tmp_path.iterdir()} == {".mcap", ".json"}


def collected(folder: Path, count: int) -> None:
    """Collect so many frames."""
    with closing(Store(folder, 1 << 30, 1 << 30)) as store:
        assert keep(store, *range(count)) == [None] * count


@pytest.mark.full
def test_an_upload_that_is_killed_ten_times(tmp_path: Path, start: Callable[..., subprocess.Popen[str]]) -> None:
    """Each frame is at the target once and whole, and none is lost; what was cut has no frame's name."""
    here, there, chance, halves = tmp_path / "kept", tmp_path / "target", Random(4), 0  # noqa: S311 - no secret
    collected(here, 3 * CUTS)
    for _ in range(CUTS):
        process = start(UPLOADING, here, there)
        assert process.stdout is not None
        for _ in range(chance.randint(0, 2)):
            process.stdout.readline()
        wait_until(lambda: any(there.glob("*.new")))
        process.kill()
        process.wait()
        halves += any(there.glob("*.new"))
        at_one, at_other = whole(there), whole(here)
        assert set(at_one) | set(at_other) == {*range(3 * CUTS)}
        assert len(set(at_one) & set(at_other)) <= 1
    assert halves > CUTS // 2
    assert start(UPLOADING, here, there).wait(PATIENCE_S) == 0
    assert whole(there) == [*range(3 * CUTS)]
    assert {path.suffix for path in there.iterdir()} == {".mcap"}
    assert not list(here.glob("*.mcap"))


@pytest.mark.full
def test_a_store_whose_link_is_cut_ten_times(s3: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An upload to S3 ends with an error each time; each frame is there once and whole in the end."""
    files = import_module("fsspec").filesystem("s3")
    files.makedirs("collected", exist_ok=True)
    collected(tmp_path, 3 * CUTS)
    application = s3._server.app
    left = 0

    def cut(environ: dict[str, Any], begin: Any) -> Any:
        nonlocal left
        if environ["REQUEST_METHOD"] == "PUT":
            left -= 1
            if left < 0:
                environ["wsgi.input"].read(1000)
                raise ConnectionAbortedError
        return application(environ, begin)

    s3._server.app = cut
    monkeypatch.setattr("s3fs.core.S3FileSystem.retries", 1)
    for number in range(CUTS):
        left = number % 3
        with pytest.raises(MqinferError, match="can't be written"):
            list(upload(tmp_path, "s3://collected/fleet"))
    left = 1 << 30
    assert all(upload(tmp_path, "s3://collected/fleet"))
    files.get("collected/fleet", str(tmp_path / "back"), recursive=True)
    assert whole(tmp_path / "back") == [*range(3 * CUTS)]
    assert not list(tmp_path.glob("*.mcap"))


def test_versions_that_disagree(tmp_path: Path) -> None:
    """A frame in which one version finds another number of objects is kept with both answers."""
    models, drive = tmp_path / "models", tmp_path / "drive.bag"
    write_drive(drive, ros=1, frames=3, seed=2, width=96, height=64, truth_topic=False)
    for version, boxes in ((1, [BOX]), (2, [BOX, BOX])):
        made = detector(tmp_path / str(version), boxes, config="version_policy = { all = {} }")
        (models / "fixed").mkdir(parents=True, exist_ok=True)
        (made / "1").rename(models / "fixed" / str(version))
        (made / "model.toml").replace(models / "fixed" / "model.toml")
    kept = tmp_path / "kept"
    words = ["--model", "fixed/1", "--model", "fixed/2", "--local", "--repository", models, "--collect", kept]
    assert run_main("replay", drive, *words) == 0
    found = [answers(path) for path in kept.glob("*.mcap")]
    assert [each["collected"] for each in found] == [["disagree"]] * 3
    for each in found:
        assert {answer["model_version"]: len(answer["detections"]) for answer in each["results"]} == {"1": 1, "2": 2}


def _has(folder: Path, least: int) -> bool:
    return len(list(folder.glob("*.mcap"))) >= least


def test_the_command_is_killed_and_then_uploads(tmp_path: Path, write_echo: Callable[..., Path]) -> None:
    """Every frame whose model failed is kept once over three starts, and the summary counts them."""
    drive = write_drive(
        tmp_path / "drive.bag", ros=1, frames=60, seed=2, rate=20, width=96, height=64, truth_topic=False
    )
    without = "[model_warmup]\ncount = 0\n"
    models = write_echo("echo", ("image", "UINT8", [-1, 64, 96, 3]), fail_every=1, config=without)
    kept, summary = tmp_path / "kept", tmp_path / "summary.json"
    words = f"replay {drive} --model echo --local --repository {models} --collect {kept} --summary {summary}"
    for least in (1, 15):
        with subprocess.Popen(command(*words.split(), "--rate", "1"), stderr=subprocess.DEVNULL) as process:
            wait_until(partial(_has, kept, least))
            process.kill()
    there = len(list(kept.glob("*.mcap")))
    assert subprocess.run(command(*words.split()), capture_output=True, check=False).returncode == 1
    found = json.loads(summary.read_text())["collected"]
    assert found == {"frames": 60 - there, "kept": {"error": 60 - there}, "dropped": {"there": there}}
    line = command("collect", "upload", kept, tmp_path / "target")
    assert subprocess.run(line, capture_output=True, check=True, text=True).stdout.startswith("uploaded 60 frames to")
    with closing(open_source(str(drive))) as recorded, closing(open_source(str(tmp_path / "target"))) as uploaded:
        for one, other in zip(recorded.frames(), uploaded.frames(), strict=True):
            assert (one.source, one.capture_time_ns, bytes(one.image.data)) == (
                other.source,
                other.capture_time_ns,
                bytes(other.image.data),
            )
