"""Write results as a ROS 2 bag that plays beside the recording."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.answers.outputs import DetectedBox, Mask, TopClass, class_name
from mqinfer.bags.frame import Frame
from mqinfer.bags.writer import BagWriter
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.output_files import set_aside, writing
from mqinfer.edge_agent.sinks.sink import StreamNames, repair_earlier
from mqinfer.logs import log_once
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.errors import ConfigError, SourceError
from mqinfer.protocol.types import Outcome

DEFINITIONS = {
    "vision_msgs/msg/Point2D": "float64 x\nfloat64 y\n",
    "vision_msgs/msg/Pose2D": "vision_msgs/Point2D position\nfloat64 theta\n",
    "vision_msgs/msg/BoundingBox2D": "vision_msgs/Pose2D center\nfloat64 size_x\nfloat64 size_y\n",
    "vision_msgs/msg/ObjectHypothesis": "string class_id\nfloat64 score\n",
    "vision_msgs/msg/ObjectHypothesisWithPose": (
        "vision_msgs/ObjectHypothesis hypothesis\ngeometry_msgs/PoseWithCovariance pose\n"
    ),
    "vision_msgs/msg/Detection2D": (
        "std_msgs/Header header\n"
        "vision_msgs/ObjectHypothesisWithPose[] results\n"
        "vision_msgs/BoundingBox2D bbox\n"
        "string id\n"
    ),
    "vision_msgs/msg/Detection2DArray": "std_msgs/Header header\nvision_msgs/Detection2D[] detections\n",
    "vision_msgs/msg/Classification": "std_msgs/Header header\nvision_msgs/ObjectHypothesis[] results\n",
    "vision_msgs/msg/VisionClass": "uint16 class_id\nstring class_name\n",
    "vision_msgs/msg/LabelInfo": ("std_msgs/Header header\nvision_msgs/VisionClass[] class_map\nfloat32 threshold\n"),
}
"""Messages of vision_msgs, which rosbags does not have, by type, each behind those that it uses.

