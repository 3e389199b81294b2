"""Read frames from an image topic of a running ROS 2 system with its own `rclpy`, whatever its middleware is."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from mqinfer.bags.frame import Frame, StreamInfo
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.protocol.errors import MissingExtra, SourceError

_RAW, _COMPRESSED = "sensor_msgs/msg/Image", "sensor_msgs/msg/CompressedImage"
_FOUND_S = 10.0
"""A topic that nobody publishes after this time is refused: discovery takes a second or two."""
_TURN_S = 0.2
"""How long one turn of the executor may wait; a stop is noticed within this time."""


class RclpySource:
    """Frames of an image topic, stamped as their headers say.

    The subscription has ROS 2's profile for sensor data. Silence is no error: a topic may have pauses.

    Args:
        topic: Topic of `sensor_msgs/Image` or `CompressedImage`, such as `/camera/image_raw`.
        is_stopped: Asked while there is no frame; True ends the frames.

    Raises:
        SourceError: Nobody publishes the topic, or it has no pictures; the message lists the topics that have.
        MissingExtra: rclpy can't be imported.
    """

    def __init__(self, topic: str, *, is_stopped: Callable[[], bool] = lambda: False) -> None:
        try:
            import rclpy
            from rclpy.executors import SingleThreadedExecutor
            from rclpy.qos import qos_profile_sensor_data
            from sensor_msgs import msg as messages
        except ImportError as error:
            raise MissingExtra(
                f"rclpy:{topic}: rclpy can't be imported ({error}); run this where ROS 2 is, after its setup.bash"
            ) from error
        self._topic, self._is_stopped = topic, is_stopped
        self._frames: deque[tuple[int, Any]] = deque()  # of one turn; ROS 2 drops what is not taken in time
        self._context = rclpy.Context()
        rclpy.init(context=self._context)
        self._node = rclpy.create_node("mqinfer_edge", context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        try:
            self._kind = self._find_kind()
        except SourceError:
            self.close()
            raise
        self._node.create_subscription(
            getattr(messages, self._kind.rpartition("/")[2]), topic, self._receive, qos_profile_sensor_data
        )

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the topic as one stream of unknown length and size."""
        return (StreamInfo(self._topic, self._kind, "", 0, 0, None, None),)

    def frames(self) -> Iterator[Frame]:
        """Yield frames until the stop.

        Raises:
            SourceError: ROS 2 was shut down.
        """
        sequence = 0
        while not self._is_stopped():
            if not self._context.ok():
                raise SourceError(f"rclpy:{self._topic}: ROS 2 was shut down after {sequence} frames")
            self._executor.spin_once(timeout_sec=_TURN_S)
            while self._frames:
                received_at, message = self._frames.popleft()
                stamp = message.header.stamp
                captured = stamp.sec * 10**9 + stamp.nanosec
                yield Frame(self._topic, sequence, captured, received_at, message.header.frame_id, _image(message))
                sequence += 1

    def close(self) -> None:
        """Destroy the node and its context."""
        self._executor.shutdown()
        self._node.destroy_node()
        self._context.try_shutdown()

    def _receive(self, message: Any) -> None:
        self._frames.append((time.time_ns(), message))

    def _find_kind(self) -> str:
        """Return the type of the topic's messages, once somebody publishes it."""
        give_up_at = time.monotonic() + _FOUND_S
        while True:
            topics = dict(self._node.get_topic_names_and_types())
            kinds = [kind for kind in topics.get(self._topic, ()) if kind in {_RAW, _COMPRESSED}]
            if kinds:
                return str(kinds[0])
            if self._is_stopped() or time.monotonic() > give_up_at:
                pictures = sorted(name for name, kinds in topics.items() if {_RAW, _COMPRESSED} & set(kinds))
                what = "has no pictures" if self._topic in topics else "is published by nobody"
                raise SourceError(f"rclpy:{self._topic} {what}; topics with pictures: {', '.join(pictures) or 'none'}")
            self._executor.spin_once(timeout_sec=_TURN_S)


def _image(message: Any) -> RawImage | CompressedImage:
    data = memoryview(message.data).cast("B")
    if hasattr(message, "format"):
        return CompressedImage(message.format, data)
    return RawImage(message.encoding, message.height, message.width, message.step, bool(message.is_bigendian), data)
