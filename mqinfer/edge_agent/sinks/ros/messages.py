"""A result as messages of ROS 2: one description of it, for the bag and for those that listen now."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mqinfer.answers.keypoints import named_keypoints
from mqinfer.answers.outputs import DetectedBox, Mask, TopClass, class_name
from mqinfer.bags.frame import Frame
from mqinfer.bags.ros2.messages import is_topic, store
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.sink import StreamNames
from mqinfer.logs import log_once
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.types import Outcome

log = logging.getLogger("mqinfer.edge_agent")

_NS = 1_000_000_000
_DETECTIONS = "vision_msgs/msg/Detection2DArray"
_MOST_LABELS = 1 << 16
"""`vision_msgs/VisionClass` numbers classes with 16 bits."""
_LONGEST_TOPIC = 200
"""RMW takes names of 247 characters (`RMW_TOPIC_MAX_NAME_LENGTH`), with the parts that are added here."""
_LEVELS = {Outcome.OK: 0, Outcome.SUPERSEDED: 1, Outcome.CANCELLED: 1}
"""Levels of `diagnostic_msgs/DiagnosticStatus`: 0 OK, 1 warning; the other outcomes are errors, 2."""


@dataclass(frozen=True, slots=True)
class ResultMessage:
    """One message of a result.

    Attributes:
        topic: Where it goes.
        kind: Its type.
        make: Makes it.
        latched: Whether it is there for those, too, that listen later.
    """

    topic: str
    kind: str
    make: Callable[[], Any]
    latched: bool = False


class ResultMessages:
    """The messages of results, under the stamps and coordinate frames of their pictures.

    Topics of each stream; what is not there for a kind of model is left out:

    - `<source>/mqinfer/outcome`: `diagnostic_msgs/DiagnosticArray`, whatever the outcome: model, worker, engine, error;
    - `<source>/mqinfer/detections`: `vision_msgs/Detection2DArray`, boxes in pixels of the recorded frame;
    - `<source>/mqinfer/keypoints`: the same with a detection for each key point, a box without an extent by its name,
      whose `id` is the place of its object among the detections;
    - `<source>/mqinfer/label_info`: `vision_msgs/LabelInfo`, the names of a mask's numbers; once, latched;
    - `<source>/mqinfer/classes`: `sensor_msgs/Image`, mono8, the class number of each pixel of the recorded frame;
    - `<source>/mqinfer/classification`: `vision_msgs/Classification`, the best classes.

    A class in a detection or classification goes by its name.

    Args:
        classes: Of the model.
        where: What the messages are left out of, for the log.

    Raises:
        MissingExtra: rosbags is not installed.
    """

    def __init__(self, classes: Sequence[ClassInfo], where: str) -> None:
        store()
        self._classes, self._where = classes, where
        self._names = StreamNames(_topic, "_")
        self._labelled: set[str] = set()

    def of(self, frame: Frame, view: FrameView, result: InferResult) -> Iterator[ResultMessage]:
        """Yield the messages of a result, each made where it is wanted."""
        if not -(1 << 31) <= frame.capture_time_ns // _NS < 1 << 31:
            text = "%s: stamps of ROS 2 end in 2038; later frames are left out of %s"
            log_once(log, logging.WARNING, text, frame.source, self._where)
            return
        header, classes = header_of(frame), self._classes
        at = partial(self.topic, frame.source)
        yield ResultMessage(
            at("outcome"), "diagnostic_msgs/msg/DiagnosticArray", partial(_outcome, header, view, result)
        )
        if "boxes" in view.outputs and "scores" in view.outputs:
            boxes = view.answer.boxes
            yield ResultMessage(at("detections"), _DETECTIONS, partial(_detections, header, boxes, classes))
            if any(box.keypoints for box in boxes):
                yield ResultMessage(at("keypoints"), _DETECTIONS, partial(_keypoints, header, boxes, classes))
        mask = view.answer.mask
        if mask is not None:
            if classes and frame.source not in self._labelled:
                self._labelled.add(frame.source)
                make = partial(_labels, header, classes)
                yield ResultMessage(at("label_info"), "vision_msgs/msg/LabelInfo", make, latched=True)
            yield ResultMessage(at("classes"), "sensor_msgs/msg/Image", partial(_image, header, mask))
        if view.answer.top:
            make = partial(_classification, header, view.answer.top)
            yield ResultMessage(at("classification"), "vision_msgs/msg/Classification", make)

    def topic(self, source: str, name: str) -> str:
        """Return the topic of a stream's messages of one name."""
        return f"{self._names.of(source)}/mqinfer/{name}"


