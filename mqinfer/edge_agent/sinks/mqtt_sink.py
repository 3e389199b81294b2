"""Publish results as JSON in words, a message for each settled frame, for every program that speaks MQTT."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Sequence
from enum import StrEnum
from functools import partial
from pathlib import Path

from mqinfer.answers.words import describe_answer, document
from mqinfer.bags.frame import Frame
from mqinfer.broker.link import Message, ReasonCode
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.published import PublishedCounts
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.jsonl_sink import describe_result, describe_times
from mqinfer.edge_agent.sinks.sink import StreamNames
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.errors import MessageTooLarge, NotConnected
from mqinfer.protocol.oip_json import CONTENT_TYPE
from mqinfer.protocol.topics import stream_level

_MOST_QUEUED, _MOST_IN_FLIGHT = 256, 64
"""Messages that wait for a connection or for room, and those that the broker has not acknowledged; 64 KiB each."""
_CLOSE_S = 5.0
"""How long the end of a run waits for the broker to acknowledge the last messages."""
_OF_RUN = ("id", "worker", "precision", "backend", "device", "attempts", "times")


class AnswerDrop(StrEnum):
    """Why the broker has no message for a frame."""

    QUEUE_FULL = "queue_full"
    """The connection was away or slow for so long that newer frames took its place."""
    NOT_CONNECTED = "not_connected"
    """The run ended first."""
    UNACKNOWLEDGED = "unacknowledged"
    """It was sent, and the connection was lost before the broker acknowledged it; it may have come through."""
    REFUSED = "refused"
    """The broker's access rules forbid the topic."""
    TOO_LARGE = "too_large"
    """It is above the broker's Maximum Packet Size."""


class MqttSink:
    """Publishes one message a frame, whatever its outcome, in the order in which the frames of a stream were read.

    Each is sent once: one that was sent when the connection broke is not sent again, so none comes twice. While there
    is no connection the newest `_MOST_QUEUED` wait; nothing waits for the broker but the end of a run.

    Args:
        requester: Its link publishes, under its name.
        model: Name of the model.
        classes: Names from the model's card.
        retain: Whether the broker keeps the last message of each stream.
    """

    def __init__(
        self, requester: Requester, model: str, classes: Sequence[ClassInfo] = (), *, retain: bool = False
    ) -> None:
        self._requester = requester
        self._model = model
        self._classes = tuple(classes)
        self._retain = retain
        self._levels = StreamNames(stream_level)
        self._changed = threading.Condition()
        self._queue: deque[Message] = deque()
        self._in_flight: set[int] = set()
        self._number = 0
        self._is_sending = False
        self._published = 0
        self._dropped: Counter[AnswerDrop] = Counter()
        self._cut: Counter[str] = Counter()
        requester.watch(self._on_connection)

    @property
    def counts(self) -> PublishedCounts:
        """The messages that the broker has acknowledged, others by reason, and the parts that were cut; thread-safe."""
        with self._changed:
            return PublishedCounts(self._published, dict(self._dropped), dict(self._cut))

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Send the message of a frame, or keep it until it can be sent."""
        payload, cut = document(self._describe(frame, view, result))
        topic = self._requester.topics.answers(self._model, self._requester.name, self._levels.of(frame.source))
        with self._changed:
            self._cut.update(cut)
            if len(self._queue) >= _MOST_QUEUED:
                self._queue.popleft()
                self._dropped[AnswerDrop.QUEUE_FULL] += 1
            self._queue.append(Message(topic, payload, retain=self._retain, content_type=CONTENT_TYPE))
        self._send()

    def _describe(self, frame: Frame, view: FrameView, result: InferResult) -> dict[str, object]:
        described, times = describe_result(frame, view, result, self._classes), describe_times(frame, view, result)
        width, height = view.placement.frame
        return {
            **described,
            **({"width": width, "height": height} if result.outputs else {}),
            **describe_answer(view.answer, self._classes),
            **{key: times[key] for key in _OF_RUN},
            "error": {"code": result.error.code, "message": result.error.message} if result.error else None,
        }

    def close(self) -> tuple[Path, ...]:
        """Wait a moment until all is acknowledged, and count the rest; there are no files."""
        self._send()
        with self._changed:
            self._changed.wait_for(lambda: not (self._queue or self._in_flight) or self._is_away(), _CLOSE_S)
            self._dropped[AnswerDrop.NOT_CONNECTED] += len(self._queue)
            self._queue.clear()
            self._lose()
        return ()

    def _is_away(self) -> bool:
        return not self._requester.connected

    def _send(self) -> None:
        """Publish what waits, as far as there is room; of several threads one, so that the order stays."""
        with self._changed:
            if self._is_sending:
                return
            self._is_sending = True
        while message := self._next():
            try:
                self._requester.link.publish(message, partial(self._on_ack, self._number))
            except NotConnected:
                with self._changed:
                    self._take(self._number)
                    if len(self._queue) < _MOST_QUEUED:
                        self._queue.appendleft(message)
                    else:
                        self._dropped[AnswerDrop.QUEUE_FULL] += 1
                    self._is_sending = False
                return
            except MessageTooLarge:
                with self._changed:
                    if self._take(self._number):
                        self._dropped[AnswerDrop.TOO_LARGE] += 1

    def _next(self) -> Message | None:
        with self._changed:
            if not self._queue or len(self._in_flight) >= _MOST_IN_FLIGHT or self._is_away():
                self._is_sending = False
                return None
            self._number += 1
            self._in_flight.add(self._number)
            return self._queue.popleft()

    def _on_ack(self, number: int, code: int) -> None:
        with self._changed:
            if self._take(number):
                if code >= ReasonCode.UNSPECIFIED:
                    self._dropped[AnswerDrop.REFUSED] += 1
                else:
                    self._published += 1
        self._send()

    def _take(self, number: int) -> bool:
        """Take a message from those in flight; False where it is not there, since it was counted as lost."""
        is_there = number in self._in_flight
        self._in_flight.discard(number)
        self._changed.notify_all()
        return is_there

    def _on_connection(self) -> None:
        """Count what was in flight on a connection that is lost; go on with the next one. On the link's thread."""
        if self._is_away():
            with self._changed:
                self._lose()
                self._changed.notify_all()
        self._send()

    def _lose(self) -> None:
        self._dropped[AnswerDrop.UNACKNOWLEDGED] += len(self._in_flight)
        self._in_flight.clear()
