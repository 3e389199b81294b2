"""Publish results as JSON in words, a message for each settled frame, for every program that speaks MQTT."""

from __future__ import annotations

import threading
from collections import Counter, deque
from enum import StrEnum
from functools import partial
from pathlib import Path

from msgspec.structs import replace

from mqinfer.answers.words import document
from mqinfer.bags.frame import Frame
from mqinfer.broker.link import Message, ReasonCode
from mqinfer.client.requester import Requester
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.published import PublishedCounts
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.homeassistant import HomeAssistant
from mqinfer.edge_agent.sinks.jsonl_sink import describe_settled
from mqinfer.edge_agent.sinks.presence import ModelPresence
from mqinfer.edge_agent.sinks.sink import StreamNames
from mqinfer.protocol.errors import MessageTooLarge, NotConnected
from mqinfer.protocol.oip_json import CONTENT_TYPE
from mqinfer.protocol.topics import stream_level

_MOST_QUEUED, _MOST_IN_FLIGHT = 256, 64
"""Messages that wait for a connection or for room, and those that the broker has not acknowledged; 64 KiB each."""
_CLOSE_S = 5.0
"""How long the end of a run waits for the broker to acknowledge the last messages."""


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
    STATE = "state"
    """One of the states beside the answers, for whatever reason; the next frame sends it again."""


class MqttSink:
    """Publishes one message a frame, whatever its outcome, in the order in which the frames of a stream were read.

    Each is sent once: one that was sent when the connection broke is not sent again, so none comes twice. While there
    is no connection the newest `_MOST_QUEUED` wait; nothing waits for the broker but the end of a run.

    Args:
        requester: Its link publishes, under its name.
        model: Name of the model.
        retain: Whether the broker keeps the last message of each stream.
        presence: What is watched for being there, in the messages and as retained states; None for nothing.
        homeassistant: Introduces the streams to Home Assistant, and chooses the answers that are published; None for
            all.
    """

    def __init__(
        self,
        requester: Requester,
        model: str,
        *,
        retain: bool = False,
        presence: ModelPresence | None = None,
        homeassistant: HomeAssistant | None = None,
    ) -> None:
        self._requester = requester
        self._model = model
        self._retain = retain
        self._presence = presence
        self._homeassistant = homeassistant
        self._levels = StreamNames(stream_level)
        self._states: dict[str, Message | None] = {}  # None where it is not known what the broker has
        self._changed = threading.Condition()
        self._queue: deque[Message] = deque()
        self._in_flight: dict[int, Message] = {}
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
        """Send the message of a frame, and states that differ from those the broker has, or keep them for a while."""
        own = self._model, self._requester.name, self._levels.of(frame.source)
        held = self._presence.update(frame, view, result, view.words) if self._presence else {}
        words = {**view.words, **held}
        topics = self._requester.topics
        states = self._presence.messages(topics, own, held) if self._presence else []
        is_due = True
        if self._homeassistant:
            is_due, more = self._homeassistant.messages(own, frame, view, result, words)
            states = [*states, *more]
        if is_due:
            payload, cut = document(describe_settled(frame, view, result, words))
            message = Message(topics.answers(*own), payload, retain=self._retain, content_type=CONTENT_TYPE)
        with self._changed:
            if is_due:
                self._cut.update(cut)
                self._put(message)
            for each in states:
                self._keep(each)
        self._send()

    def _put(self, message: Message) -> None:
        if len(self._queue) >= _MOST_QUEUED:
            self._lose(self._queue.popleft(), AnswerDrop.QUEUE_FULL)
        self._queue.append(message)

    def _keep(self, state: Message) -> None:
        """Have the broker keep a state, unless it does."""
        has = self._states.get(state.topic)
        if (has is None or has.payload != state.payload) and len(self._queue) < _MOST_QUEUED:
            self._states[state.topic] = state
            self._queue.append(state)

    def close(self) -> tuple[Path, ...]:
        """Clear the states, wait a moment until all is acknowledged, and count the rest; there are no files."""
        with self._changed:
            for state in filter(None, tuple(self._states.values())):
                if state.retain and not (self._homeassistant and self._homeassistant.stays(state)):
                    self._keep(replace(state, payload=b""))
        self._send()
        with self._changed:
            self._changed.wait_for(lambda: not (self._queue or self._in_flight) or self._is_away(), _CLOSE_S)
            for message in self._queue:
                self._lose(message, AnswerDrop.NOT_CONNECTED)
            self._queue.clear()
            self._lose_in_flight()
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
                self._requester.link.publish(message, partial(self._on_ack, message))
            except NotConnected:
                with self._changed:
                    self._take(message)
                    if len(self._queue) < _MOST_QUEUED:
                        self._queue.appendleft(message)
                    else:
                        self._lose(message, AnswerDrop.QUEUE_FULL)
                    self._is_sending = False
                return
            except MessageTooLarge:
                with self._changed:
                    if self._take(message):
                        self._lose(message, AnswerDrop.TOO_LARGE)

    def _next(self) -> Message | None:
        with self._changed:
            if not self._queue or len(self._in_flight) >= _MOST_IN_FLIGHT or self._is_away():
                self._is_sending = False
                return None
            message = self._queue.popleft()
            self._in_flight[id(message)] = message
            return message

    def _on_ack(self, message: Message, code: int) -> None:
        with self._changed:
            is_there = self._take(message)
            if is_there and code >= ReasonCode.UNSPECIFIED:
                self._lose(message, AnswerDrop.REFUSED)
            elif is_there:
                self._published += message.topic not in self._states
        self._send()

    def _take(self, message: Message) -> bool:
        """Take a message from those in flight; False where it is not there, since it was counted as lost."""
        self._changed.notify_all()
        return self._in_flight.pop(id(message), None) is not None

    def _on_connection(self) -> None:
        """Count what was in flight on a connection that is lost; go on with the next one. On the link's thread."""
        if self._is_away():
            with self._changed:
                self._lose_in_flight()
                self._states = dict.fromkeys(self._states)  # a broker that starts anew may have kept none
                self._changed.notify_all()
        self._send()

    def _lose_in_flight(self) -> None:
        for message in self._in_flight.values():
            self._lose(message, AnswerDrop.UNACKNOWLEDGED)
        self._in_flight.clear()

    def _lose(self, message: Message, why: AnswerDrop) -> None:
        self._dropped[AnswerDrop.STATE if message.topic in self._states else why] += 1
        if message.topic in self._states:
            self._states[message.topic] = None
