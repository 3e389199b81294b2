from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from mqinfer.lab.optimize.fusing import fuse
from mqinfer.models.loading import load_model
from mqinfer.models.postprocess.stage import Postprocessed
from mqinfer.models.repository import Repository
from tests.onnx_files import make_onnx


@pytest.mark.parametrize(("layout", "shape"), [("NHWC", [2, 4, 6, 5]), ("NCHW", [2, 5, 4, 6])])
def test_what_the_worker_made_goes_into_the_graph(layout: str, shape: list[int], tmp_path: Path) -> None:
    """`[segmentation]` is where the optimiser finds the logits; its product needs no post-processing."""
    end = TensorProto.FLOAT, shape
    model = make_onnx([helper.make_node("Neg", ["x"], ["y"])], {"x": end}, {"y": end})
    for version in (1, 2):
        (tmp_path / "net" / str(version)).mkdir(parents=True)
    onnx.save(model, tmp_path / "net" / "1" / "model.onnx")
    config = f'segmentation = {{ output = "y", layout = "{layout}" }}\nversion_policy = {{ all = {{}} }}\n'
    (tmp_path / "net" / "model.toml").write_text(config)
    (tmp_path / "net" / "2" / "model.onnx").write_bytes(b"soon")
    first, second = Repository(tmp_path).models()
    before = load_model(first, device="cpu")
    fuse(model, before.card, first.config, second.path)
    after = load_model(second, device="cpu")
    assert isinstance(before.backend, Postprocessed)
    assert not isinstance(after.backend, Postprocessed)
    assert before.card.outputs == after.card.outputs
    values = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    masks = [each.backend.infer({"x": values})["y"] for each in (before, after)]
    np.testing.assert_array_equal(masks[0], masks[1])
    assert masks[1].dtype == np.uint8
