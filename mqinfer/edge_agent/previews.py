"""Small pictures of what the model got, for dashboards: made once a frame was sent, and the first that are given up.

A thread that prepares frames asks before each one whether a preview is due (`wants`), and publishes it after the
frame's request has left (`publish`), so no frame waits for its own preview. Nothing is kept: a preview that can't be
published at once is dropped and counted.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from enum import StrEnum

from mqinfer.answers.outputs import Picture
from mqinfer.broker.link import Message
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.codecs import available_encodings, encode_tensor
from mqinfer.edge_agent.frames.published import PublishedCounts
from mqinfer.extras import missing_extra
from mqinfer.images.placement import fit
from mqinfer.logs import is_logged
from mqinfer.protocol.checksum import checksum
from mqinfer.protocol.envelope import CONTENT_TYPE, encode_response
from mqinfer.protocol.errors import ConfigError, MessageTooLarge, NotConnected
from mqinfer.protocol.types import Capture, InferResponse, Outcome

PREVIEW = "preview"
"""Name of the output that holds the picture."""

_log = logging.getLogger("mqinfer.edge_agent")
_LEAST_RATE, _MOST_RATE = 0.2, 10.0
_EARLY = 0.1
"""A preview may come earlier by this share of the time between two, since frames don't come at exact times."""
_MOST_WIDTH = 480
_ENCODING = "jpeg:70"
_MOST_BYTES = 256 * 1024
"""Receivers drop larger payloads."""
_LONG_TRANSIT_S = 0.25
"""The link is behind if the window is full and the last result spent longer than this on the network, both ways."""


class PreviewDrop(StrEnum):
    """Why a preview that was due was not published."""

    NOT_CONNECTED = "not_connected"
    LINK_BEHIND = "link_behind"
    """The stream's window is full, and the network is what its frames wait for."""
    QUALITY_LOWERED = "quality_lowered"
    """The quality ladder sends the frames smaller, since too few come through."""
    SPOOLED = "spooled"
    """The frame went to the disk."""
    NOT_SENT = "not_sent"
    """The frame could not be prepared or sent, so no result would come to its preview."""
    TOO_LARGE = "too_large"
    FAILED = "failed"
    """A defect."""


def check_rate(rate: float | None) -> float | None:
    """Return the wanted previews a second; None for none.

    Raises:
        ConfigError: It is out of bounds.
        MissingExtra: OpenCV is not installed, which makes the JPEGs.
    """
    if rate is None:
        return None
    if not _LEAST_RATE <= rate <= _MOST_RATE:
        raise ConfigError(
            f"--preview {rate:g}: expected {_LEAST_RATE:g} to {_MOST_RATE:g} previews a second of each stream; leave "
            "it out for none"
        )
    if "jpeg" not in available_encodings():
        raise missing_extra("cv2", "edge")
    return rate


class Previews:
    """The previews of all streams of one model. Thread-safe.

    Args:
        requester: Its link publishes them, under its name.
        model: Name of the model.
        rate: Most previews a second of one stream; None for no previews.
        clock: In seconds.
    """

    def __init__(
        self, requester: Requester, model: str, rate: float | None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.is_wanted = rate is not None
        """Whether there are any."""
        self._requester = requester
        self._model = model
        self._period = 1.0 / (rate or _LEAST_RATE)
        self._clock = clock
        self._lock = threading.Lock()
        self._next: dict[str, float] = {}
        self._transit_s = 0.0
        self._published: Counter[str] = Counter()
        self._dropped: dict[str, Counter[PreviewDrop]] = {}

    def wants(self, source: str, *, has_room: bool, is_full_quality: bool) -> bool:
        """Return whether the next frame of a stream gets a preview; one that is due and given up counts as dropped.

        Args:
            source: The stream.
            has_room: Whether its window would admit another frame.
            is_full_quality: Whether its frames travel as configured, and not smaller.
        """
        now = self._clock()
        with self._lock:
            due, slack = self._next.get(source, now), _EARLY * self._period
            if now < due - slack:
                return False
            self._next[source] = max(due, now - slack) + self._period
            is_behind = not has_room and self._transit_s > _LONG_TRANSIT_S
        if not self._requester.connected:
            self.drop(source, PreviewDrop.NOT_CONNECTED)
        elif is_behind:
            self.drop(source, PreviewDrop.LINK_BEHIND)
        elif not is_full_quality:
            self.drop(source, PreviewDrop.QUALITY_LOWERED)
        else:
            return True
        return False

    def on_result(self, result: InferResult) -> None:
        """Learn from the outcome of a frame how long the network takes; called on any thread."""
        if result.outcome is Outcome.OK:
            self._transit_s = result.timings.transmission / 1e9
        elif result.attempts and result.outcome in {Outcome.EXPIRED, Outcome.SUPERSEDED}:
            self._transit_s = math.inf  # sent, and no reply came in time

    def drop(self, source: str, why: PreviewDrop) -> None:
        """Count a preview that was due and is not published."""
        with self._lock:
            self._dropped.setdefault(source, Counter())[why] += 1

    def publish(self, request_id: str, capture: Capture, picture: Callable[[], Picture], size: tuple[int, int]) -> None:
        """Make the preview of a frame that was sent, and publish it; whatever goes wrong is counted.

        Args:
            request_id: Of the frame's request.
            capture: Where the frame comes from, as in its request.
            picture: Returns what the model got, as RGB.
            size: Its width and height at the model.
        """
        why = None
        try:
            message = self._message(request_id, capture, picture(), size)
            if len(message.payload) > _MOST_BYTES:
                why = PreviewDrop.TOO_LARGE
            else:
                self._requester.link.publish(message)
        except NotConnected:
            why = PreviewDrop.NOT_CONNECTED
        except MessageTooLarge:
            why = PreviewDrop.TOO_LARGE
        except Exception:  # noqa: BLE001 - a picture that can't be decoded, or a defect: the frame was sent all the same
            why = PreviewDrop.FAILED
            if is_logged(1 + self.total.dropped.get(why, 0)):
                _log.warning("%s, frame %s: no preview", capture.source, capture.sequence, exc_info=True)
        if why is None:
            with self._lock:
                self._published[capture.source] += 1
        else:
            self.drop(capture.source, why)

    def _message(self, request_id: str, capture: Capture, picture: Picture, size: tuple[int, int]) -> Message:
        height, width = picture.shape[:2]
        if width > _MOST_WIDTH:
            picture = fit(picture, _MOST_WIDTH, max(1, round(height * _MOST_WIDTH / width)))
        response = InferResponse(
            request_id or secrets.token_hex(16),
            self._model,
            outputs=(encode_tensor(PREVIEW, picture, _ENCODING),),
            capture=capture,
            parameters={"picture_width": size[0], "picture_height": size[1]},
        )
        payload = encode_response(response)
        topic = self._requester.topics.preview(self._requester.name, capture.source)
        return Message(topic, payload, qos=0, content_type=CONTENT_TYPE, user_properties=(checksum((payload,)),))

    def of(self, source: str) -> PublishedCounts:
        """Return the counts of one stream."""
        with self._lock:
            return PublishedCounts(self._published[source], dict(self._dropped.get(source, {})))

    @property
    def total(self) -> PublishedCounts:
        """The counts of all streams."""
        with self._lock:
            return PublishedCounts(self._published.total(), dict(sum(self._dropped.values(), Counter())))
