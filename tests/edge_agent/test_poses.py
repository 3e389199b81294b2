"""Key points and masks of objects of made-up models, from the network through a worker into every kind of results."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from rosbags.highlevel import AnyReader

from mqinfer.answers.keypoints import COCO_NAMES, COCO_SKELETON, drawn_keypoints, named_keypoints
from mqinfer.answers.outputs import DetectedBox, find_boxes, placed_boxes
from mqinfer.broker import make_link
from mqinfer.client.requester import Requester
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.edge_agent.sinks.drawing.overlay import draw_boxes
from mqinfer.images.placement import Placement, Resize
from mqinfer.lab.drives.recording import write_drive
from mqinfer.models.repository import Repository
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError
from tests.mcap_files import messages
from tests.onnx_files import save_onnx
from tests.patience import PATIENCE_S, wait_until
from tests.settings import run_session, settings_of

parquet: Any = pytest.importorskip("pyarrow.parquet", reason="needs pyarrow, of the extra parquet")

WIDTH, HEIGHT = 96, 64
BOX = (8.0, 4.0, 40.0, 60.0)
POINTS = [(8.25 + number, 4.5 + 2 * number, 0.25 + number / 64) for number in range(17)]
"""Numbers that floats of 32 bits and JSON's roundings hold as they are."""
CONFIG = """
[image]
input = "x"
width = 48
height = 32
layout = "NCHW"

[[classes]]
name = "person"

[detection]
boxes = "o"
box_format = "cxcywh"
columns = ["box", "score", "keypoints"]
"""


def write_model(repository: Path) -> Path:
    """Write a network in YOLO's form of poses, which finds one person in any picture, at half of the drive's size."""
    left, top, right, bottom = (side / 2 for side in BOX)
    person = [(left + right) / 2, (top + bottom) / 2, right - left, bottom - top, 0.75]
    rows = np.zeros((1, 56, 30), np.float32)
    rows[0, :, 7] = [*person, *(part for x, y, score in POINTS for part in (x / 2, y / 2, score))]
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["mean"], keepdims=0),
        helper.make_node("Mul", ["mean", "zero"], ["nothing"]),
        helper.make_node("Add", ["rows", "nothing"], ["o"]),
    ]
    ends = {"x": (TensorProto.FLOAT, [1, 3, 32, 48])}, {"o": (TensorProto.FLOAT, [1, 56, 30])}
    save_onnx(repository / "pose" / "1" / "model.onnx", nodes, *ends, {"rows": rows, "zero": np.float32(0)})
    (repository / "pose" / "model.toml").write_text(CONFIG)
    return repository


def test_a_pose_comes_back_exactly_in_every_kind_of_results(
    tmp_path: Path, url: str, edge: Callable[..., Requester]
) -> None:
    """JSON lines, tables, MCAP, ROS 2 bag, Parquet, NumPy, messages: the network's numbers, in the frame's pixels."""
    drive = write_drive(tmp_path / "drive.bag", ros=1, frames=2, seed=3, width=WIDTH, height=HEIGHT)
    requester = edge(write_model(tmp_path / "models"), "pose")
    said: list[bytes] = []
    listener = make_link(url, client_id="listener")
    listener.subscribe(f"{requester.topics.root}/answers/#", lambda message: said.append(bytes(message.payload)))
    listener.open(PATIENCE_S)
    sinks = ("jsonl", "csv", "mcap", "rosbag", "parquet", "npz", "pictures", "mqtt")
    topics = ("/camera/image_raw",)
    settings = settings_of(drive, ReplayOptions("pose"), topics=topics, folder=tmp_path / "out", sinks=sinks)
    report = run_session(settings, requester)
    assert report.broke_off is None
    wait_until(lambda: len(said) == 2)
    listener.close()

    named = {name: [*point] for name, point in zip(COCO_NAMES, POINTS, strict=True)}
    expected = {"class": "person", "score": 0.75, "box": [*BOX], "keypoints": named}
    out = tmp_path / "out"
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    assert [line["detections"] for line in lines] == [[expected]] * 2
    assert [json.loads(each)["detections"] for each in said] == [[expected]] * 2
    with (out / "keypoints.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["keypoint"], *(float(row[key]) for key in ("x", "y", "score"))) for row in rows] == [
        (name, *point) for name, point in zip(COCO_NAMES, POINTS, strict=True)
    ] * 2
    assert {(row["detection"], row["id"]) for row in rows} == {("0", "")}
    found = parquet.read_table(out / "results.parquet")["detections"].to_pylist()
    assert [dict(each["keypoints"]) for row in found for each in row] == [named] * 2
    (outputs,) = {path.name: np.load(path) for path in out.glob("outputs/*/000000.npz")}.values()
    np.testing.assert_array_equal(2 * outputs["keypoints"][0, :, :2], [point[:2] for point in POINTS])
    assert_in_mcap(out / "results.mcap", named)
    assert_in_bag(out / "results-ros2", named)
    assert list(out.glob("**/*.png")) or list(out.glob("**/*.jpg"))


