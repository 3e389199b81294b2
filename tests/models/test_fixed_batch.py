from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mqinfer.lab.zoo.onnx_graph import OnnxGraph
from mqinfer.models.adapters import AdaptedBackend, with_filled_batches
from mqinfer.models.backend import Backend
from mqinfer.models.loading import LoadedModel, load_model
from mqinfer.models.repository import Repository
from mqinfer.models.warmup import warm_up
from mqinfer.protocol.errors import ConfigError, ModelFailed

ROWS = 4


def load(tmp_path: Path, config: str) -> LoadedModel:
    """Load an ONNX model of exactly four rows, which returns their doubles."""
    path = tmp_path / "doubler" / "1" / "model.onnx"
    path.parent.mkdir(parents=True)
    (tmp_path / "doubler" / "model.toml").write_text(config)
    graph = OnnxGraph("float32", (ROWS, 3))
    graph.node("Add", "input", "input", output="output")
    graph.add_output("output", "float32", (ROWS, 3))
    graph.write(path)
    (version,) = Repository(tmp_path).models()
    return load_model(version, device="cpu")


@pytest.fixture
def filled(tmp_path: Path) -> Backend:
    """That model with its batch axis configured."""
    model = load(tmp_path, "max_batch_size = 4")
    assert isinstance(model.backend, AdaptedBackend)
    return model.backend


@pytest.mark.parametrize("rows", range(1, ROWS + 1))
def test_fewer_rows_are_filled_up_and_cut(filled: Backend, rows: int) -> None:
    """Each number of rows up to the file's gets its own results, and no more of them."""
    x = np.arange(rows * 3, dtype=np.float32).reshape(rows, 3)
    np.testing.assert_array_equal(filled.infer({"input": x}, ["output"])["output"], 2 * x)


@pytest.mark.parametrize("rows", [0, ROWS + 1])
def test_a_fixed_batch_is_never_exceeded(filled: Backend, rows: int) -> None:
    """Nor is there one of nothing."""
    with pytest.raises(ModelFailed, match=f"a batch of {rows} rows.*fixes it at 4"):
        filled.infer({"input": np.zeros((rows, 3), np.float32)})


def test_the_card_says_what_requests_may_bring(tmp_path: Path) -> None:
    """An open first axis and the file's size; the warm-up runs it at one row and at all."""
    model = load(tmp_path, "max_batch_size = 4")
    assert model.card.max_batch_size == 4
    assert [spec.shape for spec in (*model.card.inputs, *model.card.outputs)] == [(-1, 3), (-1, 3)]
    warm_up(model.backend, model.card)
    model.backend.close()


def test_unstated_a_request_brings_all_rows(tmp_path: Path) -> None:
    """The first axis is then part of the shape."""
    model = load(tmp_path, "")
    assert model.card.max_batch_size == 0
    assert model.card.inputs[0].shape == (ROWS, 3)
    assert with_filled_batches(model.backend, None) is model.backend


def test_another_size_than_the_files_is_refused(tmp_path: Path) -> None:
    """The message has the possible one."""
    with pytest.raises(ConfigError, match=r"max_batch_size = 8.*0 or, .* 4 is possible"):
        load(tmp_path, "max_batch_size = 8")
