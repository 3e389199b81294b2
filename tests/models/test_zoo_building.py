"""Building the zoo into a repository: training, export, and models that are not built again."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.lab.drives.lessons import lesson_drive, lessons_key
from mqinfer.lab.drives.synthetic import CLASSES as DRIVE_CLASSES
from mqinfer.lab.zoo import Lessons, building, catalogue
from mqinfer.lab.zoo.small_models import small_16
from mqinfer.lab.zoo.training import TrainingPlan
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ConfigError, MissingExtra
from mqinfer.protocol.types import TensorSpec

Pixels = np.ndarray[Any, np.dtype[np.uint8]]
DRIVES = ["drive_segmentation", "drive_segmentation_savedmodel", "drive_segmentation_onnx"]
SMALL = ["classifier_224", "small_16", "frame_mask", "vae_like"]
CLASSES = (ClassInfo("sky", (70, 130, 180)), ClassInfo("road", (128, 64, 128)))
FRAME = (608, 968)


def horizon(seed: int, height: int = 128, width: int = 128) -> Iterator[tuple[Pixels, Pixels]]:
    """Yield blue sky over a dark road with a moving horizon, which a network learns in a few steps."""
    rng = np.random.default_rng(seed)
    while True:
        mask = np.zeros((height, width), np.uint8)
        mask[int(rng.integers(height // 3, height // 2)) :] = 1
        colours = np.array([(80, 140, 230), (60, 50, 50)])[mask]
        yield np.clip(colours + rng.normal(0, 4, colours.shape), 0, 255).astype(np.uint8), mask


LESSONS = Lessons(horizon, CLASSES, "horizon 1")
PLAN = TrainingPlan(drives=4, frames=2, crop=(64, 64), batch=2, steps=60, rate=1e-2)


@pytest.fixture(scope="module")
def drives(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A repository with the trained network in its three formats, trained briefly on the horizon."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(building, "_PLAN", PLAN)
        path = tmp_path_factory.mktemp("zoo")
        built = building.build(path, DRIVES, lessons=LESSONS, again=True)
        assert [model.fresh for model in built] == [True] * 3
        yield path


def test_the_shipped_model_is_what_its_code_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest one, which is built without the onnx package."""
    small_16().write(tmp_path / "model.onnx")
    monkeypatch.setitem(sys.modules, "onnx", None)
    (built,) = building.build(tmp_path / "models", ["small_16"])
    assert (built.path / "1" / "model.onnx").read_bytes() == (tmp_path / "model.onnx").read_bytes()


@pytest.mark.full
@pytest.mark.slow
def test_three_formats_agree(drives: Path) -> None:
    """Frozen graph, SavedModel and ONNX return the same, correct mask."""
    picture, truth = next(horizon(99, *FRAME))
    masks = {}
    for found in Repository(drives).models():
        model = load_model(found, device="cpu")
        (spec,) = model.backend.inputs
        assert (spec.name, spec.datatype, spec.shape[1:]) == ("input", Datatype.UINT8, (*FRAME, 3))
        assert model.card.classes == CLASSES
        assert model.card.image is not None
        assert (model.card.image.width, model.card.image.height) == (968, 608)
        masks[found.name] = model.backend.infer({"input": picture[None]})["output"]
        model.backend.close()
    assert set(masks) == set(DRIVES)
    first = masks[DRIVES[0]]
    assert first.shape == (1, *FRAME)
    assert first.dtype == np.uint8
    assert (first[0] == truth).mean() > 0.98
    for mask in masks.values():
        assert (mask == first).mean() > 0.9999


@pytest.mark.full
@pytest.mark.slow
def test_weights_are_trained_once(drives: Path) -> None:
    """A second build does nothing; a missing model is exported from the same weights."""
    lines: list[str] = []
    built = building.build(drives, DRIVES, lessons=LESSONS, again=True, progress=lines.append)
    assert not any(model.fresh for model in built)
    assert lines == []
    (drives / DRIVES[2] / "zoo.key").unlink()
    built = building.build(drives, DRIVES, lessons=LESSONS, again=True, progress=lines.append)
    assert [model.fresh for model in built] == [False, False, True]
    assert len(lines) == 1
    assert lines[0].startswith("building drive_segmentation_onnx")


