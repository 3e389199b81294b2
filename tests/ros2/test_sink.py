"""Results on topics of ROS 2, as a reader in another process gets them."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from rosbags.typesys import Stores, get_typestore

from mqinfer.bags.calibration import CAMERA_INFO
from mqinfer.bags.frame import Frame
from mqinfer.bags.ros2.messages import VISION, carrier, dds_type, deserialize, ros_type, store, type_hash
from mqinfer.bags.rosbag import IMAGE_TYPES
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.jsonl_sink import JsonlSink
from mqinfer.edge_agent.sinks.ros.ros2_sink import Ros2Sink
from mqinfer.images.picture import RawImage
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import CardParameters, ClassInfo, ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.types import Outcome
from tests.patience import wait_until

pytestmark = pytest.mark.slow

CLASSES = (ClassInfo("car", (255, 0, 0)), ClassInfo("road", (0, 255, 0)))
CARD = ModelCard(name="net", versions=("3",), platform="onnx_onnxv1", parameters=CardParameters(classes=CLASSES))
WIDTH, HEIGHT, FRAMES = 64, 48, 5
KINDS = {
    "detections": "vision_msgs/msg/Detection2DArray",
    "keypoints": "vision_msgs/msg/Detection2DArray",
    "classes": "sensor_msgs/msg/Image",
    "label_info": "vision_msgs/msg/LabelInfo",
    "outcome": "diagnostic_msgs/msg/DiagnosticArray",
    "overlay/compressed": "sensor_msgs/msg/CompressedImage",
}
READER = """
import base64, json, sys
from mqinfer.bags.ros2.node import RosNode
kinds, prefix = json.loads(sys.argv[1]), sys.argv[2]
node = RosNode()
latched = "label_info"
readers = {name: node.reader(f"{prefix}/{name}", kind, 10, latched=name == latched) for name, kind in kinds.items()}
wait = node.waiter(*readers.values())
print("ready", flush=True)
while True:
    wait(0.2)
    for name, reader in readers.items():
        for sample in reader.take(10):
            if hasattr(sample, "cdr"):
                print(json.dumps([name, base64.b64encode(sample.cdr).decode()]), flush=True)
