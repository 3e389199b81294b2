"""Results on topics of ROS 2, as a reader in another process gets them."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from mqinfer.bags.frame import Frame
from mqinfer.bags.ros2.messages import deserialize
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
        "mask": random.integers(0, 2, (1, HEIGHT, WIDTH)),
    }


def is_read(writer: Any) -> bool:
    """Return whether a writer has found its reader."""
    return bool(writer.get_publication_matched_status().current_count)


def received(lines: Iterable[str]) -> dict[str, list[Any]]:
    """Return the messages by topic, from the first frame that is compared, once all are there."""
    got: dict[str, list[Any]] = {name: [] for name in KINDS}
    for line in lines:
        name, cdr = json.loads(line)
        message = deserialize(base64.b64decode(cdr), KINDS[name])
        if name == "label_info" or stamp_of(message) >= frame_of(0, "").capture_time_ns:
            got[name].append(message)
        if all(len(found) == (1 if name == "label_info" else FRAMES) for name, found in got.items()):
            break
    return got


@pytest.fixture
def reader(domain: int) -> Iterator[subprocess.Popen[str]]:
    """Start a reader on this machine alone, of topics that no other test has."""
    assert domain
    command = [sys.executable, "-c", READER, json.dumps(KINDS), f"/camera_{os.getpid()}/mqinfer"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_a_reader_gets_what_the_json_lines_have(tmp_path: Path, reader: subprocess.Popen[str]) -> None:
    """Boxes, names, scores, masks, stamps and frames of each result, and a picture of it; the names to who is late."""
    lines, sink = JsonlSink(tmp_path), Ros2Sink(CARD)
    with closing(lines), closing(sink):
        for number in range(-1, FRAMES):
            frame, outputs = frame_of(number, f"/camera_{os.getpid()}"), outputs_of(number)
            pixels, placement = np.zeros((HEIGHT, WIDTH, 3), np.uint8), Placement.of((WIDTH, HEIGHT), (WIDTH, HEIGHT))
            view = FrameView(pixels, placement, outputs, classes=CLASSES)
            result = InferResult("1", Outcome.OK, "net", "3", "sha256:a", outputs, stage="worker", attempts=1)
            sink.write(frame, view, result)
            if number >= 0:
                lines.write(frame, view, result)
            else:  # this frame made the topics, which the reader finds now
                wait_until(lambda: all(map(is_read, sink._writers.values())))
        assert reader.stdout
        got = received(reader.stdout)
    for number, line in enumerate(map(json.loads, (tmp_path / "results.jsonl").read_text().splitlines())):
        for name in KINDS.keys() - {"label_info"}:
            message = got[name][number]
            assert (stamp_of(message), message.header.frame_id) == (line["capture_time_ns"], line["frame_id"])
        for each, described in zip(got["detections"][number].detections, line["detections"], strict=True):
            found, centre, box = each.results[0].hypothesis, each.bbox.center.position, described["box"]
            assert (found.class_id, found.score) == (described["class"], pytest.approx(described["score"], abs=1e-6))
            assert (centre.x - each.bbox.size_x / 2, centre.y - each.bbox.size_y / 2) == pytest.approx(
                box[:2], abs=0.01
            )
        mask = got["classes"][number].data.reshape(HEIGHT, WIDTH)
        assert np.array_equal(mask, outputs_of(number)["mask"][0])
        assert got["outcome"][number].status[0].name == line["model_name"]
        assert cv2.imdecode(got["overlay/compressed"][number].data, cv2.IMREAD_COLOR) is not None
    assert len((tmp_path / "results.jsonl").read_text().splitlines()) == FRAMES
    assert [each.class_name for each in got["label_info"][0].class_map] == ["car", "road"]