Fields of https://github.com/ros-perception/vision_msgs, release 4.1.1 (ROS 2 Humble to Rolling, Apache License 2.0),
without their comments.
"""

log = logging.getLogger("mqinfer.edge_agent")

_CHUNK_S = 1.0
_NS = 1_000_000_000
_MOST_LABELS = 1 << 16
"""`vision_msgs/VisionClass` numbers classes with 16 bits."""
_VALID_TOPIC = re.compile(r"(/[A-Za-z_][A-Za-z0-9_]*)+")
_LONGEST_TOPIC = 200
"""RMW takes names of 247 characters (`RMW_TOPIC_MAX_NAME_LENGTH`), with the parts that are added here."""
_LEVELS = {Outcome.OK: 0, Outcome.SUPERSEDED: 1, Outcome.CANCELLED: 1}
"""Levels of `diagnostic_msgs/DiagnosticStatus`: 0 OK, 1 warning; the other outcomes are errors, 2."""


class RosbagSink:
    """Writes `results-ros2/`, a ROS 2 bag with MCAP storage; messages have the frames' header stamps and log times.

    Topics of each stream; what is not there for a kind of model is left out:

    - `<source>/mqinfer/detections`: `vision_msgs/Detection2DArray`, boxes in pixels of the recorded frame;
    - `<source>/mqinfer/classes`: `sensor_msgs/Image`, mono8, the class number of each pixel of the recorded frame;
    - `<source>/mqinfer/classification`: `vision_msgs/Classification`, the best classes;
    - `<source>/mqinfer/label_info`: `vision_msgs/LabelInfo`, the names of the numbers; once, latched;
    - `<source>/mqinfer/outcome`: `diagnostic_msgs/DiagnosticArray`, whatever the outcome: model, worker, engine, error.

    A class in a detection or classification goes by its name. A chunk ends after a second or a megabyte, so a process
    that is killed loses at most the last second; `mqinfer bag repair` or the next run into the same folder makes a
    whole MCAP file of it.

    Args:
        directory: For the folder of the bag.
        card: The model's card: its classes.

    Raises:
        ConfigError: The bag cannot be created.
        MissingExtra: rosbags is not installed.
    """

    def __init__(self, directory: Path, card: ModelCard) -> None:
        self._path = directory / "results-ros2"
        self._classes = card.classes
        self._names = StreamNames(_topic, "_")
        self._labelled: set[str] = set()
        self._flushed = time.monotonic()
        with writing(self._path):
            if earlier := set_aside(self._path, is_there=Path.is_dir):
                for file in earlier.glob("*.mcap"):
                    repair_earlier(file)
        with _writing():
            self._bag = BagWriter(self._path, "mcap", compression="zstd")
            self._bag.register(DEFINITIONS)

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Append the messages of a result.

        Raises:
            ConfigError: The bag cannot be written.
        """
        if not -(1 << 31) <= frame.capture_time_ns // _NS < 1 << 31:
            log_once(
                log,
                logging.WARNING,
                "%s: stamps of ROS 2 end in 2038; later frames are left out of %s",
                frame.source,
                self._path,
            )
            return
        header = self._header(frame)
        with _writing():
            self._add(frame, "outcome", self._outcome(header, view, result))
            if "boxes" in view.outputs and "scores" in view.outputs:
                self._add(frame, "detections", self._detections(header, view.boxes))
            if view.mask is not None:
                self._label(frame, header)
                self._add(frame, "classes", self._image(header, view.mask))
            if view.top:
                self._add(frame, "classification", self._classification(header, view.top))
            if time.monotonic() - self._flushed >= _CHUNK_S:
                self._bag.flush()
                self._flushed = time.monotonic()

    def close(self) -> tuple[Path, ...]:
        """Finish the bag, and return its path.

        Raises:
            ConfigError: The bag cannot be written.
        """
        with _writing():
            self._bag.close()
        return (self._path,)

    def _add(self, frame: Frame, kind: str, message: Any, *, latched: bool = False) -> None:
        topic = f"{self._names.of(frame.source)}/mqinfer/{kind}"
        self._bag.add(topic, message, frame.log_time_ns, latched=latched)

    def _header(self, frame: Frame) -> Any:
        stamp = self._bag.message("builtin_interfaces/msg/Time", *divmod(frame.capture_time_ns, _NS))
        return self._bag.message("std_msgs/msg/Header", stamp, _text(frame.frame_id))

    def _label(self, frame: Frame, header: Any) -> None:
        """Write the names of the classes, if they are not there yet."""
        if frame.source in self._labelled or not self._classes:
            return
        self._labelled.add(frame.source)
        make = self._bag.message
        named = enumerate(self._classes[:_MOST_LABELS])
        classes = [make("vision_msgs/msg/VisionClass", number, _text(info.name)) for number, info in named]
        self._add(frame, "label_info", make("vision_msgs/msg/LabelInfo", header, classes, 0.0), latched=True)

    def _image(self, header: Any, mask: Mask) -> Any:
        height, width = mask.shape
        data = np.ascontiguousarray(mask).reshape(-1)
        return self._bag.message("sensor_msgs/msg/Image", header, height, width, "mono8", 0, width, data)

    def _detections(self, header: Any, boxes: Sequence[DetectedBox]) -> Any:
        found = [self._detection(header, box) for box in boxes]
        return self._bag.message("vision_msgs/msg/Detection2DArray", header, found)

    def _detection(self, header: Any, found: DetectedBox) -> Any:
        make = self._bag.message
        left, top, right, bottom = found.box
        centre = make("vision_msgs/msg/Point2D", (left + right) / 2, (top + bottom) / 2)
        box = make(
            "vision_msgs/msg/BoundingBox2D", make("vision_msgs/msg/Pose2D", centre, 0.0), right - left, bottom - top
        )
        name = "" if found.number is None else class_name(found.number, self._classes)
        hypothesis = make("vision_msgs/msg/ObjectHypothesis", _text(name), found.score)
        result = make("vision_msgs/msg/ObjectHypothesisWithPose", hypothesis, self._no_pose())
        return make("vision_msgs/msg/Detection2D", header, [result], box, "")

    def _no_pose(self) -> Any:
        make = self._bag.message
        pose = make(
            "geometry_msgs/msg/Pose",
            make("geometry_msgs/msg/Point", 0.0, 0.0, 0.0),
            make("geometry_msgs/msg/Quaternion", 0.0, 0.0, 0.0, 1.0),
        )
        return make("geometry_msgs/msg/PoseWithCovariance", pose, np.zeros(36))

    def _classification(self, header: Any, top: Sequence[TopClass]) -> Any:
        make = self._bag.message
        found = [make("vision_msgs/msg/ObjectHypothesis", _text(each.name), each.score) for each in top]
        return make("vision_msgs/msg/Classification", header, found)

    def _outcome(self, header: Any, view: FrameView, result: InferResult) -> Any:
        make, error = self._bag.message, result.error
        facts = {
            "id": result.id,
            "model_version": result.model_version,
            "model_hash": result.model_hash,
            **view.engine,
            "stage": result.stage,
            "attempts": str(result.attempts),
            "latency_ms": f"{result.timings.total / 1e6:.3f}",
            "error": error.code if error else None,
        }
        status = make(
            "diagnostic_msgs/msg/DiagnosticStatus",
            _LEVELS.get(result.outcome, 2),
            result.model_name,
            _text(f"{result.outcome}: {error.message}") if error else str(result.outcome),
            result.worker,
            [make("diagnostic_msgs/msg/KeyValue", key, _text(value)) for key, value in facts.items() if value],
        )
        return make("diagnostic_msgs/msg/DiagnosticArray", header, [status])


def _topic(source: str) -> str:
    """Return a stream's name where ROS 2 takes it as a topic, and one like it elsewhere, such as for a file."""
    if _VALID_TOPIC.fullmatch(source) and len(source) <= _LONGEST_TOPIC:
        return source
    tokens = [re.sub(r"[^A-Za-z0-9]+", "_", token).strip("_") for token in source.split("/")]
    made = "".join(f"/stream_{token}" if token[0].isdigit() else f"/{token}" for token in tokens if token)
    return made[:_LONGEST_TOPIC].rstrip("/_") or "/stream"


def _text(text: str) -> str:
    """Return text that a message can hold: ROS ends strings at a NUL, and a file's name may be no UTF-8."""
    return text.encode(errors="backslashreplace").decode().replace("\0", " ")


@contextmanager
def _writing() -> Iterator[None]:
    """Raise the sinks' error for a bag that can't be written."""
    try:
        yield
    except SourceError as error:
        raise ConfigError(str(error)) from error
