"""A broker within the process, and links to it: the contract of `mqinfer.broker.link` without a network.

The broker behaves as Mosquitto does where mqinfer can notice the difference: shared subscriptions take turns, a message
without a subscriber is acknowledged with 0x10, and a full queue drops the newest message although its sender receives
"success". No payload is copied, unless it is in pieces.
"""

from __future__ import annotations

import logging
import math
import queue
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

from msgspec.structs import replace

from mqinfer.broker.link import (
    Ack,
    ConnectionHandler,
    Message,
    MessageHandler,
    ReasonCode,
    Withdraw,
    already_sent,
    ignore_ack,
)
from mqinfer.broker.packets import encode_head
from mqinfer.broker.process import Maker, abandon_in_children, end_thread_in_child
from mqinfer.broker.routes import Route, Routes, subscription_name
from mqinfer.protocol.errors import ConfigError, LinkError, MessageTooLarge, NotConnected

_log = logging.getLogger("mqinfer.broker")

_MAX_PACKET_SIZE = 64 << 20  # as in mosquitto.conf
_MAX_QUEUED = 1000  # as in mosquitto.conf
_MAX_EVENTS = 65_535  # as many messages as MQTT can number
_numbers = count()


@dataclass(frozen=True, slots=True)
class _Queued:
    """A message on its way, and when it expires on the broker's clock."""

    message: Message
    expires_at: float

    def at(self, now: float, *, retain: bool) -> Message | None:
        """Return the message as it is delivered now: with the seconds that are left, or None once it has expired."""
        if now >= self.expires_at:
            return None
        left = None if self.message.expiry_s is None else math.ceil(self.expires_at - now)
        if left == self.message.expiry_s and retain == self.message.retain:
            return self.message
        return replace(self.message, expiry_s=left, retain=retain)


class _Event(NamedTuple):
    """A call for the link's thread, unless its session has ended by then."""

    session: int
    call: Callable[[Any], None]
    argument: Any


class MemoryBroker:
    """Routes messages between the links attached to it.

    Args:
        max_packet_size: Largest message that links may publish, in bytes of the MQTT packet it would be.
        max_queued: Messages that may wait for one link; further ones are dropped and counted.
        clock: Monotonic seconds, for message expiry.
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
        self._links: dict[str, MemoryLink] = {}
        self._subscriptions: list[tuple[MemoryLink, Route]] = []
        self._turns: dict[str, Iterator[int]] = {}
        self._retained: dict[str, _Queued] = {}
        self._dropped = 0

    @property
    def dropped(self) -> int:
        """Messages dropped because a link's queue was full."""
        return self._dropped

    def attach(self, link: MemoryLink, client_id: str) -> MemoryLink | None:
        """Attach a link; return the one with the same client id, whose session this ends."""
        with self._lock:
            taken_over = self._links.get(client_id)
            self._links[client_id] = link
        return taken_over if taken_over is not link else None

    def detach(self, link: MemoryLink, client_id: str) -> None:
        """Detach a link, and remove its subscriptions."""
        with self._lock:
            if self._links.get(client_id) is link:
                del self._links[client_id]
            self._subscriptions = [each for each in self._subscriptions if each[0] is not link]

    def subscribe(self, link: MemoryLink, route: Route) -> None:
        """Add a subscription, replacing the link's older one with the same filter."""
        with self._lock:
            self._remove(link, route.subscription)
            self._subscriptions.append((link, route))
            if route.share is None and route.retained:
                for topic, queued in self._retained.items():
                    if route.pattern.fullmatch(topic):
                        self._deliver(link, queued, retain=True)

    def unsubscribe(self, link: MemoryLink, subscription: str) -> None:
        """Remove a subscription."""
        with self._lock:
            self._remove(link, subscription)

    def publish(self, message: Message) -> int:
        """Route a message; return the reason code of its PUBACK."""
        queued = _Queued(message, math.inf if message.expiry_s is None else self.clock() + message.expiry_s)
        with self._lock:
            if message.retain:
                self._retain(queued)
            receivers = self._receivers(message.topic)
            for link in receivers:
                self._deliver(link, queued, retain=False)
        return ReasonCode.SUCCESS if receivers else ReasonCode.NO_MATCHING_SUBSCRIBERS

    def _remove(self, link: MemoryLink, name: str) -> None:
        self._subscriptions = [each for each in self._subscriptions if (each[0], each[1].subscription) != (link, name)]

    def _retain(self, queued: _Queued) -> None:
        if len(queued.message.payload):
            self._retained[queued.message.topic] = queued
        else:  # an empty retained message clears its topic (MQTT 5, section 3.3.1.3)
            self._retained.pop(queued.message.topic, None)

    def _receivers(self, topic: str) -> list[MemoryLink]:
        """Return the link of each plain subscription that matches, and of each share group the one whose turn it is."""
        receivers = list[MemoryLink]()
        groups: dict[str, list[MemoryLink]] = {}
        for link, route in self._subscriptions:
            if route.pattern.fullmatch(topic):
                (receivers if route.share is None else groups.setdefault(route.subscription, [])).append(link)
        for name, members in groups.items():
            receivers.append(members[next(self._turns.setdefault(name, count())) % len(members)])
        return receivers

    def _deliver(self, link: MemoryLink, queued: _Queued, *, retain: bool) -> None:
        if not link._offer(queued, retain=retain):  # noqa: SLF001 - the other half of one broker; programs have no use for it
            self._dropped += 1


