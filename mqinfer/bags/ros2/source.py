"""Read frames from an image topic of a running ROS 2 system, over DDS; no ROS installation is needed."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

from mqinfer.bags.calibration import CAMERA_INFO, calibration, info_topic
from mqinfer.bags.frame import Frame, StreamInfo
from mqinfer.bags.ros2.messages import CdrError, deserialize
from mqinfer.bags.ros2.node import Offer, RosNode, check_topic, dds_errors
from mqinfer.bags.rosbag import IMAGE_TYPES, image_of
from mqinfer.images.picture import CameraInfo
from mqinfer.logs import log_dropped, printable
from mqinfer.protocol.errors import SourceError

log = logging.getLogger("mqinfer.bags")

SLOW = "taken too slowly"
"""Why a picture is missing: newer ones came before it was read."""
LOST = "lost on the way"
"""DDS counted it as lost."""
BROKEN = "not readable"
"""Its bytes are no message of its type."""

_FOUND_S = 10.0
"""A topic that nobody publishes after this time is refused: discovery takes a second or two."""
_TURN_S = 0.2
"""A stop is noticed within this time."""
_KEPT = 10
"""Pictures that wait to be read; with another one the oldest is dropped."""
_RECEIVED = 32
"""Samples that DDS keeps until the thread takes them, which it does at once."""
_STAMP_END = 12
"""A header's stamp ends here, behind the four bytes of CDR's own."""


class Ros2Source:
    """Frames of an image topic, stamped as their headers say, with the calibration of the camera that holds for each.

    Silence is no error: a topic may have pauses, and publishers may end and come back. What is lost is in `missed` of
    the next frame.

    Args:
        topic: Topic of `sensor_msgs/Image` or `CompressedImage`, such as `/camera/image_raw`.
        is_stopped: Asked while there is no frame; True ends the frames.

    Raises:
        SourceError: Nobody publishes the topic, it has no pictures, or the domain can't be joined; where topics with
            pictures were found, the message lists them.
        ConfigError: It can't be a topic, or a variable of ROS 2 is wrong.
        MissingExtra: cyclonedds or rosbags is not installed.
    """

    def __init__(self, topic: str, *, is_stopped: Callable[[], bool] = lambda: False) -> None:
        self._topic, self._is_stopped = check_topic(topic), is_stopped
        with ExitStack() as rollback:
            self._node = RosNode()
            rollback.callback(self._node.close)
            self._kind = self._find_kind()
            self._pictures = _Pictures(self._node, self._topic, self._kind)
            rollback.pop_all()

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the topic as one stream of unknown length and size."""
        return (StreamInfo(self._topic, self._kind, "", 0, 0, None, None),)

    def frames(self) -> Iterator[Frame]:
        """Yield frames until the stop.

        Raises:
            SourceError: The topic has messages of another type now, or DDS failed.
        """
        sequence, broken, untold = 0, 0, Counter[tuple[str, str]]()
        while not self._is_stopped():
            taken = self._pictures.take(_TURN_S)
            for why, count in self._pictures.missed().items():
                untold[self._topic, why] += count
            if taken is None:
                continue
            received_at, cdr, camera = taken
            try:
                message = deserialize(cdr, self._kind)
            except CdrError as error:
                untold[self._topic, BROKEN] += 1
                broken += 1
                log_dropped(log, f"a message of {self._topic}, {printable(str(error))}", BROKEN, broken)
                continue
            stamp = message.header.stamp
            captured, frame_id = stamp.sec * 10**9 + stamp.nanosec, message.header.frame_id
            missed, untold = dict(untold), Counter()
            yield Frame(
                self._topic, sequence, captured, received_at, frame_id, image_of(message), camera, missed=missed
            )
            sequence += 1

    def close(self) -> None:
        """Leave the system; joins the thread."""
        self._pictures.close()
        self._node.close()

    def _find_kind(self) -> str:
        """Return the type of the topic's messages, once somebody publishes it."""
        wait, give_up_at = self._node.waiter(), time.monotonic() + _FOUND_S
        while True:
            offers = self._node.offers()
            offer = offers.get(self._topic)
            kinds = [kind for kind in IMAGE_TYPES if offer and kind in offer.kinds]
            if kinds:
                return kinds[0]
            if offer or self._is_stopped() or time.monotonic() > give_up_at:
                raise self._no_pictures(offers)
            wait(_TURN_S)

    def _no_pictures(self, offers: Mapping[str, Offer]) -> SourceError:
        offer = offers.get(self._topic)
        pictures = sorted(name for name, each in offers.items() if not set(IMAGE_TYPES).isdisjoint(each.kinds))
        what = f"has {', '.join(offer.kinds)}, no pictures" if offer else "is published by nobody"
        named = printable(", ".join(pictures)) or "none"
        return SourceError(
            f"ros2:{self._topic} {printable(what)} in domain {self._node.domain}; topics with pictures: {named}"
        )


