"""The ROS 2 bag of results: read back by rosbags with the definitions in the file, whole or after a kill."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mcap.reader import make_reader
from rosbags.highlevel import AnyReader
from ruamel.yaml import YAML

from mqinfer.bags.frame import Frame
from mqinfer.bags.repair import is_unfinished, repair
from mqinfer.bags.writer import BagWriter
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.ros.rosbag_sink import RosbagSink
from mqinfer.images.picture import RawImage
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import CardParameters, ClassInfo, ModelCard, Resize
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.states import ServedModel
from mqinfer.protocol.types import ErrorInfo, Outcome

CLASSES = (ClassInfo("car", (255, 0, 0)), ClassInfo("road", (0, 255, 0)), ClassInfo("sky", (0, 0, 255)))
CARD = ModelCard(name="net", versions=("3",), platform="onnx_onnxv1", parameters=CardParameters(classes=CLASSES))
WIDTH, HEIGHT = 100, 50
CAPTURE_NS = 1_700_000_000_123_456_789
PERIOD_NS = 50_000_000
PLACEMENT = Placement.of((WIDTH, HEIGHT), (32, 32), Resize.LETTERBOX)  # the picture is 32x16, between margins of 8
BOXES: dict[str, Array] = {
    "boxes": np.array([[0, 8, 16, 16], [8.5, 12.25, 32, 24]], np.float32),
    "scores": np.array([0.5, 0.875], np.float32),
    "classes": np.array([1, 0], np.int64),
}
IN_FRAME = [(26.5625, 13.28125, 100.0, 50.0), (0.0, 0.0, 50.0, 25.0)]  # by the factor 3.125, the best first
MASK: dict[str, Array] = {"mask": np.arange(32 * 32, dtype=np.int64).reshape(1, 32, 32) // 512}
Message = tuple[str, str, int, Any]


def frame_of(number: int, source: str = "/camera/front") -> Frame:
    """Make a frame; its stamp is older than its log time by an odd number of nanoseconds."""
    image = RawImage("rgb8", HEIGHT, WIDTH, WIDTH * 3, is_bigendian=False, data=b"")
    stamp = CAPTURE_NS + number * PERIOD_NS
    return Frame(source, number, stamp, stamp + 7_000_001, "optical frame", image)


def result_of(outputs: Mapping[str, Array], outcome: Outcome = Outcome.OK, message: str = "too late") -> InferResult:
    """Make a result."""
    error = None if outcome is Outcome.OK else ErrorInfo("timeout", message)
    return InferResult("1", outcome, "net", "3", "sha256:a", outputs, error, worker="gpu.0", stage="worker", attempts=1)


def view_of(outputs: Mapping[str, Array]) -> FrameView:
    """Show outputs in a letterbox."""
    served = ServedModel("net", "3", precision="int8", backend="openvino 2026", device="cpu")
    return FrameView(np.zeros((HEIGHT, WIDTH, 3), np.uint8), PLACEMENT, outputs, served=served, classes=CARD.classes)


def read(path: Path) -> list[Message]:
    """Return topic, type, log time and message of each message, by the definitions in the file alone."""
    with AnyReader([path]) as reader:
        return [
            (connection.topic, connection.msgtype, log_time, reader.deserialize(data, connection.msgtype))
            for connection, log_time, data in reader.messages()
        ]


def written(
    folder: Path, outputs: Mapping[str, Array], frames: int = 1, card: ModelCard = CARD
) -> dict[str, list[Any]]:
    """Write results, and return the messages by the last part of their topic."""
    sink = RosbagSink(folder, card)
    for number in range(frames):
        sink.write(frame_of(number), view_of(outputs), result_of(outputs))
    found: dict[str, list[Any]] = {}
    for topic, kind, log_time, message in read(sink.close()[0]):
        assert topic.startswith("/camera/front/mqinfer/")
        found.setdefault(topic.rsplit("/", 1)[1], []).append((kind, log_time, message))
    return found


def stamp_of(message: Any) -> int:
    """Return the stamp of a header in nanoseconds."""
    return int(message.header.stamp.sec) * 10**9 + int(message.header.stamp.nanosec)


def test_boxes_come_back_under_the_frames_own_stamps(tmp_path: Path) -> None:
    """Stamps and log times to the nanosecond, boxes in the recorded frame's pixels, names and scores, best first."""
    found = written(tmp_path, BOXES, frames=3)
    assert set(found) == {"detections", "outcome"}
    for number, (kind, log_time, message) in enumerate(found["detections"]):
        frame = frame_of(number)
        assert (kind, log_time) == ("vision_msgs/msg/Detection2DArray", frame.log_time_ns)
        assert (stamp_of(message), message.header.frame_id) == (frame.capture_time_ns, "optical frame")
        centres = [(each.bbox.center.position, each.bbox) for each in message.detections]
        sides = [
            (at.x - box.size_x / 2, at.y - box.size_y / 2, at.x + box.size_x / 2, at.y + box.size_y / 2)
            for at, box in centres
        ]
        assert sides == IN_FRAME
        hypotheses = [each.results[0].hypothesis for each in message.detections]
        assert [(each.class_id, each.score) for each in hypotheses] == [("car", 0.875), ("road", 0.5)]
        assert {stamp_of(each) for each in message.detections} == {frame.capture_time_ns}
        assert {each.results[0].pose.pose.orientation.w for each in message.detections} == {1.0}


