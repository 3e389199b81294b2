"""`mqinfer models optimize` on tiny networks: products that are made, kept, refused, promoted and reported."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from mqinfer.cli.app import app
from mqinfer.lab.optimize.optimising import OptimizeOptions, optimize, promote
from mqinfer.lab.optimize.parity import Tolerance
from mqinfer.lab.optimize.products import product_version
from mqinfer.lab.optimize.results import Optimisation
from mqinfer.lab.optimize.samples import Sample
from mqinfer.models.loading import load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.content_hash import model_hash
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import ModelNotLoadable
from tests.onnx_files import save_onnx

pytestmark = [pytest.mark.slow, pytest.mark.full]

HEIGHT, WIDTH, CLASSES = 8, 12, 3
CONFIG = f"""
max_batch_size = 2
classes = [{{ name = "sky" }}, {{ name = "road" }}, {{ name = "car" }}]

[image]
width = {WIDTH}
height = {HEIGHT}
scale = 0.00392156862745098
mean = [0.5, 0.5, 0.5]
std = [0.5, 0.5, 0.5]
"""


def segmentation_file(path: Path) -> None:
    """Write a network from float pictures NHWC to logits NHWC at the same size: each pixel's largest colour."""
    weights = np.zeros((CLASSES, 3, 1, 1), np.float32)
    weights[:, :, 0, 0] = np.eye(3)
    nodes = [
        helper.make_node("Transpose", ["x"], ["nchw"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["nchw", "w"], ["small"], strides=[2, 2]),
        helper.make_node("Resize", ["small", "", "scales"], ["large"], mode="linear"),
        helper.make_node("Transpose", ["large"], ["y"], perm=[0, 2, 3, 1]),
    ]
    constants = {"w": weights, "scales": np.array([1, 1, 2, 2], np.float32)}
    picture = {"x": (TensorProto.FLOAT, ["n", HEIGHT, WIDTH, 3])}
    save_onnx(path, nodes, picture, {"y": (TensorProto.FLOAT, ["n", HEIGHT, WIDTH, CLASSES])}, constants)


def repository_in(folder: Path) -> Path:
    """Make a repository with the network."""
    version = folder / "repository" / "tiny" / "1"
    version.mkdir(parents=True)
    segmentation_file(version / "model.onnx")
    (version.parent / "model.toml").write_text(CONFIG)
    return folder / "repository"


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository with the network."""
    return repository_in(tmp_path)


def pictures(count: int) -> tuple[Sample, ...]:
    """Make pictures in blocks of four pixels, with the truth."""
    rng = np.random.default_rng(0)
    small = rng.integers(0, 256, (count, HEIGHT // 4, WIDTH // 4, 3), np.uint8)
    blocks = small.repeat(4, 1).repeat(4, 2)
    return tuple(Sample(picture, truth=picture.argmax(-1)) for picture in blocks)


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> tuple[ModelVersion, Optimisation, list[str]]:
    """One run, for the tests that only inspect its result."""
    lines: list[str] = []
    original = Repository(repository_in(tmp_path_factory.mktemp("optimize"))).find("tiny")
    options = OptimizeOptions(precisions=("fp32", "int8"), rounds=1, seconds=0.01, tolerance=Tolerance(0.5))
    return original, optimize(original, options, pictures(8), "blocks", lines.append), lines


Done = tuple[ModelVersion, Optimisation, list[str]]


def test_products_stand_beside_the_original(done: Done) -> None:
    """Each product is a complete version folder, compared and measured, that no worker serves."""
    original, found, lines = done
    labels = [f"{engine}-{precision}" for engine in ("onnx", "openvino") for precision in ("fp32", "int8")]
    assert [each.label for each in found.candidates] == labels
    assert found.samples == "4 of 8 samples of blocks"
    model = original.path.parents[1]
    for each in found.candidates:
        assert each.problem == ""
        assert each.folder == model / "candidates" / each.label
        assert each.size_bytes > 0
        assert each.speed is not None
        assert each.speed.ratio > 0
        assert each.speed.batch in {1, 2}
        assert each.parity is not None
        assert each.parity.score is not None
    assert found.original is not None
    assert found.original.ratio == 1
    assert Repository(model.parent).models() == (original,)
    assert (lines[0], len(lines)) == ("loading version 1 of tiny", 9)


def test_fp32_changes_nothing(done: Done) -> None:
    """The fused graph in full precision returns the argmax of the logits, and has the same score."""
    for each in (done[1].candidates[0], done[1].candidates[2]):
        assert each.parity is not None
        assert each.parity.agreement == 1
        assert each.parity.score == each.parity.original_score


def test_the_original_does_not_change(done: Done, tmp_path: Path) -> None:
    """Its file stays the same."""
    segmentation_file(tmp_path / "model.onnx")
    assert model_hash(done[0].path) == model_hash(tmp_path / "model.onnx")


def test_a_product_maps_bytes_to_a_mask(done: Done) -> None:
    """Normalisation and argmax are in the graph: uint8 in, uint8 out, and the mask is correct."""
    original, found, _ = done
    (folder, *_) = (each.folder for each in found.candidates)
    assert folder is not None
    product = load_model(product_version(original, folder), device="cpu")
    assert [(spec.name, spec.datatype, spec.shape) for spec in product.backend.inputs] == [
        ("x", Datatype.UINT8, (-1, HEIGHT, WIDTH, 3))
    ]
    assert product.card.image is not None
    assert (product.card.image.scale, product.card.image.mean, product.card.image.std) == (1, (0,), (1,))
    (sample,) = pictures(1)
    assert sample.picture is not None
    mask = product.backend.infer({"x": sample.picture[None]})["y"]
    assert mask.dtype == np.uint8
    assert mask.shape == (1, HEIGHT, WIDTH)
    assert (mask[0] == sample.truth).mean() > 0.7  # the resize blurs the edges of the blocks
    product.backend.close()


@pytest.mark.parametrize(("ratio", "number"), [(1.5, 5), (0.9, None)])
def test_promotion(done: Done, tmp_path: Path, ratio: float, number: int | None) -> None:
    """The best product gets the next number and is served; one that is slower than the original stays."""
    models = repository_in(tmp_path)
    folder = models / "tiny"
    shutil.copytree(folder / "1", folder / "0004")
    (best, other, *_) = done[1].candidates
    assert best.folder is not None
    assert best.speed is not None
    shutil.copytree(best.folder, folder / "candidates" / best.label)
    fast, slow = replace(best.speed, ratio=ratio), replace(best.speed, ratio=0.5)
    places = [replace(best, folder=folder / "candidates" / best.label, speed=fast), replace(other, speed=slow)]
    found = promote(replace(done[1], candidates=tuple(reversed(places))), folder)
    assert found.promoted == number
    (served,) = Repository(models).models()
    assert served.version == (number or 4)
    assert served.config.backend == ("onnxruntime" if number else None)
    if number:
        assert found.best is not None
        assert found.best.folder == folder / "5"


def test_a_product_that_loses_too_much_is_refused(models: Path) -> None:
    """It is reported with reason and figures, and its folder is deleted."""
    options = OptimizeOptions(("onnx",), ("fp32",), early=True, rounds=1, seconds=0.01, tolerance=Tolerance(1.0))
    found = optimize(Repository(models).find("tiny"), options, pictures(8))
    late, early = found.candidates
    assert late.problem == ""
    assert early.problem.startswith("refused: agreement 0.")
    assert early.folder is None
    assert early.speed is not None
    assert [path.name for path in (models / "tiny" / "candidates").iterdir()] == ["onnx-fp32"]
    assert found.kept == (late,)


def command(*arguments: object) -> Any:
    """Run the command."""
    return CliRunner().invoke(app, ["models", "optimize", *map(str, arguments)])


def test_the_command_reports(models: Path, tmp_path: Path) -> None:
    """Table, Markdown and JSON name the versions and their figures; the samples come from a folder or arrays."""
    inputs = tmp_path / "inputs.npz"
    arrays = np.random.default_rng(0).normal(size=(4, HEIGHT, WIDTH, 3)).astype(np.float32)
    np.savez(inputs, x=arrays)
    (models / "tiny" / "model.toml").write_text(CONFIG[: CONFIG.index("[image]")])  # arrays know no normalisation
    quick = ["--to", "onnx", "--precision", "fp32", "--rounds", 1, "--seconds", 0.01]
    done = command(models, "tiny", "--samples", inputs, "--frames", 4, *quick)
    assert done.exit_code == 0, done.output
    reports = models / "tiny" / "reports"
    assert "| onnx-fp32 |" in (reports / "optimize.md").read_text()
    found = json.loads((reports / "optimize.json").read_text())
    assert found["samples"] == f"2 of 4 samples of {inputs}"
    assert found["candidates"][0]["parity"]["agreement"] == 1
    assert Repository(models).problems() == ()


def test_the_command_fails_where_nothing_is_kept(models: Path, tmp_path: Path) -> None:
    """Exit code 1, and the report holds the reason; random inputs are labelled as such."""
    report = tmp_path / "report"
    quick = ["--to", "openvino", "--precision", "bf16", "--rounds", 1, "--seconds", 0.01]
    done = command(models, "tiny", "--tolerance", "agreement=1", "--report", report, *quick)
    text = (report / "optimize.md").read_text()
    assert "random inputs" in text
    kept = "refused" not in text  # where the CPU has no bf16, OpenVINO computes in fp32
    assert done.exit_code == (0 if kept else 1)


def test_a_model_that_is_not_there(models: Path) -> None:
    """The message lists the existing versions."""
    failed = command(models, "tiny", "--version", 7)
    assert isinstance(failed.exception, ModelNotLoadable)
    assert "there is no version 7 of it; it has [1]" in str(failed.exception)
    assert isinstance(command(models, "huge").exception, ModelNotLoadable)


def test_two_kinds_of_samples(models: Path) -> None:
    """Frames and arrays exclude each other."""
    failed = command(models, "tiny", "--calibrate", "a.bag", "--samples", "b.npz")
    assert "use either --calibrate or --samples" in str(failed.exception)
