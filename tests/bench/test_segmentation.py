from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from mqinfer.bench.segmentation import STAGES, Shares, measure_segmentation, report_segmentation
from mqinfer.protocol.errors import BadEncoding
from tests.onnx_files import Ends, save_onnx

HEIGHT, WIDTH, CLASSES = 64, 96, 5


def write_version(folder: Path, *, fused: bool) -> None:
    """Write a network of one convolution, with logits out or with the argmax in the graph."""
    weights = np.random.default_rng(3).standard_normal((CLASSES, 3, 3, 3)).astype(np.float32)
    nodes = [
        helper.make_node("Cast", ["input"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["floats"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["planes", "weights"], ["logits"], pads=[1, 1, 1, 1]),
    ]
    output: Ends = {"logits": (TensorProto.FLOAT, [1, CLASSES, HEIGHT, WIDTH])}
    if fused:
        nodes.append(helper.make_node("ArgMax", ["logits"], ["numbers"], axis=1, keepdims=0))
        nodes.append(helper.make_node("Cast", ["numbers"], ["mask"], to=TensorProto.UINT8))
        output = {"mask": (TensorProto.UINT8, [1, HEIGHT, WIDTH])}
    picture = {"input": (TensorProto.UINT8, [1, HEIGHT, WIDTH, 3])}
    save_onnx(folder / "model.onnx", nodes, picture, output, {"weights": weights})


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Three versions: a mask made in the worker, a mask made in the graph, and bare logits."""
    for version in (1, 2, 3):
        write_version(tmp_path / "road" / str(version), fused=version == 2)
    (tmp_path / "road" / "model.toml").write_text("[version_policy]\nall = {}\n")
    (tmp_path / "road" / "1" / "model.toml").write_text('[segmentation]\noutput = "logits"\nlayout = "NCHW"\n')
    return tmp_path


@pytest.mark.broker
@pytest.mark.slow
def test_versions_are_measured_side_by_side(repository: Path) -> None:
    """Each has its worker, all stages are told, and the masks of logits and of the graph agree."""
    said: list[str] = []
    before, after = measure_segmentation(repository, "road", [1, 2], 2, said.append)
    assert (before.version, after.version, after.agreement) == (1, 2, 1)
    assert "onnxruntime" in before.engine
    assert before.mask_bytes == after.mask_bytes > 8
    for each in (before, after):
        assert list(each.stages_ms) == list(STAGES)
        assert min(each.stages_ms[stage] for stage in ("decode", "inference", "encode")) > 0
        assert 0 < each.finishing < 1
    assert len(said) == 2 + 2 * 3


@pytest.mark.broker
@pytest.mark.slow
def test_a_version_that_returns_bare_logits(repository: Path) -> None:
    """The worker's own words."""
    with pytest.raises(BadEncoding, match="'logits': mask takes UINT8 or BOOL"):
        measure_segmentation(repository, "road", [3], 1, lambda _: None)


def test_the_table_has_a_row_for_each_version() -> None:
    """Figures by stage, and no verdict on them."""
    stages = dict.fromkeys(STAGES, 1.0)
    shares = [Shares(number, "engine", stages, share, 7396.0, 0.75) for number, share in ((1, 0.2), (2, 0.04))]
    rows = [list(row) for row in report_segmentation(shares).grid.rows]
    assert rows == [["1", "engine", *[1.0] * 5, 20, 7.396, 25], ["2", "engine", *[1.0] * 5, 4, 7.396, 25]]
