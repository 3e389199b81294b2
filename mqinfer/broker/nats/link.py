"""A link over NATS, with nats-py: a loop on a thread of its own owns the connection, all others pass messages to it."""

from __future__ import annotations

from concurrent.futures import TimeoutError as FutureTimeoutError

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Ack, ConnectionHandler, Message, MessageHandler, Withdraw, ignore_ack
from mqinfer.broker.nats.loop import NatsLoop, Work
from mqinfer.broker.nats.subjects import RETAINED, subject, subjects
from mqinfer.broker.packets import encode_head
from mqinfer.broker.paho.loop import MOST_QUEUED, Outgoing
from mqinfer.broker.process import Maker
from mqinfer.broker.routes import Route, Routes, subscription_name
from mqinfer.extras import check_packages
from mqinfer.protocol.errors import (
    BrokerUnreachable,
    ConfigError,
    LinkError,
    MessageTooLarge,
    NotAuthorized,
    NotConnected,
)

_ANSWER_S = 60.0
_HEADERS = 512
"""Room for the headers of what is kept, which count as the message does."""


class NatsLink:
    """A `Link` to a NATS server with JetStream.

    A payload must not be changed until it is acknowledged.

    Args:
        address: The server, and those that stand by.
        client_id: Unique among all connections to the server.
        will: Published by the server when it has heard nothing of the link for some seconds.
        on_connection: Called at each connection, once all subscriptions are made again, at each loss, and at the end,
            with `failure` set.
    """

    def __init__(
        self,
        address: BrokerAddress,
        *,
        client_id: str,
        will: Message | None = None,
        on_connection: ConnectionHandler | None = None,
    ) -> None:
        check_packages({"nats": "nats-py"}, "nats")
        if will is not None:
            encode_head(will)  # refuse a will that can't be published here, not on the link's thread
            subject(will.topic, RETAINED)
        self._maker = Maker(f"the link {client_id!r} to {address}")
        self._address, self._client_id, self._will = address, client_id, will
        self._on_connection = on_connection
        self._routes = Routes()
        self._dropped = 0
        self._loop: NatsLoop | None = None

    @property
    def connected(self) -> bool:
        """Whether a publication would be sent now."""
        return self._loop is not None and self._loop.connected

    @property
    def failure(self) -> LinkError | None:
        """Why the link gave up for good, before it was closed: refused, or a defect on its thread."""
        return None if self._loop is None else self._loop.failure

    @property
    def max_packet_size(self) -> int | None:
        """The server's `max_payload` in bytes; None while unknown."""
        return None if self._loop is None else self._loop.max_packet_size

    @property
    def dropped(self) -> int:
        """Count the messages that could not be read, came too fast, or were queued when a connection was lost."""
        return self._dropped + (self._loop.dropped if self._loop else 0)

    def open(self, timeout: float = 10.0) -> None:
        """Connect, and wait until the server has accepted; errors as of `Link`."""
        self._maker.check()
        if self._loop is not None and self._loop.is_alive():
            return
        self._dropped = self.dropped
        self._loop = loop = NatsLoop(self._address, self._client_id, self._will, self._routes, self._on_connection)
        loop.start()
        try:
            loop.opened.result(timeout)
        except FutureTimeoutError as error:
            reason = loop.reason or f"no NATS server answers at {self._address}"
            self.close(0.0)
            raise BrokerUnreachable(f"{reason} (within {timeout:g} s)") from error
        except LinkError:
            self.close(0.0)
            raise

    def publish(self, message: Message, on_ack: Ack = ignore_ack) -> Withdraw:
        """Send a message, as of `Link`; it is `NotConnected` too where 65,535 messages are queued already."""
        loop = self._loop
        epoch = loop.epoch if loop is not None else 0  # before the look at `connected`
        if loop is None or not loop.connected:
            self._maker.check()
            raise NotConnected(f"the link to {self._address} is down; nothing was sent")
        head = encode_head(message)
        subject(message.topic)
        limit = loop.max_packet_size
        if limit is not None and head.size > limit - message.retain * _HEADERS:
            raise MessageTooLarge(
                f"topic {message.topic!r}: a packet of {head.size} bytes, and the server's max_payload is {limit}; "
                "encode it smaller, or raise max_payload in the server's configuration, to 64MB at most"
            )
        if len(loop.outbox) >= MOST_QUEUED:
            raise NotConnected(f"the link to {self._address} is behind by {MOST_QUEUED} messages")
        outgoing = Outgoing(epoch, message, head, on_ack)
        loop.send(outgoing)
        return outgoing.withdraw

    def subscribe(
        self, topic_filter: str, handler: MessageHandler, *, share: str | None = None, retained: bool = True
    ) -> None:
        """Receive the messages of a filter, as of `Link`; `BadTopic` where it has a wildcard out of place."""
        self._maker.check()
        route = Route.make(topic_filter, share, handler, retained=retained)
        subjects(topic_filter, RETAINED)
        self._routes.put(route)
        try:
            self._ask(lambda session: session.subscribe(route))
        except NotAuthorized:
            self._routes.remove(route.subscription)
            raise

    def unsubscribe(self, topic_filter: str, *, share: str | None = None) -> None:
        """Stop receiving; messages that the server has already sent may still come until this returns."""
        self._maker.check()
        name = subscription_name(topic_filter, share)
        self._ask(lambda session: session.unsubscribe(name))
        self._routes.remove(name)

    def close(self, timeout: float = 5.0) -> None:
        """Wait until all that was published is acknowledged, at most `timeout` seconds, then disconnect cleanly."""
        self._maker.check()
        if self._loop is not None:
            if self._loop.is_current():
                raise ConfigError("a handler can't close its own link")
            self._loop.close(timeout)

    def cut(self) -> None:
        """Break the connection as a cut cable would; the link reconnects by itself. For fault injection."""
        self._maker.check()
        if self._loop is not None:
            self._loop.cut()

    def _ask(self, work: Work) -> None:
        """Ask the server on the link's thread, and wait for the answer while there is a connection.

        Without one there is nothing to ask: the next connection goes by the table of routes.
        """
        loop = self._loop
        if loop is None or not loop.connected:
            return
        answer = loop.ask(work)
        if loop.is_current():
            return
        try:
            answer.result(_ANSWER_S)
        except FutureTimeoutError as error:
            raise BrokerUnreachable(f"{self._address} has not answered within {_ANSWER_S:g} s") from error
