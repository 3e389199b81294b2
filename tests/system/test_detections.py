"""Boxes of an ONNX detector in pictures, MCAP and JSON lines."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path

import cv2
import numpy as np
import pytest
from onnx import TensorProto, helper

from mqinfer.edge_agent.reporting.report import SessionReport
from mqinfer.protocol.topics import Topics
from tests.mcap_files import messages
from tests.onnx_files import save_onnx

pytestmark = pytest.mark.broker
Serve = Callable[[Path], Topics]
Replayed = Callable[..., SessionReport]

HEIGHT, WIDTH, CELL, STEP = 96, 160, 16, 8
CONFIG = """
[detection]
boxes = "candidates"
scores = "confidence"
score_threshold = 0.4
iou_threshold = 0.3

[[classes]]
name = "red"
colour = [230, 30, 30]
[[classes]]
name = "green"
colour = [30, 230, 30]
"""


def blob_detector(repository: Path) -> Path:
    """Make a repository with a detector of red and green squares: the share of the colour in cells that overlap."""
    rows, columns = ((size - CELL) // STEP + 1 for size in (HEIGHT, WIDTH))
    corners = np.stack(np.meshgrid(np.arange(rows), np.arange(columns), indexing="ij")[::-1], -1).reshape(1, -1, 2)
    candidates = (np.concatenate([corners, corners], -1) * STEP + [0, 0, CELL, CELL]).astype(np.float32)
    colours = np.array([[2, -1, -1], [-1, 2, -1]], np.float32).reshape(2, 3, 1, 1) / 510
    constants = {"colours": colours, "boxes": candidates, "flat": np.array([1, 2, rows * columns])}
    nodes = [
        helper.make_node("Cast", ["image"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Transpose", ["floats"], ["planes"], perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["planes", "colours"], ["shares"]),
        helper.make_node("AveragePool", ["shares"], ["means"], kernel_shape=[CELL, CELL], strides=[STEP, STEP]),
        helper.make_node("Reshape", ["means", "flat"], ["rows"]),
        helper.make_node("Transpose", ["rows"], ["confidence"], perm=[0, 2, 1]),
        helper.make_node("Identity", ["boxes"], ["candidates"]),
    ]
    outputs = {
        "candidates": (TensorProto.FLOAT, candidates.shape),
        "confidence": (TensorProto.FLOAT, [1, rows * columns, 2]),
    }
    picture = {"image": (TensorProto.UINT8, [1, HEIGHT, WIDTH, 3])}
    save_onnx(repository / "blobs" / "1" / "model.onnx", nodes, picture, outputs, constants)
    (repository / "blobs" / "model.toml").write_text(CONFIG)
    return repository


def pictures(folder: Path) -> Path:
    """Write two pictures, twice as large as the model's input: one with two squares, one with none."""
    folder.mkdir()
    canvas = np.full((2 * HEIGHT, 2 * WIDTH, 3), 40, np.uint8)
    cv2.imwrite(str(folder / "1.png"), canvas)
    canvas[48:80, 64:96] = 0, 0, 255
    canvas[128:160, 240:272] = 0, 255, 0
    cv2.imwrite(str(folder / "0.png"), canvas)
    return folder


def test_boxes_travel_alone_and_lie_on_the_recorded_frame(serving: Serve, replayed: Replayed, tmp_path: Path) -> None:
    """Two of 209 candidates are sent; sinks have them in the recording's pixels, and draw them there."""
    topics = serving(blob_detector(tmp_path / "models"))
    report = replayed(pictures(tmp_path / "in"), topics, "blobs", folder=tmp_path / "out", encoding="png")
    assert report.snapshot.done == 2
    first, second = map(json.loads, (tmp_path / "out" / "results.jsonl").read_text().splitlines())
    assert {name: each["shape"] for name, each in first["outputs"].items()} == {
        "boxes": [2, 4],
        "scores": [2],
        "classes": [2],
    }
    found = sorted((each["class"], each["box"]) for each in first["detections"])
    assert found == [("green", [240, 128, 272, 160]), ("red", [64, 48, 96, 80])]
    assert all(each["score"] > 0.9 for each in first["detections"])
    assert "detections" not in second
    assert second["outputs"]["boxes"]["shape"] == [0, 4]
    found_in = messages(tmp_path / "out" / "results.mcap")
    with_boxes, without = (body for topic, _, _, body in found_in if topic.endswith("annotations"))
    corners = {tuple(line["outline_color"].values()): line["points"] for line in with_boxes["points"]}
    red = corners[230 / 255, 30 / 255, 30 / 255, 1]
    assert red == [{"x": 64, "y": 48}, {"x": 96, "y": 48}, {"x": 96, "y": 80}, {"x": 64, "y": 80}]
    assert {line["type"] for line in with_boxes["points"]} == {2}
    assert sorted(text["text"][:3] for text in with_boxes["texts"][1:]) == ["gre", "red"]
    assert (without["points"], len(without["texts"])) == ([], 1)
    overlay = next(path for path in report.files if path.suffix == ".png")
    drawn = cv2.imread(str(overlay))
    assert drawn is not None
    assert drawn.shape[0] > 2 * HEIGHT
    assert drawn[60, 64].tolist() == [30, 30, 230]  # the red box's left side
    assert drawn[140, 272 - 1].tolist() != [40, 40, 40]


def test_a_detectors_mcap_holds_the_recorded_pictures(serving: Serve, replayed: Replayed, tmp_path: Path) -> None:
    """Each frame is there once, at its own size, under the stamp of its boxes, and so is a layout that shows both."""
    topics = serving(blob_detector(tmp_path / "models"))
    recorded = pictures(tmp_path / "in")
    replayed(recorded, topics, "blobs", folder=tmp_path / "out", sinks=["mcap"])
    found = messages(tmp_path / "out" / "results.mcap")
    images = [body for topic, _, _, body in found if topic.endswith("/image")]
    notes = [body for topic, _, _, body in found if topic.endswith("/annotations")]
    assert [image["timestamp"] for image in images] == [note["timestamp"] for note in notes]
    for image, path in zip(images, sorted(recorded.iterdir()), strict=True):
        shown = cv2.imdecode(np.frombuffer(base64.b64decode(image["data"]), np.uint8), cv2.IMREAD_COLOR)
        original = cv2.imread(str(path))
        assert shown is not None
        assert original is not None
        assert image["format"] == "jpeg"
        assert shown.shape == original.shape
        assert np.abs(shown.astype(int) - original).mean() < 2
    layout = json.loads((tmp_path / "out" / "foxglove-layout.json").read_text())
    (panel,) = (config["imageMode"] for name, config in layout["configById"].items() if name.startswith("Image!"))
    topics_of_file = {topic for topic, _, _, _ in found}
    assert {panel["imageTopic"], *panel["annotations"]} <= topics_of_file
