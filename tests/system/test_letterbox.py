"""A detector with letterbox, objectness and instance masks through a real worker: boxes lie on the recorded frame."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from mqinfer.cli.app import app
from mqinfer.client import Client
from mqinfer.codecs import encode_tensor
from mqinfer.edge_agent.reporting.report import SessionReport
from mqinfer.images.placement import Placement
from mqinfer.protocol.header import IMAGE_ENCODING
from mqinfer.protocol.topics import Topics
from tests.onnx_files import save_onnx

pytestmark = pytest.mark.broker
Serve = Callable[[Path], Topics]
Replayed = Callable[..., SessionReport]

SIDE, CELL, STEP, MASK = 160, 16, 8, 40
FRAME = FRAME_WIDTH, FRAME_HEIGHT = 320, 192
"""The model sees it at half the size, below a margin of 32 pixels."""
RED, GREEN = [64, 48, 96, 80], [240, 128, 272, 160]
CONFIG = """
[image]
resize = "letterbox"

[detection]
boxes = "output0"
box_format = "cxcywh"
masks = "output1"
score_threshold = 0.4
iou_threshold = 0.3

[[classes]]
name = "red"
[[classes]]
name = "green"
"""


def blob_detector(repository: Path, resize: str = "letterbox") -> Path:
    """Make a repository with a network of YOLOv5-seg's form: the share of red and of green in cells that overlap.

    Its rows are a box, objectness (1), two scores, and one factor of the one prototype (1).
    """
    count = (SIDE - CELL) // STEP + 1
    corners = np.stack(np.meshgrid(*[np.arange(count)] * 2, indexing="ij")[::-1], -1).reshape(1, -1, 2) * STEP
    boxes = np.concatenate([corners + CELL / 2, np.full_like(corners, CELL)], -1).astype(np.float32)
    colours = np.array([[2, -1, -1], [-1, 2, -1], [0, 0, 0]], np.float32).reshape(3, 3, 1, 1) / 510
    constants = {
        "colours": colours,
        "levels": np.array([0, 0, 1], np.float32).reshape(1, 3, 1, 1),
        "boxes": boxes,
        "flat": np.array([1, 3, count * count]),
        "objectness first": np.array([2, 0, 1]),
        "factors": np.ones((1, count * count, 1), np.float32),
        "prototype": np.ones((1, 1, MASK, MASK), np.float32),
    }
    nodes = [
        helper.make_node("Cast", ["images"], ["floats"], to=TensorProto.FLOAT),
        helper.make_node("Conv", ["floats", "colours"], ["shares"]),
        helper.make_node("Add", ["shares", "levels"], ["three"]),
        helper.make_node("AveragePool", ["three"], ["means"], kernel_shape=[CELL, CELL], strides=[STEP, STEP]),
        helper.make_node("Reshape", ["means", "flat"], ["planes"]),
        helper.make_node("Transpose", ["planes"], ["rows"], perm=[0, 2, 1]),
        helper.make_node("Gather", ["rows", "objectness first"], ["scores"], axis=2),
        helper.make_node("Concat", ["boxes", "scores", "factors"], ["output0"], axis=2),
        helper.make_node("Identity", ["prototype"], ["output1"]),
    ]
    outputs = {
        "output0": (TensorProto.FLOAT, [1, count * count, 8]),
        "output1": (TensorProto.FLOAT, [1, 1, MASK, MASK]),
    }
    picture = {"images": (TensorProto.UINT8, [1, 3, SIDE, SIDE])}
    save_onnx(repository / "blobs" / "1" / "model.onnx", nodes, picture, outputs, constants)
    (repository / "blobs" / "model.toml").write_text(CONFIG.replace("letterbox", resize))
    return repository


def frame() -> npt.NDArray[np.uint8]:
    """Return an RGB frame with two squares."""
    pixels = np.full((FRAME_HEIGHT, FRAME_WIDTH, 3), 40, np.uint8)
    for (left, top, right, bottom), colour in ((RED, (255, 0, 0)), (GREEN, (0, 255, 0))):
        pixels[top:bottom, left:right] = colour
    return pixels


def test_a_frame_of_another_size_is_letterboxed_by_the_worker(serving: Serve, broker_url: str, tmp_path: Path) -> None:
    """Boxes and masks are in the model's picture, and come back to the frame by its placement, to the pixel."""
    topics = serving(blob_detector(tmp_path / "models"))
    with Client(broker_url, root=topics.root) as client:
        card = client.card("blobs")
        outputs = client.infer(
            "blobs", {"images": encode_tensor("images", frame()[None], "raw", {IMAGE_ENCODING: "rgb8"})}
        ).outputs
    assert card.image is not None
    assert (card.image.resize, card.image.fill, card.image.layout) == ("letterbox", 114, "NCHW")
    assert {spec.name: spec.shape for spec in card.outputs} == {
        "boxes": (-1, 4),
        "scores": (-1,),
        "classes": (-1,),
        "masks": (-1, MASK, MASK),
    }
    placement = Placement.of(FRAME, (SIDE, SIDE), card.image.resize)
    order = np.argsort(outputs["classes"])
    np.testing.assert_allclose(placement.boxes_to_frame(outputs["boxes"][order]), [RED, GREEN], atol=1)
    for number, (left, top, right, bottom) in zip(order, (RED, GREEN), strict=True):
        mask = placement.mask_to_frame(outputs["masks"][number])
        inside = np.zeros_like(mask)
        inside[top:bottom, left:right] = 1
        np.testing.assert_array_equal(mask, inside)


def test_infer_lists_boxes_in_the_pictures_own_pixels(serving: Serve, broker_url: str, tmp_path: Path) -> None:
    """So that a user can draw them where they belong."""
    topics = serving(blob_detector(tmp_path / "models"))
    file = tmp_path / "frame.png"
    cv2.imwrite(str(file), cv2.cvtColor(frame(), cv2.COLOR_RGB2BGR))
    arguments = ["infer", "blobs", "--broker", broker_url, "--root", topics.root, "--input", f"images={file}"]
    found = sorted(each_box(json.loads(CliRunner().invoke(app, arguments).stdout)))
    assert found == [("green", GREEN), ("red", RED)]


def each_box(printed: dict[str, Any]) -> list[tuple[str, list[float]]]:
    """Return class and box of what was found."""
    return [(each["class"], each["box"]) for each in printed["detections"]]


def test_letterboxed_boxes_of_a_replay_lie_on_the_recorded_frame(
    serving: Serve, replayed: Replayed, tmp_path: Path
) -> None:
    """The edge makes the letterbox; results.jsonl has the frame's pixels."""
    topics = serving(blob_detector(tmp_path / "models"))
    (tmp_path / "in").mkdir()
    cv2.imwrite(str(tmp_path / "in" / "0.png"), cv2.cvtColor(frame(), cv2.COLOR_RGB2BGR))
    report = replayed(tmp_path / "in", topics, "blobs", folder=tmp_path / "out", encoding="png")
    assert report.snapshot.done == 1
    (line,) = (tmp_path / "out" / "results.jsonl").read_text().splitlines()
    assert sorted(each_box(json.loads(line))) == [("green", GREEN), ("red", RED)]
