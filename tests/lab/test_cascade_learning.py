from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from mqinfer.cli.app import app
from mqinfer.images.picture import CompressedImage
from mqinfer.judging.settings import read_settings
from mqinfer.judging.thumbnail import thumbnail
from mqinfer.lab.cascade import training
from mqinfer.lab.drives.street import StreetCamera
from mqinfer.protocol.errors import MqinferError
from tests.lab.watchers import SIDE, write_frames, write_watcher

pytestmark = pytest.mark.full

TRAINED, CALIBRATED, KEPT = 120, 300, 80


@pytest.fixture(scope="module")
def street(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with the frames of a street, a repository with two references, and a small model trained on one."""
    folder = tmp_path_factory.mktemp("street")
    camera = StreetCamera(4, SIDE, SIDE, 2.0)
    write_frames(folder / "frames", camera, TRAINED + CALIBRATED + KEPT)
    write_watcher(folder / "models" / "watcher", camera)
    write_watcher(folder / "models" / "credulous", camera, always=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(training, "_STEPS", 50)
        output = run(folder, "train", "--frames", str(TRAINED))
    assert "right on frames that were kept back" in output
    return folder


def run(folder: Path, command: str, *options: str, reference: str = "watcher", source: str = "frames") -> str:
    """Run `mqinfer cascade COMMAND` and return what it printed; its error is raised."""
    repository = ["--repository", str(folder / "models"), "--local", "--target", "car"]
    words = ["cascade", command, str(folder / source), "--reference", reference, *repository, *options]
    result = CliRunner().invoke(app, words)
    if isinstance(result.exception, MqinferError):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


@pytest.mark.slow
def test_a_cascade_is_trained_calibrated_and_replayed(street: Path, tmp_path: Path) -> None:
    """Its answers to later frames are the reference's, as promised, and the reference answers few of them."""
    files = {name: tmp_path / name for name in ("cascade.toml", "scores.npz", "frontier.png")}
    options = [
        "--output",
        str(files["cascade.toml"]),
        "--scores",
        str(files["scores.npz"]),
        "--frames",
        str(CALIBRATED),
    ]
    output = run(
        street,
        "calibrate",
        *options,
        "--accuracy",
        "0.85",
        "--tolerance",
        "0.1",
        "--reference-ms",
        "600",
        "--plot",
        str(files["frontier.png"]),
    )
    assert all(path.stat().st_size for path in files.values())
    assert "confidence the accuracy on further frames like these is above" in output
    settings = read_settings(files["cascade.toml"])
    assert settings.difference or settings.small
    with np.load(files["scores.npz"]) as scores:
        assert scores["thumbnails"].shape == (CALIBRATED, 50, 50, 3)
        first = sorted((street / "frames").iterdir())[TRAINED]  # those before it are the model's own
        assert (scores["thumbnails"][0] == thumbnail(CompressedImage("png", first.read_bytes()))).all()
    assert (
        CliRunner()
        .invoke(app, ["cascade", "report", str(files["scores.npz"]), "--accuracy", "0.9", "--tolerance", "0.1"])
        .exit_code
        == 0
    )
    (tmp_path / "bare.toml").write_text('target = "car"\n[reference]\nmodel = "watcher"\n')
    staged, bare = (replayed(street, tmp_path / name) for name in ("cascade.toml", "bare.toml"))
    late = slice(TRAINED + CALIBRATED, None)
    agreed = [one["outputs"]["present"] == other["outputs"]["present"] for one, other in zip(staged, bare, strict=True)]
    assert np.mean(agreed[late]) >= 0.75
    assert sum(each["stage"] == "worker" for each in staged[late]) < 0.8 * KEPT
    assert {each["stage"] for each in bare} == {"worker"}


@pytest.mark.slow
def test_a_small_model_learns_from_collected_frames(
    street: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of `--collect` is a recording: here of a frame a second."""
    words = ["replay", str(street / "frames"), "--model", "watcher", "--local", "--collect", str(tmp_path / "kept")]
    words += ["--collect-rate", "3600", "--repository", str(street / "models")]
    assert CliRunner().invoke(app, words).exit_code == 0
    monkeypatch.setattr(training, "_STEPS", 50)
    frames = ["--frames", str(TRAINED + CALIBRATED + KEPT), "--small", "learnt"]
    assert "right on frames that were kept back" in run(street, "train", *frames, source=str(tmp_path / "kept"))
    notes = json.loads((street / "models" / "learnt" / "1" / "training.json").read_text())
    assert notes["frames"] == (TRAINED + CALIBRATED + KEPT) // 10


def replayed(street: Path, cascade: Path) -> list[dict[str, Any]]:
    """Replay all frames through a cascade, and return its results."""
    output = cascade.with_suffix("")
    words = ["replay", str(street / "frames"), "--cascade", str(cascade), "--local"]
    result = CliRunner().invoke(
        app, [*words, "--repository", str(street / "models"), "--output", str(output), "--sink", "jsonl"]
    )
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in (output / "results.jsonl").read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "options", "message"),
    [
        ("train", ["--skip", "9999"], "there are no frames after the first 9999"),
        ("train", ["--frames", "5"], "5 frames are too few to train with; expected 20 or more"),
        ("calibrate", ["--frames", "39"], "39 frames are too few"),
        ("calibrate", ["--accuracy", "0.4"], "accuracy 0.4: expected a number from 0.5 to below 1"),
        ("calibrate", ["--accuracy", "1"], "a sample can't promise 1"),
        ("calibrate", ["--accuracy", "0.999", "--tolerance", "0", "--frames", "60"], "can't be promised"),
        ("calibrate", ["--blocks", "7"], "blocks = 7: expected one of 1, 2, 5"),
        ("calibrate", ["--small", "nobody", "--frames", "60"], "nobody"),
    ],
)
def test_bad_input_is_refused(street: Path, tmp_path: Path, command: str, options: list[str], message: str) -> None:
    """The message has what is wrong and what to do, and no file is written."""
    more = ["--output", str(tmp_path / "cascade.toml")] if command == "calibrate" else ["--small", "other"]
    with pytest.raises(MqinferError, match=message):
        run(street, command, *more, *options)
    assert not (tmp_path / "cascade.toml").exists()
    assert not (street / "models" / "other").exists()


@pytest.mark.slow
def test_a_reference_that_always_answers_the_same_teaches_nothing(street: Path, tmp_path: Path) -> None:
    """Neither training nor calibration starts."""
    with pytest.raises(
        MqinferError, match="nothing to learn: the reference finds the target in every one of 40 frames"
    ):
        run(street, "train", "--frames", "40", "--small", "other", reference="credulous")
    output = ["--output", str(tmp_path / "cascade.toml")]
    with pytest.raises(MqinferError, match="answers the same for all 60 frames"):
        run(street, "calibrate", "--frames", "60", *output, reference="credulous")


@pytest.mark.slow
def test_a_source_without_frames(street: Path) -> None:
    """An empty folder is no recording."""
    (street / "empty").mkdir(exist_ok=True)
    with pytest.raises(MqinferError, match="empty"):
        run(street, "train", source="empty")