def test_a_detector_that_finds_nothing_says_so(tmp_path: Path) -> None:
    """An empty list is a result; without one a player could not tell it from a frame that was lost."""
    nothing = {"boxes": np.zeros((0, 4), np.float32), "scores": np.zeros(0, np.float32)}
    ((_, _, message),) = written(tmp_path, nothing)["detections"]
    assert message.detections == []


def test_masks_come_back_pixel_by_pixel_with_the_names_of_their_numbers(tmp_path: Path) -> None:
    """The class numbers of the recorded frame's pixels; the names once, latched."""
    found = written(tmp_path, MASK, frames=2)
    assert set(found) == {"classes", "label_info", "outcome"}
    mask = view_of(MASK).answer.mask
    assert mask is not None
    for kind, _, message in found["classes"]:
        assert (kind, message.encoding, message.step) == ("sensor_msgs/msg/Image", "mono8", WIDTH)
        assert np.array_equal(message.data.reshape(message.height, message.width), mask)
    ((kind, _, labels),) = found["label_info"]
    assert (kind, stamp_of(labels)) == ("vision_msgs/msg/LabelInfo", CAPTURE_NS)
    assert [(each.class_id, each.class_name) for each in labels.class_map] == [(0, "car"), (1, "road"), (2, "sky")]
    with (tmp_path / "results-ros2" / "results-ros2.mcap").open("rb") as file:
        summary: Any = make_reader(file).get_summary()
    qualities = {
        each.topic.rsplit("/", 1)[1]: each.metadata["offered_qos_profiles"] for each in summary.channels.values()
    }
    assert {name for name, each in qualities.items() if "durability: 1" in each} == {"label_info"}


def test_a_classifier_has_its_best_classes(tmp_path: Path) -> None:
    """By name, best first."""
    ((kind, _, message),) = written(tmp_path, {"scores": np.array([[0.25, 0.125, 0.625]], np.float32)})[
        "classification"
    ]
    assert kind == "vision_msgs/msg/Classification"
    assert [(each.class_id, each.score) for each in message.results] == [("sky", 0.625), ("car", 0.25), ("road", 0.125)]


def test_each_frame_has_its_outcome(tmp_path: Path) -> None:
    """Also one without a result: model, worker, engine and error, as a diagnostic status."""
    sink = RosbagSink(tmp_path, CARD)
    sink.write(frame_of(0), view_of(BOXES), result_of(BOXES))
    sink.write(frame_of(1), view_of({}), result_of({}, Outcome.EXPIRED))
    sink.write(frame_of(2), view_of({}), result_of({}, Outcome.SUPERSEDED))
    found = [message.status[0] for topic, _, _, message in read(sink.close()[0]) if topic.endswith("/outcome")]
    assert [(each.level, each.message) for each in found] == [
        (0, "ok"),
        (2, "expired: too late"),
        (1, "superseded: too late"),
    ]
    facts = {each.key: each.value for each in found[0].values}
    assert (
        facts.items() >= {"precision": "int8", "backend": "openvino 2026", "device": "cpu", "stage": "worker"}.items()
    )
    assert (found[0].name, found[0].hardware_id) == ("net", "gpu.0")


@pytest.mark.parametrize(
    ("source", "topic"),
    [
        ("/camera/image_raw", "/camera/image_raw"),
        ("drive.mp4", "/drive_mp4"),
        ("/a__b/_c", "/a__b/_c"),
        ("/2nd//camera/", "/stream_2nd/camera"),
        ("<script>alert(1)</script>", "/script_alert_1/script"),
        ("", "/stream"),
        ("\x1b[x\0" * 1000, "/" + "x_" * 99 + "x"),
    ],
)
def test_topics_keep_to_the_rules_of_ros_2(tmp_path: Path, source: str, topic: str) -> None:
    """A player refuses a bag with another name of a topic; a source may be a file."""
    sink = RosbagSink(tmp_path, CARD)
    sink.write(frame_of(0, source), view_of({}), result_of({}))
    assert read(sink.close()[0])[0][0] == f"{topic}/mqinfer/outcome"


def test_streams_whose_topics_would_be_one_stay_apart(tmp_path: Path) -> None:
    """Two files whose names differ in a character that topics cannot have."""
    sink = RosbagSink(tmp_path, CARD)
    for source in ("a-b", "a b", "a_b"):
        sink.write(frame_of(0, source), view_of({}), result_of({}))
    topics = [topic for topic, *_ in read(sink.close()[0])]
    assert topics == ["/a_b/mqinfer/outcome", "/a_b_2/mqinfer/outcome", "/a_b_3/mqinfer/outcome"]