class MemoryLink:
    """A `Link` to a `MemoryBroker`. Handlers run on a thread of its own, as with a real broker.

    A payload is delivered as it is: a `bytearray` must not be changed after it was published.

    Args:
        broker: Shared by the links that exchange messages.
        client_id: Of this link; a second link with the same one ends the first.
        will: Published by the broker when the link is lost without `close`.
        on_connection: Called at each connection and each loss, on the link's thread.
    """

    def __init__(
        self,
        broker: MemoryBroker,
        *,
        client_id: str = "",
        will: Message | None = None,
        on_connection: ConnectionHandler | None = None,
    ) -> None:
        if will is not None:
            encode_head(will)  # refuse a will that can't be published here, not when it is due
        self._broker = broker
        self._client_id = client_id or f"memory-{next(_numbers)}"
        self._maker = Maker(f"the link {self._client_id!r}")
        abandon_in_children(self)
        self._will = will
        self._on_connection = on_connection
        self._routes = Routes()
        self._events: queue.SimpleQueue[_Event | None] = queue.SimpleQueue()
        self._session = 0  # events of an earlier session are void
        self._connected = False
        self._thread: threading.Thread | None = None

    @property
    def connected(self) -> bool:
        """Whether a publication would be sent now."""
        return self._connected

    @property
    def failure(self) -> LinkError | None:
        """None: it never gives up."""
        return None

    @property
    def max_packet_size(self) -> int | None:
        """The broker's Maximum Packet Size in bytes."""
        return self._broker.max_packet_size

    def abandon(self) -> None:
        """Give up this copy of the link, in a child that was forked off."""
        self._connected = False

    def open(self, timeout: float = 10.0) -> None:
        """Attach to the broker; `on_connection` may take `timeout` seconds to return."""
        self._maker.check()
        if self._thread is None:
            self._events = queue.SimpleQueue()
            self._thread = threading.Thread(target=self._run, name=f"mqinfer-memory-{self._client_id}", daemon=True)
            self._thread.start()
        self.restore()
        self.settle(timeout)

    def publish(self, message: Message, on_ack: Ack = ignore_ack) -> Withdraw:
        """Send a message, as of `Link`; it is `NotConnected` too where the link's own handlers are far behind."""
        if not self._connected:
            self._maker.check()
            raise NotConnected(f"the link {self._client_id} is down; nothing was sent")
        if self._events.qsize() > _MAX_EVENTS:
            raise NotConnected(
                f"the link {self._client_id} has {_MAX_EVENTS} events waiting; its handlers are too slow"
            )
        size = encode_head(message).size
        if size > self._broker.max_packet_size:
            raise MessageTooLarge(
                f"topic {message.topic!r}: {size} bytes, and the broker accepts {self._broker.max_packet_size}"
            )
        code = self._broker.publish(message.joined())
        if message.qos:
            self._events.put(_Event(self._session, on_ack, code))
        return already_sent

    def subscribe(
        self, topic_filter: str, handler: MessageHandler, *, share: str | None = None, retained: bool = True
    ) -> None:
        """Receive the messages of a filter, as of `Link`; `BadTopic` where it has a wildcard out of place."""
        self._maker.check()
        route = Route.make(topic_filter, share, handler, retained=retained)
        self._routes.put(route)
        if self._connected:
            self._broker.subscribe(self, route)

    def unsubscribe(self, topic_filter: str, *, share: str | None = None) -> None:
        """Stop receiving; messages that the broker has already sent may still come until this returns."""
        self._maker.check()
        name = subscription_name(topic_filter, share)
        self._broker.unsubscribe(self, name)
        self.settle()
        self._routes.remove(name)

    def drop(self) -> None:
        """Lose the connection, as a crash or a cut cable would: the broker publishes the will. `restore` reconnects."""
        self._maker.check()
        if not self._connected:
            return
        self._leave()
        self._events.put(_Event(self._session, self._report, False))
        if self._will is not None:
            self._broker.publish(self._will.joined())

    def restore(self) -> None:
        """Connect again after `drop`: subscribe again, then call `on_connection`."""
        self._maker.check()
        if self._connected:
            return
        taken_over = self._broker.attach(self, self._client_id)
        if taken_over is not None:
            _log.critical("client id %s: taken over by another link with the same one", self._client_id)
            taken_over.drop()
        for route in self._routes:
            self._broker.subscribe(self, route)
        self._connected = True
        self._events.put(_Event(self._session, self._report, True))

    def close(self, timeout: float = 5.0) -> None:
        """Deliver what is waiting, for at most `timeout` seconds, then leave the broker without a will."""
        self._maker.check()
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if thread is threading.current_thread():
            self._thread = thread
            raise ConfigError(f"the link {self._client_id}: a handler can't close its own link")
        self._broker.detach(self, self._client_id)
        self._connected = False
        self._events.put(None)
        thread.join(timeout)

    def _offer(self, queued: _Queued, *, retain: bool) -> bool:
        """Queue a message for its handlers, on the broker's behalf; return whether there was room for it."""
        if self._events.qsize() >= self._broker.max_queued:
            return False
        self._events.put(_Event(self._session, self._deliver, (queued, retain)))
        return True

    def _leave(self) -> None:
        self._connected = False
        self._session += 1
        self._broker.detach(self, self._client_id)

    def settle(self, timeout: float = 10.0) -> None:
        """Wait until every event that is queued now has been handled; returns at once on the link's own thread."""
        if self._thread is None or self._thread is threading.current_thread():
            return
        done = threading.Event()
        self._events.put(_Event(self._session, lambda _: done.set(), None))
        done.wait(timeout)

    def _run(self) -> None:
        while (event := self._events.get()) is not None:
            if event.session == self._session:
                try:
                    event.call(event.argument)
                except BaseException:  # noqa: BLE001 - the root of the thread: a handler that fails loses its one event
                    _log.exception("link %s: a handler failed", self._client_id)
            if self._maker.is_other:  # a handler forked, and this is the child
                end_thread_in_child()

    def _report(self, connected: bool) -> None:  # noqa: FBT001 - the shape of a ConnectionHandler
        if self._on_connection is not None:
            self._on_connection(connected)

    def _deliver(self, offered: tuple[_Queued, bool]) -> None:
        queued, retain = offered
        message = queued.at(self._broker.clock(), retain=retain)
        if message is not None:
            self._routes.deliver(message)
