"""Networks for pictures: NoScope, MobileNet, YOLOv2 with its decoder, at their published sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mqinfer.lab.zoo import building
from mqinfer.lab.zoo.classes import COCO
from mqinfer.lab.zoo.networks import yolo_v2 as module
from mqinfer.lab.zoo.networks.classifiers import mobilenet, noscope
from mqinfer.lab.zoo.networks.yolo_v2 import ANCHORS, decode, suppress, yolo_v2
from mqinfer.models.loading import load_model
from mqinfer.models.repository import Repository
from mqinfer.protocol.datatypes import Datatype

Array = npt.NDArray[Any]


def sigmoid(values: Any) -> Any:
    """Return the logistic function by its definition."""
    return 1 / (1 + np.exp(-values))


def overlap(one: Array, other: Array) -> float:
    """Intersection over union of two boxes."""
    sides = np.minimum(one[2:], other[2:]) - np.maximum(one[:2], other[:2])
    shared = float(np.prod(np.maximum(sides, 0)))
    return shared / (float(np.prod(one[2:] - one[:2])) + float(np.prod(other[2:] - other[:2])) - shared)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("build", "count"),
    [
        pytest.param(noscope, 1_245_602, id="noscope"),
        pytest.param(mobilenet, 4_253_864, id="mobilenet"),
        pytest.param(lambda: yolo_v2(64), 50_983_561, id="yolo", marks=pytest.mark.full),
    ],
)
def test_parameters(build: Any, count: int) -> None:
    """The number of weights is the published one, or that of the layer table, for any size of picture."""
    assert build().count_params() == count


@pytest.mark.slow
def test_the_grid_of_yolo() -> None:
    """The output has a 32nd of the size and five anchors of 85 numbers; the finer map keeps its positions."""
    model = yolo_v2(96)
    assert model.output_shape == (None, 3, 3, len(ANCHORS) * 85)
    assert len(COCO) == 80
    picture = np.random.default_rng(0).random((1, 96, 96, 3), np.float32)
    assert np.isfinite(np.asarray(model(picture, training=False))).all()


@pytest.mark.slow
def test_decoder_against_numpy() -> None:
    """Boxes and scores follow section 2 of arXiv:1612.08242, one by one."""
    raw = np.random.default_rng(1).normal(size=(2, 3, 3, 425)).astype(np.float32)
    boxes, scores = (np.asarray(each) for each in decode(raw))
    assert boxes.shape == (2, 45, 4)
    assert scores.shape == (2, 45, 80)
    for row, column, anchor in [(0, 0, 0), (2, 1, 3), (1, 2, 4)]:
        x, y, width, height, there, *classes = raw[1, row, column, anchor * 85 : (anchor + 1) * 85]
        middle = (column + sigmoid(x)) * 32, (row + sigmoid(y)) * 32
        half = np.exp(width) * ANCHORS[anchor][0] * 16, np.exp(height) * ANCHORS[anchor][1] * 16
        number = (row * 3 + column) * 5 + anchor
        expected = [middle[0] - half[0], middle[1] - half[1], middle[0] + half[0], middle[1] + half[1]]
        np.testing.assert_allclose(boxes[1, number], expected, rtol=1e-4)
        softmax = np.exp(classes) / np.exp(classes).sum()
        np.testing.assert_allclose(scores[1, number], sigmoid(there) * softmax, rtol=1e-4)


@pytest.mark.slow
def test_suppression_against_numpy() -> None:
    """Of boxes of one class that overlap by more than 0.45 the best stays; zeros follow the last."""
    rng = np.random.default_rng(2)
    corners = rng.uniform(0, 60, (30, 2))
    boxes = np.concatenate([corners, corners + rng.uniform(10, 40, (30, 2))], 1).astype(np.float32)
    scores = np.zeros((30, 80), np.float32)
    scores[np.arange(30), rng.integers(0, 2, 30)] = rng.permutation(np.linspace(0.05, 0.95, 30))
    found = {name: np.asarray(tensor)[0] for name, tensor in suppress(boxes[None], scores[None]).items()}
    expected: list[int] = []
    classes = scores.argmax(axis=1)
    for number in np.argsort(-scores.max(axis=1)):
        rivals = [kept for kept in expected if classes[kept] == classes[number]]
        if scores[number].max() > 0.1 and all(overlap(boxes[number], boxes[kept]) <= 0.45 for kept in rivals):
            expected.append(int(number))
    count = int(found["count"])
    assert 0 < count == len(expected) < 30
    np.testing.assert_allclose(found["boxes"][:count], boxes[expected], rtol=1e-5)
    np.testing.assert_allclose(found["scores"][:count], scores.max(axis=1)[expected], rtol=1e-5)
    np.testing.assert_array_equal(found["classes"][:count], classes[expected])
    assert found["classes"].dtype == np.int32
    assert not found["scores"][count:].any()


@pytest.mark.full
@pytest.mark.slow
def test_noscope_formats_agree(tmp_path: Path) -> None:
    """A picture of 50x50 in, a confidence of 0 to 1 out, the same in three formats."""
    building.build(tmp_path, ["noscope_50", "noscope_50_savedmodel", "noscope_50_onnx"])
    pictures = np.random.default_rng(3).integers(0, 256, (4, 50, 50, 3), np.uint8)
    answers: list[Any] = []
    for found in Repository(tmp_path).models():
        model = load_model(found, device="cpu")
        assert model.card.image is not None
        assert (model.card.image.width, model.card.image.height) == (50, 50)
        answers.append(model.backend.infer({"input": pictures})["confidence"])
        model.backend.close()
    assert len(answers) == 3
    assert answers[0].shape == (4,)
    assert ((answers[0] > 0) & (answers[0] < 1)).all()
    for other in answers[1:]:
        np.testing.assert_allclose(other, answers[0], rtol=1e-4)


@pytest.mark.full
@pytest.mark.slow
def test_mobilenet_is_served(tmp_path: Path) -> None:
    """Two pictures in, probabilities of a thousand labelled classes out."""
    building.build(tmp_path, ["mobilenet_224"])
    (found,) = Repository(tmp_path).models()
    model = load_model(found, device="cpu")
    assert [info.name for info in model.card.classes[:2]] == ["class 0", "class 1"]
    assert len(model.card.classes) == 1000
    (chances,) = model.backend.infer({"input": np.zeros((2, 224, 224, 3), np.uint8)}).values()
    assert chances.shape == (2, 1000)
    np.testing.assert_allclose(chances.sum(axis=1), 1, rtol=1e-4)
    model.backend.close()


@pytest.mark.slow
def test_yolo_is_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Candidates, and the best of them, with few filters, since the full network has 200 MB."""
    monkeypatch.setattr(module, "_BACKBONE", ((8, 0, 8, 0, 8, 0, 8, 0, 16), (0, 16)))
    building.build(tmp_path, ["yolo_v2_608", "yolo_v2_608_nms"])
    picture = np.random.default_rng(4).integers(0, 256, (1, 608, 608, 3), np.uint8)
    every, best = (load_model(found, device="cpu") for found in Repository(tmp_path).models())
    ends = [{spec.name: (spec.datatype, spec.shape[1:]) for spec in each.backend.outputs} for each in (every, best)]
    shapes = {"boxes": (Datatype.FP32, (4,)), "scores": (Datatype.FP32, ()), "classes": (Datatype.INT32, ())}
    assert ends[0] == {name: (datatype, (1805, *rest)) for name, (datatype, rest) in shapes.items()}
    assert ends[1] == {name: (datatype, (100, *rest)) for name, (datatype, rest) in shapes.items()} | {
        "count": (Datatype.INT32, ())
    }
    candidates, kept = (each.backend.infer({"input": picture}) for each in (every, best))
    assert best.card.classes == COCO
    assert 0 <= kept["count"][0] <= 100
    assert set(candidates) == set(shapes)
    for model in (every, best):
        model.backend.close()