def test_hostile_texts_are_kept_as_texts(tmp_path: Path) -> None:
    """A NUL would end a string early for ROS, and half a surrogate pair cannot be written at all."""
    names = ("<b>&", "a\0b", "\udc80file", "x" * 10_000)
    known = CardParameters(classes=tuple(ClassInfo(name, (0, 0, 0)) for name in names))
    card = ModelCard(name="net", versions=("3",), platform="p", parameters=known)
    outputs = BOXES | {"boxes": np.zeros((4, 4)), "scores": np.linspace(1, 0, 4), "classes": np.arange(4)}
    ((_, _, message),) = written(tmp_path / "bag", outputs, card=card)["detections"]
    found = [each.results[0].hypothesis.class_id for each in message.detections]
    assert found == ["<b>&", "a b", "\\udc80file", "x" * 10_000]
    sink = RosbagSink(tmp_path / "error", card)
    sink.write(frame_of(0), view_of({}), result_of({}, Outcome.ERROR, "\udcff\0\n<script>"))
    assert read(sink.close()[0])[0][3].status[0].message == "error: \\udcff \n<script>"


def test_stamps_that_ros_2_cannot_hold_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """ROS 1 counts seconds to 2106, ROS 2 to 2038; a wrong stamp would be worse than none."""
    sink = RosbagSink(tmp_path, CARD)
    far = Frame("/far", 0, 3_000_000_000 * 10**9, CAPTURE_NS, "", frame_of(0).image)
    sink.write(far, view_of(BOXES), result_of(BOXES))
    sink.write(frame_of(1), view_of({}), result_of({}))
    assert [topic for topic, *_ in read(sink.close()[0])] == ["/camera/front/mqinfer/outcome"]
    assert "2038" in caplog.text


def test_the_bag_suits_humble_and_names_the_definitions(tmp_path: Path) -> None:
    """Version 9 of metadata has qualities of service that Humble cannot read; type hashes are those of vision_msgs."""
    written(tmp_path, MASK)
    metadata = YAML(typ="safe").load(tmp_path / "results-ros2" / "metadata.yaml")["rosbag2_bagfile_information"]
    assert (metadata["version"], metadata["storage_identifier"]) == (8, "mcap")
    topics = [each["topic_metadata"] for each in metadata["topics_with_message_count"]]
    assert {type(each["offered_qos_profiles"]) for each in topics} == {str}
    with AnyReader([tmp_path / "results-ros2"]) as reader:
        text = next(each.msgdef.data for each in reader.connections if each.msgtype.endswith("LabelInfo"))
    assert "MSG: vision_msgs/VisionClass" in text


KILLED = """
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from tests.edge_agent.test_sinks_rosbag import *
import mqinfer.edge_agent.sinks.ros.rosbag_sink as rosbag_sink
rosbag_sink._CHUNK_S = 0
sink = RosbagSink(Path(sys.argv[1]), CARD)
for number in range(5):
    sink.write(frame_of(number), view_of(BOXES), result_of(BOXES))
os.kill(os.getpid(), 9)
"""


def test_a_killed_run_leaves_a_bag_that_can_be_repaired(tmp_path: Path) -> None:
    """By `mqinfer bag repair`, and by the next run into the same folder; every frame that was flushed is in it."""
    folder = tmp_path / "out"
    folder.mkdir()
    ended = subprocess.run([sys.executable, "-c", KILLED, str(folder)], check=False, timeout=60)
    assert ended.returncode == -9
    (left,) = (folder / "results-ros2").iterdir()
    assert is_unfinished(left)
    assert repair(left, tmp_path / "whole.mcap").messages == 10
    whole = [message for message in read(tmp_path / "whole.mcap") if message[0].endswith("/detections")]
    assert [stamp_of(message[3]) for message in whole] == [frame_of(number).capture_time_ns for number in range(5)]
    RosbagSink(folder, CARD).close()
    kept = folder / "results-ros2.1" / left.name
    assert not is_unfinished(kept)
    assert len(read(kept)) == 10


def test_nothing_of_an_earlier_run_is_overwritten(tmp_path: Path) -> None:
    """Its folder gets a number."""
    written(tmp_path, BOXES)
    written(tmp_path, MASK)
    assert {topic.rsplit("/", 1)[1] for topic, *_ in read(tmp_path / "results-ros2.1")} == {"detections", "outcome"}


def test_a_full_disk_is_reported_and_leaves_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the bag; closing afterwards writes no index behind half a chunk."""
    sink = RosbagSink(tmp_path, CARD)
    sink.write(frame_of(0), view_of(BOXES), result_of(BOXES))

    def full(self: BagWriter) -> None:
        with self._failing():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    sink._bag.flush()
    monkeypatch.setattr(BagWriter, "flush", full)
    monkeypatch.setattr("mqinfer.edge_agent.sinks.ros.rosbag_sink._CHUNK_S", 0)
    with pytest.raises(ConfigError, match=r"results-ros2: .*No space left"):
        sink.write(frame_of(1), view_of(BOXES), result_of(BOXES))
    sink.close()
    (left,) = (tmp_path / "results-ros2").iterdir()
    assert is_unfinished(left)
    assert repair(left, tmp_path / "whole.mcap").messages == 2
