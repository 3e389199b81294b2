"""`mqinfer bench codecs` measures a real recording with a real worker, and what it prints, writes and draws agrees."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from mqinfer.bench.encodings import CollectingSink, changed_share
from mqinfer.cli.app import app
from mqinfer.lab.drives.recording import write_drive

pytestmark = pytest.mark.broker
LOSSLESS = {"raw", "lz4", "bayer:lz4", "bayer"}
LOSSY = {"jpeg:90", "jpeg:50"}


@pytest.fixture
def drive(tmp_path: Path) -> Path:
    """A short drive of small mosaics."""
    return write_drive(tmp_path / "drive.bag", ros=1, frames=4, seed=1, width=96, height=64)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with a model that returns the picture, in half of the drive's size, and one without pictures."""
    shapes = {"eye": [1, 32, 48, 3], "table": [1, 4]}
    for name, shape in shapes.items():
        folder = tmp_path / "models" / name / "1"
        folder.mkdir(parents=True)
        declared = f'[[input]]\nname = "x"\ndatatype = "UINT8"\nshape = {shape}\n'
        (folder / "model.echo").write_text(declared, encoding="utf-8")
    return tmp_path / "models"


def test_encodings_are_measured(drive: Path, models: Path, tmp_path: Path) -> None:
    """Nothing that is lossless changes an answer; the table, the JSON and the plot name each encoding."""
    plot = tmp_path / "a.svg"
    where = ["--repository", str(models), "--frames", "3", "--plot", str(plot)]
    chosen = [f"--encoding={name}" for name in sorted(LOSSLESS | LOSSY)]
    found = CliRunner().invoke(app, ["bench", "codecs", str(drive), "--model", "eye", *where, *chosen, "--json"])
    assert found.exit_code == 0, found.output
    measured = json.loads(found.stdout)
    rows = {each["encoding"]: each for each in measured["figures"]}
    assert rows.keys() == LOSSLESS | LOSSY
    for name, row in rows.items():
        assert (row["alone"]["psnr_db"] is None and row["changed"] == 0) == (name in LOSSLESS)
        assert row["p50_ms"] > 0
        assert 0 < row["finishing"] < 1
        assert row["alone"]["frame_bytes"] > 0
    assert rows["raw"]["alone"]["frame_bytes"] == 32 * 48 * 3
    assert rows["jpeg:50"]["changed"] > 0
    assert rows["bayer:lz4"]["alone"]["frame_bytes"] <= 96 * 64 + 64
    assert measured["subject"]["picture"] == "48x32"
    assert "bayer:lz4" in plot.read_text()


def test_a_thin_link_is_measured(drive: Path, models: Path) -> None:
    """The rate over the link stands beside the other figures; `auto` is an encoding like any."""
    options = ["--encoding", "auto", "--link-mbit", "50", "--seconds", "1", "--frames", "2"]
    where = ["--repository", str(models), "--model", "eye"]
    found = CliRunner().invoke(app, ["bench", "codecs", str(drive), *where, *options])
    assert found.exit_code == 0, found.output
    raw, auto = (line.split() for line in found.stdout.splitlines() if re.match("(raw|auto:jpeg:90,raw)", line))
    assert min(float(raw[7]), float(auto[7])) >= 0


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--model", "table"], "takes no colour pictures"),
        (["--model", "eye", "--encoding", "no"], "unknown encoding 'no'"),
        (["--model", "none"], "there is no such model"),
    ],
)
def test_what_can_not_be_measured(drive: Path, models: Path, options: list[str], words: str) -> None:
    """A model without pictures, an encoding or model that does not exist: a message, and no table."""
    found = CliRunner().invoke(app, ["bench", "codecs", str(drive), "--repository", str(models), *options])
    assert words in f"{found.exception}{found.output}"
    assert found.exit_code != 0


def test_the_share_of_changed_answers() -> None:
    """Masks are compared by pixels; numbers differ beyond a hundredth of the largest; shapes count, too."""

    def share(one: object, other: object) -> float:
        first, second = CollectingSink(), CollectingSink()
        first.outputs, second.outputs = [{"y": np.asarray(one)}], [{"y": np.asarray(other)}]
        return changed_share(second, first)

    mask = np.zeros((1, 10, 10), np.uint8)
    changed = mask.copy()
    changed[0, 0, :5] = 1
    assert share(mask, changed) == 0.05
    assert share([100.0, 2.0], [100.5, 4.0]) == 0.5
    assert share([1.0], [1.0, 2.0]) == 1.0
