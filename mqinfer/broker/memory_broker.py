"""A broker within the process: deals messages to the links attached to it, as Mosquitto would.

It behaves as Mosquitto does where mqinfer can tell the difference: shared subscriptions deal in turn, a message that
nobody receives is acknowledged with 0x10, a full queue drops the newest message although its sender is told "success".
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Protocol

from mqinfer.broker.filters import compile_filter
from mqinfer.broker.link import Message, MessageHandler, ReasonCode

__all__ = ["AttachedLink", "DatedMessage", "MemoryBroker", "Subscription"]

_MAX_PACKET_SIZE = 64 << 20  # as in mosquitto.conf
_MAX_QUEUED = 1000  # as in mosquitto.conf


class AttachedLink(Protocol):
    """What the broker and its other links ask of a link."""

    def offer(self, subscription: Subscription, dated: DatedMessage, *, retain: bool) -> bool:
        """Queue a message for a handler; False where the queue is full."""

    def drop(self) -> None:
        """Lose the connection, as when another link takes the name over."""


@dataclass(frozen=True, slots=True)
class Subscription:
    """One filter of one link.

    Attributes:
        link: Whose it is.
        topic_filter: With `+` and `#` if need be.
        group: Name of the share group, or None.
        handler: Gets each message, on the link's thread.
    """

    link: AttachedLink
    topic_filter: str
    group: str | None
    handler: MessageHandler

    def matches(self, topic: str) -> bool:
        """Whether the messages of a topic go to it."""
        return compile_filter(self.topic_filter).fullmatch(topic) is not None


@dataclass(frozen=True, slots=True)
class DatedMessage:
    """A message and when it expires on the broker's clock."""

    message: Message
    expires_at: float = math.inf

    def at(self, now: float, *, retain: bool) -> Message | None:
        """The message as it is delivered now: with the seconds that are left, or None when it has expired."""
        if now >= self.expires_at:
            return None
        left = None if self.message.expiry_s is None else math.ceil(self.expires_at - now)
        if left == self.message.expiry_s and retain == self.message.retain:
            return self.message
        return replace(self.message, expiry_s=left, retain=retain)


class MemoryBroker:
    """Routes messages between the links that are attached to it.

    Args:
        max_packet_size: What links may publish, in bytes of the MQTT packet it would be.
        max_queued: Messages that may wait for one link; what comes above it is dropped and counted.
        clock: Monotonic seconds; message expiry goes by it.
    """

    def __init__(
        self,
        *,
        max_packet_size: int = _MAX_PACKET_SIZE,
        max_queued: int = _MAX_QUEUED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.max_packet_size = max_packet_size
        self.max_queued = max_queued
        self.clock = clock
        self._lock = threading.Lock()
        self._links: dict[str, AttachedLink] = {}
        self._subscriptions: list[Subscription] = []
        self._turns: dict[tuple[str, str], Iterator[int]] = {}
        self._retained: dict[str, DatedMessage] = {}
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Messages dropped because a link's queue was full."""
        return self._dropped

    def attach(self, link: AttachedLink, client_id: str) -> AttachedLink | None:
        """Let a link in; returns the one that had the same name, whose session this ends."""
        with self._lock:
            taken_over = self._links.get(client_id)
            self._links[client_id] = link
        return taken_over if taken_over is not link else None

    def detach(self, link: AttachedLink, client_id: str) -> None:
        """Let a link go, and all its subscriptions with it."""
        with self._lock:
            if self._links.get(client_id) is link:
                del self._links[client_id]
            self._subscriptions = [each for each in self._subscriptions if each.link is not link]

    def subscribe(self, subscription: Subscription) -> None:
        """Add a subscription, or put it in the place of the link's older one with the same filter."""
        with self._lock:
            self._remove(subscription)
            self._subscriptions.append(subscription)
            if subscription.group is None:
                for topic, dated in self._retained.items():
                    if subscription.matches(topic):
                        self._hand_over(subscription, dated, retain=True)

    def unsubscribe(self, subscription: Subscription) -> None:
        """Take a subscription away."""
        with self._lock:
            self._remove(subscription)

    def publish(self, message: Message) -> int:
        """Route a message; returns the reason code of its PUBACK."""
        dated = DatedMessage(message, math.inf if message.expiry_s is None else self.clock() + message.expiry_s)
        with self._lock:
            if message.retain:
                self._retain(dated)
            receivers = self._receivers(message.topic)
            for subscription in receivers:
                self._hand_over(subscription, dated, retain=False)
        return ReasonCode.SUCCESS if receivers else ReasonCode.NO_MATCHING_SUBSCRIBERS

    def _remove(self, old: Subscription) -> None:
        key = (old.link, old.topic_filter, old.group)
        self._subscriptions = [
            each for each in self._subscriptions if (each.link, each.topic_filter, each.group) != key
        ]

    def _retain(self, dated: DatedMessage) -> None:
        if len(dated.message.payload):
            self._retained[dated.message.topic] = dated
        else:  # an empty retained message clears its topic (MQTT 5, section 3.3.1.3)
            self._retained.pop(dated.message.topic, None)

    def _receivers(self, topic: str) -> list[Subscription]:
        """Every plain subscription that matches, and of each share group the member whose turn it is."""
        receivers = []
        groups: dict[tuple[str, str], list[Subscription]] = {}
        for each in self._subscriptions:
            if each.matches(topic):
                if each.group is None:
                    receivers.append(each)
                else:
                    groups.setdefault((each.group, each.topic_filter), []).append(each)
        for key, members in groups.items():
            receivers.append(members[next(self._turns.setdefault(key, count())) % len(members)])
        return receivers

    def _hand_over(self, subscription: Subscription, dated: DatedMessage, *, retain: bool) -> None:
        if not subscription.link.offer(subscription, dated, retain=retain):
            self._dropped += 1
