"""Requests share a run of a model only where a trial shows that its rows are independent."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from mqinfer.lab.zoo import building
from mqinfer.lab.zoo.catalogue import CATALOGUE
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import ModelVersion, Repository
from mqinfer.models.repository.config import ModelConfig, WarmUp
from mqinfer.models.row_trial import why_rows_stay_alone


def _load(
    path: Path, nodes: list[object], *, axis: str = "unk__7", config: ModelConfig | None = None, size: int | str = 4
) -> LoadedModel:
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [axis, size]) for name in "xy")
    constants = [numpy_helper.from_array(np.array(0, np.int64), "first")]
    constants += [numpy_helper.from_array(np.array([3, 4], np.int64), "wide")]
    graph = helper.make_graph(nodes, "test", [x], [y], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    file = path / "model.onnx"
    file.write_bytes(model.SerializeToString())
    return load_model(ModelVersion("m", 1, file, config or ModelConfig()), device="cpu")


def _mixing(kind: str) -> list[object]:
    if kind == "softmax":
        return [helper.make_node("Softmax", ["x"], ["y"], axis=0)]
    if kind == "cumsum":
        return [helper.make_node("CumSum", ["x", "first"], ["y"])]
    reduce = helper.make_node({"mean": "ReduceMean", "maximum": "ReduceMax"}[kind], ["x"], ["all"], axes=[0])
    return [reduce, helper.make_node("Sub", ["x", "all"], ["y"])]


def _identity() -> list[object]:
    return [helper.make_node("Identity", ["x"], ["y"])]


@pytest.mark.parametrize("axis", ["unk__7", "batch", "num_points"])
@pytest.mark.parametrize("kind", ["softmax", "mean", "maximum", "cumsum"])
def test_rows_that_mix_are_no_batch(tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str, axis: str) -> None:
    """Whatever the open axis is called; one line says so, with the way out."""
    with caplog.at_level(logging.WARNING, "mqinfer"):
        assert _load(tmp_path, _mixing(kind), axis=axis).card.max_batch_size == 0
    (line,) = [record.getMessage() for record in caplog.records]
    assert "requests do not share runs" in line
    assert "set max_batch_size in model.toml" in line


@pytest.mark.parametrize("axis", ["unk__7", "batch", "N"])
def test_independent_rows_are_a_batch(tmp_path: Path, axis: str) -> None:
    """The trial decides, where the axis has no name that contradicts it."""
    assert _load(tmp_path, _identity(), axis=axis).card.max_batch_size == 8


def test_the_name_of_another_axis(tmp_path: Path) -> None:
    """An axis called after a sequence is none of strangers, even where the trial saw no difference."""
    assert _load(tmp_path, _identity(), axis="sequence_length").card.max_batch_size == 0


@pytest.mark.parametrize("kind", ["softmax", "identity"])
def test_the_configuration_has_priority(tmp_path: Path, kind: str) -> None:
    """Nothing is tried where `max_batch_size` is given."""
    nodes = _identity() if kind == "identity" else _mixing(kind)
    assert _load(tmp_path, nodes, axis="num_points", config=ModelConfig(max_batch_size=5)).card.max_batch_size == 5


@pytest.mark.parametrize(("axis", "rows"), [("unk__7", 0), ("batch_size", 8)])
def test_what_no_trial_decides(tmp_path: Path, axis: str, rows: int) -> None:
    """A model that refuses the trial, or may not be run, shares runs only if its axis is called a batch."""
    refusing = [
        helper.make_node("Reshape", ["x", "wide"], ["z"]),
        helper.make_node("ReduceSum", ["z"], ["s"], keepdims=0),
        helper.make_node("Add", ["x", "s"], ["y"]),
    ]
    assert _load(tmp_path, refusing, axis=axis, size="k").card.max_batch_size == rows
    assert (
        _load(tmp_path, _identity(), axis=axis, config=ModelConfig(model_warmup=WarmUp(0))).card.max_batch_size == rows
    )
    constant = [helper.make_node("Sub", ["x", "x"], ["y"])]
    assert _load(tmp_path, constant, axis=axis).card.max_batch_size == rows


def test_open_axes_beside_the_first(tmp_path: Path) -> None:
    """Sizes are tried until the model takes one."""
    assert _load(tmp_path, _identity(), size="k").card.max_batch_size == 8
    assert _load(tmp_path, _mixing("softmax"), size="k").card.max_batch_size == 0


_SMALL = ["classifier_224", "small_16", "vae_like"]
_ALONE = "frame_mask"  # its file fixes the batch at one
_SHARING = sorted(set(CATALOGUE) - {_ALONE, *(name for name, model in CATALOGUE.items() if "= 1 " in model.config)})
_SAME = "rows of unlike values made the same results in a trial"


@pytest.mark.parametrize(
    "name",
    [name if name in _SMALL else pytest.param(name, marks=[pytest.mark.slow, pytest.mark.full]) for name in _SHARING],
)
def test_networks_of_the_zoo_with_strangers(tmp_path: Path, name: str) -> None:
    """Rows of each network whose requests may share a run come out as each alone."""
    building.build(tmp_path, [name])
    (version,) = Repository(tmp_path).models()
    model = load_model(version, device="cpu")
    assert model.card.max_batch_size > 1
    # Random weights may have the same results for each picture.
    assert why_rows_stay_alone(model.backend, model.card) in {"", _SAME}
    model.backend.close()


@pytest.mark.parametrize("file", ["ort_examples_mnist.onnx", "tf2onnx_fc-layers.pb", "half_plus_two_2_versions"])
def test_real_models_with_strangers(shared_models: Path, file: str) -> None:
    """Real files share runs where their rows are independent; the others have a fixed batch of one."""
    found = shared_models / file
    path = found / "00000123" if found.is_dir() else found
    model = load_model(ModelVersion("m", 1, path), device="cpu")
    assert model.card.max_batch_size in {1, 8}
    assert model.card.max_batch_size == 1 or not why_rows_stay_alone(model.backend, model.card)
    model.backend.close()