class _Pictures:
    """A thread that takes the samples of a topic and its calibrations as they come, and keeps the last ones."""

    def __init__(self, node: RosNode, topic: str, kind: str) -> None:
        self._node, self._topic, self._kind = node, topic, kind
        self._info = info_topic(topic)
        self._kept: deque[tuple[int, bytes, CameraInfo | None]] = deque()
        self._missed: Counter[str] = Counter()
        self._changed = threading.Condition()
        self._failure: SourceError | None = None
        self._is_closing = False
        self._camera: CameraInfo | None = None
        self._calibration, self._passed_over = b"", 0
        self._lost_at: float | None = None
        self._counted = Counter[str]()
        self._thread = threading.Thread(target=self._run, name="mqinfer-ros2-reader")
        self._subscribe()
        self._thread.start()

    def take(self, seconds: float) -> tuple[int, bytes, CameraInfo | None] | None:
        """Return time of receipt, bytes and calibration of the oldest picture that is kept; None if none comes.

        Raises:
            SourceError: Its thread failed.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._kept or self._failure, seconds)
            if self._kept:
                return self._kept.popleft()
            if self._failure:
                raise self._failure
            return None

    def missed(self) -> dict[str, int]:
        """Return how many pictures are missing since the last call, by reason."""
        with self._changed:
            found, self._missed = self._missed, Counter()
            return {why: count for why, count in found.items() if count}

    def close(self) -> None:
        """End the thread."""
        self._is_closing = True
        self._thread.join()
        del self._reader, self._cameras, self._wait  # with them DDS ends them

    def _run(self) -> None:
        try:
            while not self._is_closing:
                self._wait(_TURN_S)
                with dds_errors(f"ros2:{self._topic} can't be read"):
                    self._read()
                    self._watch()
        except SourceError as error:
            self._fail(error)
        except Exception as error:  # a defect, which nobody else would learn of
            log.exception("ros2:%s: its thread failed", self._topic)
            self._fail(SourceError(f"ros2:{self._topic}: its thread failed: {error!r}"))

    def _fail(self, error: SourceError) -> None:
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _subscribe(self) -> None:
        """Ask for what the publishers offer at this moment."""
        offers = self._node.offers()
        latched = [topic in offers and offers[topic].is_latched for topic in (self._topic, self._info)]
        self._latched = tuple(latched)
        self._reader: Any = self._node.reader(self._topic, self._kind, _RECEIVED, latched=latched[0])
        self._cameras: Any = self._node.reader(self._info, CAMERA_INFO, _RECEIVED, latched=latched[1])
        self._wait: Any = self._node.waiter(self._reader, self._cameras)
        self._counted.clear()

    def _read(self) -> None:
        for sample in self._cameras.take(_RECEIVED):
            self._calibrate(getattr(sample, "cdr", b""))
        taken = [sample for sample in self._reader.take(_RECEIVED) if hasattr(sample, "cdr")]  # others say: it is gone
        now = time.time_ns()
        with self._changed:
            for sample in taken:
                self._kept.append((now, sample.cdr, self._camera))
                if len(self._kept) > _KEPT:
                    self._kept.popleft()
                    self._missed[SLOW] += 1
            self._count(SLOW, self._reader.get_sample_rejected_status().total_count)
            self._count(LOST, self._reader.get_sample_lost_status().total_count)
            if taken:
                self._changed.notify_all()

    def _count(self, why: str, total: int) -> None:
        self._missed[why] += total - self._counted[why]
        self._counted[why] = total

    def _calibrate(self, cdr: bytes) -> None:
        if not cdr or cdr[_STAMP_END:] == self._calibration:  # most cameras repeat theirs with each picture
            return
        self._calibration = cdr[_STAMP_END:]
        try:
            self._camera = calibration(deserialize(cdr, CAMERA_INFO))
        except (CdrError, ValueError, OverflowError) as error:  # the pictures beside it are whole
            self._passed_over += 1
            log_dropped(log, f"a calibration of {self._info}, {printable(str(error))}", BROKEN, self._passed_over)

    def _watch(self) -> None:
        """Notice that the publishers are gone or back, and ask anew where those that came offer something else."""
        if self._reader.get_subscription_matched_status().current_count:
            if self._lost_at is not None:
                log.warning("ros2:%s is published again after %.1f s", self._topic, time.monotonic() - self._lost_at)
                self._lost_at = None
            return
        offer = self._node.offers().get(self._topic)
        if offer is None:
            if self._lost_at is None:
                self._lost_at = time.monotonic()
                log.warning("ros2:%s: its last publisher is gone; waiting for one", self._topic)
        elif self._kind not in offer.kinds:
            raise SourceError(f"ros2:{self._topic} has {', '.join(offer.kinds)} now; it had {self._kind}")
        elif offer.is_latched != self._latched[0]:
            self._subscribe()