@pytest.mark.slow
def test_the_trained_network_ships(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is trained unless asked for; the ONNX file needs no TensorFlow, and has the mask of the weights."""
    monkeypatch.setattr(building, "train", lambda *_: pytest.fail("trained"))
    lessons = Lessons(lesson_drive, DRIVE_CLASSES, lessons_key())
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "tensorflow", None)
        building.build(tmp_path, ["drive_segmentation_onnx"], lessons=lessons)
    building.build(tmp_path, ["drive_segmentation"], lessons=lessons)
    picture, truth = next(lesson_drive(900_003))
    masks = []
    for found in Repository(tmp_path).models():
        model = load_model(found, device="cpu")
        assert model.card.classes == DRIVE_CLASSES
        masks.append(model.backend.infer({"input": picture[None]})["output"][0])
        model.backend.close()
    assert (masks[0] == masks[1]).mean() > 0.9999
    assert (masks[0] == truth).mean() > 0.9


@pytest.mark.full
@pytest.mark.slow
def test_other_lessons_other_network(drives: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lessons with another key cause a new training."""
    monkeypatch.setattr(building, "train", lambda *_: pytest.fail("trained"))
    other = Lessons(horizon, CLASSES, "horizon 2")
    with pytest.raises(pytest.fail.Exception, match="trained"):
        building.build(drives, DRIVES[:1], lessons=other, again=True)


@pytest.mark.full
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "megabytes", "given", "logits"),
    [
        ("mobilenet_v3_small_968_608_os8", 4.6, (1, *FRAME, 3), None),
        ("mobilenet_v3_large_968_608_os8", 8.6, (1, *FRAME, 3), None),
        ("mobilenetv3_large_os8_deeplabv3plus", 49.7, (-1, 1024, 2048, 3), (1024, 2048, 19)),
        ("encoder_decoder_2048_1024", 29.4, (-1, 1024, 2048, 3), (1024, 2048, 19)),
    ],
)
def test_networks_of_published_size(
    name: str, megabytes: float, given: tuple[int, ...], logits: tuple[int, ...] | None, tmp_path: Path
) -> None:
    """Size within a tenth, inputs and outputs; frozen graphs make a mask, the large ones are not run: 4 s."""
    building.build(tmp_path, [name])
    (found,) = Repository(tmp_path).models()
    files = found.path.rglob("*") if found.path.is_dir() else [found.path]
    size = sum(file.stat().st_size for file in files if file.is_file())
    assert size == pytest.approx(megabytes * 1e6, rel=0.1)
    model = load_model(found, device="cpu")
    assert model.backend.inputs == (TensorSpec("input", Datatype.UINT8, given),)
    if logits:
        assert [(spec.datatype, spec.shape[-3:]) for spec in model.backend.outputs] == [(Datatype.FP32, logits)]
    else:
        mask = model.backend.infer({"input": np.zeros(given, np.uint8)})["output"]
        assert mask.shape == (1, *FRAME)
        assert mask.dtype == np.uint8
        assert mask.max() < 19 == len(model.card.classes)
    model.backend.close()


def test_small_models_are_served(tmp_path: Path) -> None:
    """The ONNX models for measurements need no TensorFlow, and load from the repository."""
    assert all(model.fresh for model in building.build(tmp_path, SMALL))
    found = Repository(tmp_path).models()
    assert {each.name for each in found} == set(SMALL)
    for each in found:
        model = load_model(each, device="cpu")
        assert model.backend.inputs[0].name == "input"
        model.backend.close()


def test_unknown_model(tmp_path: Path) -> None:
    """The message lists the known models."""
    with pytest.raises(ConfigError, match="unknown models resnet; expected some of drive_segmentation"):
        building.build(tmp_path, ["resnet"])


def test_no_lessons(tmp_path: Path) -> None:
    """A trained model without lessons is an error before anything is built."""
    with pytest.raises(ConfigError, match="lessons"):
        building.build(tmp_path, ["drive_segmentation"])
    assert not list(tmp_path.iterdir())


def test_without_tensorflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra; an interrupted build does not count as built."""
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for _ in range(2):
        with pytest.raises(MissingExtra, match=r"install .*\[tensorflow\]"):
            building.build(tmp_path, ["encoder_decoder_2048_1024"])


def test_catalogue() -> None:
    """Every model has a purpose, and a name that a repository accepts."""
    assert set(DRIVES + SMALL) < set(catalogue())
    assert all(catalogue().values())