"""


def stamp_of(message: Any) -> int:
    """Return the stamp of a message in nanoseconds."""
    return int(message.header.stamp.sec) * 10**9 + int(message.header.stamp.nanosec)


def frame_of(number: int, source: str) -> Frame:
    """Make a frame."""
    image = RawImage("rgb8", HEIGHT, WIDTH, WIDTH * 3, is_bigendian=False, data=b"")
    return Frame(source, number, 10**9 * (number + 7) + 5, 0, "optical", image)


def outputs_of(number: int) -> dict[str, Array]:
    """Return what a model found there."""
    random = np.random.default_rng(number + 1)
    return {
        "boxes": random.uniform([1, 1, 21, 21], [20, 20, 40, 40], (2, 4)).astype(np.float32),
        "scores": np.array([0.5, 0.25], np.float32),
        "classes": np.array([1, 0], np.int64),
        "keypoints": random.uniform([1, 2, 0], [2, 3, 1], (2, 2, 3)).astype(np.float32),
        "mask": random.integers(0, 2, (1, HEIGHT, WIDTH)),
    }


def is_read(writer: Any) -> bool:
    """Return whether a writer has found its reader."""
    return bool(writer.get_publication_matched_status().current_count)


def received(reader: subprocess.Popen[str], kinds: Mapping[str, str]) -> dict[str, list[Any]]:
    """Return the messages by topic, from the first frame that is compared, once all are there."""
    got: dict[str, list[Any]] = {name: [] for name in kinds}
    for line in reader.stdout or ():
        name, cdr = json.loads(line)
        message = deserialize(base64.b64decode(cdr), kinds[name])
        if name == "label_info" or stamp_of(message) >= frame_of(0, "").capture_time_ns:
            got[name].append(message)
        if all(len(found) == (1 if name == "label_info" else FRAMES) for name, found in got.items()):
            break
    return got


@pytest.fixture
def read(domain: int) -> Iterator[Callable[[Mapping[str, str], str], subprocess.Popen[str]]]:
    """Start readers of a stream's topics in processes of their own."""
    assert domain
    started: list[subprocess.Popen[str]] = []

    def run(kinds: Mapping[str, str], source: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", READER, json.dumps(kinds), f"{source}/mqinfer"]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        assert started[-1].stdout
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield run
    for process in started:
        process.kill()
        process.communicate()


def publish(
    folder: Path, source: str, outputs_of: Callable[[int], dict[str, Array]], read: Any, kinds: Mapping[str, str]
) -> tuple[list[dict[str, Any]], dict[str, list[Any]]]:
    """Publish results; return the JSON lines of them, and the messages that a reader got."""
    reader, lines, sink = read(kinds, source), JsonlSink(folder), Ros2Sink(CARD)
    with closing(lines), closing(sink):
        for number in range(-1, FRAMES):
            frame, outputs = frame_of(number, source), outputs_of(number)
            pixels, placement = np.zeros((HEIGHT, WIDTH, 3), np.uint8), Placement.of((WIDTH, HEIGHT), (WIDTH, HEIGHT))
            view = FrameView(pixels, placement, outputs, classes=CLASSES)
            result = InferResult("1", Outcome.OK, "net", "3", "sha256:a", outputs, stage="worker", attempts=1)
            sink.write(frame, view, result)
            if number >= 0:
                lines.write(frame, view, result)
            else:  # this frame made the topics, which the reader finds now
                wait_until(lambda: all(is_read(sink._writers[f"{source}/mqinfer/{name}"]) for name in kinds))
        got = received(reader, kinds)
    written = [json.loads(line) for line in (folder / "results.jsonl").read_text().splitlines()]
    assert len(written) == FRAMES
    return written, got


def test_a_reader_gets_what_the_json_lines_have(tmp_path: Path, read: Any, topic: str) -> None:
    """Boxes, names, scores, masks, stamps and frames of each result, and a picture of it; the names to who is late."""
    lines, got = publish(tmp_path, topic, outputs_of, read, KINDS)
    for number, line in enumerate(lines):
        for name in KINDS.keys() - {"label_info"}:
            message = got[name][number]
            assert (stamp_of(message), message.header.frame_id) == (line["capture_time_ns"], line["frame_id"])
        for each, described in zip(got["detections"][number].detections, line["detections"], strict=True):
            found, centre, size = each.results[0].hypothesis, each.bbox.center.position, each.bbox
            assert (found.class_id, found.score) == (described["class"], pytest.approx(described["score"], abs=1e-6))
            left, top, right, bottom = described["box"]
            assert (size.size_x, size.size_y) == pytest.approx((right - left, bottom - top), abs=0.01)
            assert (centre.x, centre.y) == pytest.approx(((left + right) / 2, (top + bottom) / 2), abs=0.01)
        points = [
            (str(place), name, *point)
            for place, each in enumerate(line["detections"])
            for name, point in each["keypoints"].items()
        ]
        for each, point in zip(got["keypoints"][number].detections, points, strict=True):
            found, place = each.results[0].hypothesis, each.bbox.center.position
            assert (each.id, found.class_id) == point[:2]
            assert (place.x, place.y, found.score) == pytest.approx(point[2:], abs=0.01)
        mask = got["classes"][number].data.reshape(HEIGHT, WIDTH)
        assert np.array_equal(mask, outputs_of(number)["mask"][0])
        assert got["outcome"][number].status[0].name == line["model_name"]
        assert cv2.imdecode(got["overlay/compressed"][number].data, cv2.IMREAD_COLOR) is not None
    assert [each.class_name for each in got["label_info"][0].class_map] == ["car", "road"]


def test_the_classes_of_a_classifier(tmp_path: Path, read: Any, topic: str) -> None:
    """Names and scores, best first."""
    kinds = {"classification": "vision_msgs/msg/Classification"}

    def scores(number: int) -> dict[str, Array]:
        return {"scores": np.array([[0.1 + number / 8, 0.5]], np.float32)}

    lines, got = publish(tmp_path, topic, scores, read, kinds)
    for line, message in zip(lines, got["classification"], strict=True):
        assert (stamp_of(message), message.header.frame_id) == (line["capture_time_ns"], line["frame_id"])
        found = [(each.class_id, pytest.approx(each.score, abs=1e-6)) for each in message.results]
        assert found == [(each["class"], each["score"]) for each in line["top"]]


@pytest.mark.parametrize("distribution", ["HUMBLE", "IRON", "JAZZY", "KILTED", "LYRICAL"])
def test_types_are_those_of_each_distribution(distribution: str) -> None:
    """Name, fields and hash, of the messages that are read and published, and of all that they are made of."""
    theirs = get_typestore(Stores[f"ROS2_{distribution}"])
    kinds = {*KINDS.values(), "vision_msgs/msg/Classification", CAMERA_INFO, *IMAGE_TYPES} - VISION.keys()
    assert kinds == {"diagnostic_msgs/msg/DiagnosticArray", CAMERA_INFO, *IMAGE_TYPES}
    for kind in kinds | {"geometry_msgs/msg/PoseWithCovariance", "std_msgs/msg/Header"}:
        assert type_hash(kind) == theirs.hash_rihs01(kind)
        assert store().fielddefs[kind][1] == theirs.fielddefs[kind][1]
        assert ros_type(carrier(dds_type(kind)).__idl_typename__.replace(".", "::")) == kind
