"""A link to a broker within the process: the contract of `mqinfer.broker.link` without a network.

No payload is copied, unless it is in pieces.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable
from itertools import count
from typing import Any, NamedTuple

from mqinfer.broker.filters import compile_filter
from mqinfer.broker.link import Ack, ConnectionHandler, Message, MessageHandler, ignore_ack
from mqinfer.broker.memory_broker import DatedMessage, MemoryBroker, Subscription
from mqinfer.broker.packets import encode_head, packet_size
from mqinfer.broker.routes import subscription_name
from mqinfer.protocol.errors import ConfigError, LinkError, MessageTooLarge, NotConnected

__all__ = ["MemoryLink"]

_log = logging.getLogger("mqinfer.broker")

_MAX_EVENTS = 65_535  # as many messages as MQTT can number
_numbers = count()


class MemoryLink:
    """A `Link` to a `MemoryBroker`. Handlers run on a thread of its own, as with a real broker.

    A payload is handed over as it is: whoever publishes a `bytearray` must leave it alone afterwards.

    Args:
        broker: The broker; links that shall meet share one.
        client_id: Name of this link; a second link with the same name ends the first.
        will: Published by the broker when the link is lost without `close`.
        on_connection: Told of each connection and each loss, on the link's thread.
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
            encode_head(will)  # a will that can't be published is refused here, not when it is due
        self._broker = broker
        self._client_id = client_id or f"memory-{next(_numbers)}"
        self._will = will
        self._on_connection = on_connection
        self._subscriptions: dict[tuple[str, str | None], Subscription] = {}
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

    def open(self, timeout: float = 10.0) -> None:
        """Attach to the broker.

        Args:
            timeout: In seconds, for `on_connection` to return.
        """
        if self._thread is None:
            self._events = queue.SimpleQueue()
            self._thread = threading.Thread(target=self._run, name=f"mqinfer-memory-{self._client_id}", daemon=True)
            self._thread.start()
        self.restore()
        self.settle(timeout)

    def publish(self, message: Message, on_ack: Ack = ignore_ack) -> None:
        """Hand a message to the broker.

        Args:
            message: What to send.
            on_ack: Gets the reason code, on the link's thread; never called for QoS 0.

        Raises:
            NotConnected: The link is down, or its own handlers are far behind.
            MessageTooLarge: The message is above `max_packet_size`.
        """
        if not self._connected:
            raise NotConnected(f"the link {self._client_id} is down; nothing was sent")
        if self._events.qsize() > _MAX_EVENTS:
            raise NotConnected(
                f"the link {self._client_id} has {_MAX_EVENTS} events waiting; its handlers are too slow"
            )
        size = packet_size(message, encode_head(message))
        if size > self._broker.max_packet_size:
            raise MessageTooLarge(
                f"topic {message.topic!r}: {size} bytes, and the broker takes {self._broker.max_packet_size}"
            )
        code = self._broker.publish(message.joined())
        if message.qos:
            self._events.put(_Event(self._session, on_ack, code))

    def subscribe(self, topic_filter: str, handler: MessageHandler, *, share: str | None = None) -> None:
        """Receive the messages of a filter.

        Args:
            topic_filter: With `+` and `#` if need be.
            handler: Gets each message, on the link's thread.
            share: Name of the group whose members compete for the messages.

        Raises:
            BadTopic: The filter has a wildcard out of place.
        """
        subscription_name(topic_filter, share)
        compile_filter(topic_filter)
        subscription = Subscription(self, topic_filter, share, handler)
        self._subscriptions[topic_filter, share] = subscription
        if self._connected:
            self._broker.subscribe(subscription)

    def unsubscribe(self, topic_filter: str, *, share: str | None = None) -> None:
        """Stop receiving; messages that the broker has already sent may still come until this returns."""
        subscription = self._subscriptions.get((topic_filter, share))
        if subscription is not None:
            self._broker.unsubscribe(subscription)
            self.settle()
            self._subscriptions.pop((topic_filter, share), None)

    def drop(self) -> None:
        """Lose the connection, as a crash or a cut cable would: the broker publishes the will. `restore` heals it."""
        if not self._connected:
            return
        self._leave()
        self._events.put(_Event(self._session, self._tell, False))
        if self._will is not None:
            self._broker.publish(self._will.joined())

    def restore(self) -> None:
        """Connect again after `drop`: subscribe anew, then tell `on_connection`."""
        if self._connected:
            return
        taken_over = self._broker.attach(self, self._client_id)
        if taken_over is not None:
            _log.critical("client id %s: taken over by another link of the same name", self._client_id)
            taken_over.drop()
        for subscription in list(self._subscriptions.values()):
            self._broker.subscribe(subscription)
        self._connected = True
        self._events.put(_Event(self._session, self._tell, True))

    def close(self, timeout: float = 5.0) -> None:
        """Hand out what is waiting, at most `timeout` seconds, then leave the broker without a will."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        if thread is threading.current_thread():
            self._thread = thread
            raise ConfigError(f"the link {self._client_id}: a handler may not close its own link")
        self._broker.detach(self, self._client_id)
        self._connected = False
        self._events.put(None)
        thread.join(timeout)

    def offer(self, subscription: Subscription, dated: DatedMessage, *, retain: bool) -> bool:
        """Queue a message for a handler; False where the queue is full. The broker calls this."""
        if self._events.qsize() >= self._broker.max_queued:
            return False
        self._events.put(_Event(self._session, self._deliver, (subscription, dated, retain)))
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
                except Exception:  # noqa: BLE001 - the root of the thread: a handler's fault costs its one event
                    _log.exception("link %s: a handler failed", self._client_id)

    def _tell(self, connected: bool) -> None:  # noqa: FBT001 - the shape of a ConnectionHandler
        if self._on_connection is not None:
            self._on_connection(connected)

    def _deliver(self, queued: tuple[Subscription, DatedMessage, bool]) -> None:
        subscription, dated, retain = queued
        message = dated.at(self._broker.clock(), retain=retain)
        if message is not None and (subscription.topic_filter, subscription.group) in self._subscriptions:
            try:
                subscription.handler(message)
            except Exception:  # noqa: BLE001 - as above, with the topic
                _log.exception("topic %s: the handler failed; the message is lost", message.topic)


class _Event(NamedTuple):
    """Something for the link's thread to do, unless its session has ended by then."""

    session: int
    call: Callable[[Any], None]
    argument: Any
