"""Publish results into a running ROS 2 system."""

from __future__ import annotations

import logging
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mqinfer.bags.frame import Frame
from mqinfer.bags.ros2.node import RosNode, publish
from mqinfer.client.result import InferResult
from mqinfer.codecs.opencv import opencv
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.drawing.overlay import draw_result, encode_picture
from mqinfer.edge_agent.sinks.ros.messages import ResultMessage, ResultMessages, header_of, message
from mqinfer.logs import log_dropped
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.types import Outcome

log = logging.getLogger("mqinfer.edge_agent")

_KEPT = 10
"""Messages of a topic that are kept for a reader that lost one, as ROS 2 has it where nothing else is said."""
_OVERLAY = "sensor_msgs/msg/CompressedImage"


class Ros2Sink:
    """Publishes the messages of `ResultMessages`, and `<source>/mqinfer/overlay/compressed`, a JPEG with the result.

    What nobody reads is not made. A reader that does not keep up holds nothing up: messages beyond what is kept for it
    are dropped, which is logged.

    Args:
        card: The model's card: its classes.

    Raises:
        SourceError: The domain can't be joined.
        ConfigError: A variable of ROS 2 is wrong.
        MissingExtra: cyclonedds, rosbags or OpenCV is not installed.
    """

    def __init__(self, card: ModelCard) -> None:
        opencv()
        self._messages = ResultMessages(card.classes, "what ROS 2 gets")
        self._node = RosNode()
        self._writers: dict[str, Any] = {}
        self._dropped = 0

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Publish what there is of a result.

        Raises:
            SourceError: DDS failed.
        """
        for each in self._messages.of(frame, view, result):
            self._publish(each)
        if result.outcome is Outcome.OK:
            topic = self._messages.topic(frame.source, "overlay/compressed")
            self._publish(ResultMessage(topic, _OVERLAY, partial(_overlay, frame, view, result)))

    def close(self) -> tuple[Path, ...]:
        """Leave the system; there are no files."""
        self._writers.clear()
        self._node.close()
        return ()

    def _publish(self, each: ResultMessage) -> None:
        writer = self._writers.get(each.topic)
        if writer is None:
            writer = self._writers[each.topic] = self._node.writer(
                each.topic, each.kind, 1 if each.latched else _KEPT, latched=each.latched
            )
        if not each.latched and not writer.get_publication_matched_status().current_count:
            return
        if not publish(writer, each.make()):
            self._dropped += 1
            log_dropped(log, f"a message of {each.topic}", "a reader does not keep up", self._dropped)


def _overlay(frame: Frame, view: FrameView, result: InferResult) -> Any:
    drawn = encode_picture(draw_result(frame, view, result), ".jpg")
    return message(_OVERLAY, header_of(frame), "rgb8; jpeg compressed bgr8", np.frombuffer(drawn, np.uint8))