def assert_in_mcap(path: Path, named: dict[str, list[float]]) -> None:
    """Results have the points by name; annotations have those in sight, and the lines between them."""
    found = messages(path)
    results = [body for topic, _, _, body in found if topic.endswith("/result")]
    assert [each["detections"][0]["keypoints"] for each in results] == [named] * 2
    notes = [body for topic, _, _, body in found if topic.endswith("/annotations")]
    for note in notes:
        outline, lines, points = note["points"]
        assert (outline["type"], lines["type"], points["type"]) == (2, 4, 1)
        assert [(each["x"], each["y"]) for each in points["points"]] == [p[:2] for p in POINTS if p[2] >= 0.3]
        ends = [named[name] for line in COCO_SKELETON for name in line if min(named[n][2] for n in line) >= 0.3]
        assert [[each["x"], each["y"]] for each in lines["points"]] == [end[:2] for end in ends]
    assert len(notes) == 2


def assert_in_bag(path: Path, named: dict[str, list[float]]) -> None:
    """A detection for each point, by its name, under the place of its person."""
    with AnyReader([path]) as reader:
        read: list[Any] = [
            reader.deserialize(data, connection.msgtype)
            for connection, _, data in reader.messages()
            if connection.topic.endswith("/keypoints")
        ]
    assert len(read) == 2
    for message in read:
        found: dict[str, list[float]] = {}
        for each in message.detections:
            hypothesis, centre = each.results[0].hypothesis, each.bbox.center.position
            found[hypothesis.class_id] = [centre.x, centre.y, hypothesis.score]
            assert (each.id, each.bbox.size_x, each.bbox.size_y) == ("0", 0, 0)
        assert found == named


DOG = ClassInfo("dog", (250, 120, 0), ("nose", "tail"), (("nose", "tail"),))


def test_names_are_the_class_s_own() -> None:
    """Else COCO's where there are 17, and numbers; lines are those between points in sight."""
    points = ((1.0, 2.0, 0.9), (3.0, 4.0, 0.8))
    dog = DetectedBox((0, 0, 9, 9), 0.5, 0, keypoints=points)
    assert named_keypoints(dog, [DOG]) == dict(zip(("nose", "tail"), points, strict=True))
    assert drawn_keypoints(dog, [DOG]) == ([*points], [points])
    assert list(named_keypoints(dog, [])) == ["0", "1"]
    assert drawn_keypoints(dog, []) == ([*points], [])
    hidden = DetectedBox((0, 0, 9, 9), 0.5, 0, keypoints=((1.0, 2.0, 0.9), (3.0, 4.0, 0.1)))
    assert drawn_keypoints(hidden, [DOG]) == ([points[0]], [])
    assert len(set(COCO_NAMES)) == 17
    assert len({frozenset(line) for line in COCO_SKELETON}) == len(COCO_SKELETON) == 19
    assert {name for line in COCO_SKELETON for name in line} == {*COCO_NAMES}


@pytest.mark.parametrize(
    "wrong", [np.zeros((1, 17, 2)), np.zeros((2, 17, 3)), np.zeros((1, 17, 3), np.int64), np.zeros((17, 3))]
)
def test_other_outputs_are_no_key_points(wrong: Any) -> None:
    """Of other shapes, of integers, or of another number of boxes; the box stays."""
    outputs = {"boxes": np.ones((1, 4)), "scores": np.ones(1, np.float32), "keypoints": wrong}
    assert [each.keypoints for each in find_boxes(outputs)] == [()]


def test_points_that_are_nowhere_have_no_score() -> None:
    """And those outside of the picture lie at its edge, without the margins of a letterbox."""
    points = np.array([[[np.nan, 1, 0.9], [20, 30, 0.5], [5, 15, np.inf], [10, 20, 1]]], np.float32)
    outputs: dict[str, Array] = {"boxes": np.ones((1, 4)), "scores": np.ones(1, np.float32), "keypoints": points}
    (found,) = placed_boxes(outputs, Placement.of((80, 40), (40, 40), Resize.LETTERBOX))
    assert found.keypoints == ((0, 0, 0), (40, 40, 0.5), (0, 0, 0), (20, 20, 1))


def test_points_and_lines_are_drawn_in_the_colour_of_the_class() -> None:
    """A person out of sight of the model has none."""
    grey = np.full((40, 80, 3), 100, np.uint8)
    dog = DetectedBox((2, 2, 70, 38), 0.5, 0, keypoints=((10.0, 30.0, 0.9), (60.0, 30.0, 0.9)))
    drawn = draw_boxes(grey, [dog], [DOG])
    for x, y in ((10, 30), (35, 30), (60, 30)):
        assert drawn[y, x].tolist() == [250, 120, 0]
    assert drawn[33, 35].tolist() == [100, 100, 100]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('keypoints = ["a", "a"]', "expected each name once"),
        ('keypoints = ["a", "b"]\nskeleton = [["a", "c"]]', "expected two of the names in keypoints"),
        ('keypoints = ["a", "b"]\nskeleton = [["a"]]', "expected two of the names in keypoints"),
    ],
)
def test_names_and_lines_that_do_not_fit_are_refused(tmp_path: Path, line: str, words: str) -> None:
    """In model.toml, with the line that is wrong."""
    repository = write_model(tmp_path)
    (repository / "pose" / "model.toml").write_text(CONFIG.replace('name = "person"', f'name = "person"\n{line}'))
    with pytest.raises(ConfigError, match=words):
        Repository(repository).find("pose", None)