def message(kind: str, *fields: Any) -> Any:
    """Make a message of a type, such as `std_msgs/msg/Header`, of its fields in their order."""
    return store().types[kind](*fields)


def header_of(frame: Frame) -> Any:
    """Return a header with the stamp and the coordinate frame of a picture."""
    stamp = message("builtin_interfaces/msg/Time", *divmod(frame.capture_time_ns, _NS))
    return message("std_msgs/msg/Header", stamp, _text(frame.frame_id))


def _labels(header: Any, classes: Sequence[ClassInfo]) -> Any:
    named = enumerate(classes[:_MOST_LABELS])
    numbers = [message("vision_msgs/msg/VisionClass", number, _text(info.name)) for number, info in named]
    return message("vision_msgs/msg/LabelInfo", header, numbers, 0.0)


def _image(header: Any, mask: Mask) -> Any:
    height, width = mask.shape
    data = np.ascontiguousarray(mask).reshape(-1)
    return message("sensor_msgs/msg/Image", header, height, width, "mono8", 0, width, data)


def _keypoints(header: Any, boxes: Sequence[DetectedBox], classes: Sequence[ClassInfo]) -> Any:
    """ROS has no message for key points."""
    found = [
        _detection(header, (x, y, x, y), name, score, str(place))
        for place, box in enumerate(boxes)
        for name, (x, y, score) in named_keypoints(box, classes).items()
    ]
    return message(_DETECTIONS, header, found)


def _detections(header: Any, boxes: Sequence[DetectedBox], classes: Sequence[ClassInfo]) -> Any:
    names = ("" if each.number is None else class_name(each.number, classes) for each in boxes)
    ids = ("" if each.id is None else str(each.id) for each in boxes)
    found = [
        _detection(header, box.box, name, box.score, own) for box, name, own in zip(boxes, names, ids, strict=True)
    ]
    return message(_DETECTIONS, header, found)


def _detection(header: Any, sides: Sequence[float], name: str, score: float, own: str) -> Any:
    left, top, right, bottom = sides
    centre = message("vision_msgs/msg/Point2D", (left + right) / 2, (top + bottom) / 2)
    box = message(
        "vision_msgs/msg/BoundingBox2D", message("vision_msgs/msg/Pose2D", centre, 0.0), right - left, bottom - top
    )
    hypothesis = message("vision_msgs/msg/ObjectHypothesis", _text(name), score)
    result = message("vision_msgs/msg/ObjectHypothesisWithPose", hypothesis, _no_pose())
    return message("vision_msgs/msg/Detection2D", header, [result], box, own)


def _no_pose() -> Any:
    pose = message(
        "geometry_msgs/msg/Pose",
        message("geometry_msgs/msg/Point", 0.0, 0.0, 0.0),
        message("geometry_msgs/msg/Quaternion", 0.0, 0.0, 0.0, 1.0),
    )
    return message("geometry_msgs/msg/PoseWithCovariance", pose, np.zeros(36))


def _classification(header: Any, top: Sequence[TopClass]) -> Any:
    found = [message("vision_msgs/msg/ObjectHypothesis", _text(each.name), each.score) for each in top]
    return message("vision_msgs/msg/Classification", header, found)


def _outcome(header: Any, view: FrameView, result: InferResult) -> Any:
    error = result.error
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
    status = message(
        "diagnostic_msgs/msg/DiagnosticStatus",
        _LEVELS.get(result.outcome, 2),
        result.model_name,
        _text(f"{result.outcome}: {error.message}") if error else str(result.outcome),
        result.worker,
        [message("diagnostic_msgs/msg/KeyValue", key, _text(value)) for key, value in facts.items() if value],
    )
    return message("diagnostic_msgs/msg/DiagnosticArray", header, [status])


def _topic(source: str) -> str:
    """Return a stream's name where ROS 2 takes it as a topic, and one like it elsewhere, such as for a file."""
    if is_topic(source) and len(source) <= _LONGEST_TOPIC:
        return source
    tokens = [re.sub(r"[^A-Za-z0-9]+", "_", token).strip("_") for token in source.split("/")]
    made = "".join(f"/stream_{token}" if token[0].isdigit() else f"/{token}" for token in tokens if token)
    return made[:_LONGEST_TOPIC].rstrip("/_") or "/stream"


def _text(text: str) -> str:
    """Return text that a message can hold: ROS ends strings at a NUL, and a file's name may be no UTF-8."""
    return text.encode(errors="backslashreplace").decode().replace("\0", " ")
