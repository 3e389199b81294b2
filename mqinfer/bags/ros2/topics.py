"""What is on the air in a ROS 2 system: its topics with their publishers, rates, pictures and calibrations."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from mqinfer.bags.calibration import CAMERA_INFO, calibration, info_topic
from mqinfer.bags.description import picture_shape
from mqinfer.bags.frame import StreamInfo
from mqinfer.bags.ros2.messages import CdrError, deserialize
from mqinfer.bags.ros2.node import Offer, RosNode, check_topic, dds_errors
from mqinfer.bags.rosbag import IMAGE_TYPES, image_of
from mqinfer.images.picture import CameraInfo
from mqinfer.logs import printable
from mqinfer.protocol.errors import SourceError

_TURN_S = 0.1
"""Topics that are new are looked for after this time at the latest."""
_RECEIVED = 64
"""Messages of a topic that are kept until they are counted."""


def watch_topics(topic: str, seconds: float) -> tuple[str, tuple[StreamInfo, ...]]:
    """Watch what is published for some time; return the system in words, and its topics.

    Counts are of the messages that came in this time, rates by their publishers' clocks. A topic whose messages can't
    be asked for has none: its type is not known here, and its publishers announce more of it than the name.

    Args:
        topic: The one that is watched; empty for all.
        seconds: How long.

    Raises:
        SourceError: Nobody published anything, or not that topic, or the domain can't be joined.
        ConfigError: It can't be a topic, or a variable of ROS 2 is wrong.
        MissingExtra: cyclonedds or rosbags is not installed.
    """
    name = check_topic(topic) if topic else ""
    with closing(RosNode()) as node:
        where, heard = f"ROS 2, domain {node.domain}", dict[str, _Heard]()
        until, wait = time.monotonic() + seconds, node.waiter()
        while (left := until - time.monotonic()) > 0:
            offers = node.offers()
            if _listen(node, offers, heard, name):
                wait = node.waiter(*(each.reader for each in heard.values()))
            wait(min(_TURN_S, left))
            with dds_errors(f"ros2:{topic} can't be watched"):
                for each in heard.values():
                    each.take()
        found = tuple(
            each.describe(heard.get(info_topic(topic))) for topic, each in sorted(heard.items()) if name in {"", topic}
        )
    if not found:
        names = printable(", ".join(sorted(offers)))
        others = f"topics: {names}" if names else "look at ROS_DOMAIN_ID and the network"
        raise SourceError(f"nobody publishes {name or 'a topic'} in {where}, watched for {seconds:g} s; {others}")
    return where, found


def _listen(node: RosNode, offers: Mapping[str, Offer], heard: dict[str, _Heard], name: str) -> bool:
    """Listen to topics that are new, or to one and its calibration; return whether there is a new one."""
    count = len(heard)
    for topic in offers.keys() & {name, info_topic(name)} if name else offers:
        if topic not in heard:
            heard[topic] = _Heard(node, topic, offers[topic])
        heard[topic].offer = offers[topic]
    return len(heard) > count


class _Heard:
    """What came of one topic."""

    def __init__(self, node: RosNode, topic: str, offer: Offer) -> None:
        self._topic, self._kind, self.offer = topic, offer.kinds[0], offer
        self.reader = node.reader(topic, self._kind, _RECEIVED, latched=offer.is_latched)
        self._count, self._first_ns, self._last_ns = 0, sys.maxsize, 0
        self._last = b""

    def take(self) -> None:
        """Count what came."""
        for sample in self.reader.take(_RECEIVED):
            if hasattr(sample, "cdr"):  # others say that a publisher is gone
                self._count += 1
                written_ns = sample.sample_info.source_timestamp
                self._first_ns, self._last_ns = min(self._first_ns, written_ns), max(self._last_ns, written_ns)
                self._last = sample.cdr

    def describe(self, camera: _Heard | None) -> StreamInfo:
        """Return what is known of the topic; of one with pictures those of its last message, too."""
        is_image = self._kind in IMAGE_TYPES
        picture = self._message() if is_image else None
        is_asked = self.reader.get_subscription_matched_status().total_count > 0
        span = self._last_ns - self._first_ns
        return StreamInfo(
            self._topic,
            ", ".join(self.offer.kinds),
            *(picture_shape(image_of(picture)) if picture else ("", 0, 0)),
            self._count if is_asked else None,
            (self._count - 1) * 1e9 / span if span > 0 else None,
            is_image,
            camera.calibration() if camera and is_image else None,
            f"by {self.offer.publishers}, {self.offer.quality}",
        )

    def calibration(self) -> CameraInfo | None:
        """Return the calibration of a camera; None if there is none."""
        message = self._message() if self._kind == CAMERA_INFO else None
        return calibration(message) if message else None

    def _message(self) -> Any:
        try:
            return deserialize(self._last, self._kind) if self._last else None
        except CdrError:
            return None
