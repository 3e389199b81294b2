"""A link over a simulated wire: the contract of `mqinfer.broker.link.Link`, as `PahoLink` keeps it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from mqinfer.broker.link import (
    Ack,
    ConnectionHandler,
    Message,
    MessageHandler,
    Withdraw,
    already_sent,
    ignore_ack,
)
from mqinfer.broker.routes import Route, Routes, subscription_name
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NotConnected
from tests.simulation.broker import Broker, Subscription, Wire
from tests.simulation.world import Node

__all__ = ["SimulatedLink"]


class SimulatedLink:
    """Reconnects by itself; everything that a handler does takes no time but that of a model.

    Attributes:
        client_id: As on the broker.
        will: Published by the broker when the connection is lost.
        subscriptions: Made again with each connection.
        wire: The connection; None where there is none.
        on_ack: Receives each PUBACK and its message before the product does.
        on_message: Receives each message before the product does.
        reconnects_in: Least and most seconds until it tries to connect again.
        lane: Correlation data of the requests that came over a worker's lane.
        given: Correlation data of the requests that the broker has sent to it; its client may not have the replies.
    """

    def __init__(
        self,
        broker: Broker,
        node: Node,
        client_id: str,
        will: Message | None = None,
        on_connection: ConnectionHandler | None = None,
    ) -> None:
        self.broker, self.node = broker, node
        self.client_id, self.will = client_id, will
        self.subscriptions: dict[tuple[str, str | None], Subscription] = {}
        self.wire: Wire | None = None
        self.given: set[bytes] = set()
        self.lane: set[bytes] = set()
        self.on_ack: Callable[[int, Message], None] = lambda code, message: None  # noqa: ARG005
        self.on_message: Callable[[Message], None] = lambda message: None  # noqa: ARG005
        self.reconnects_in: tuple[float, float] = (0.01, 1.0)
        self._on_connection = on_connection or (lambda connected: None)  # noqa: ARG005
        self._routes = Routes()
        self._acks: dict[int, tuple[Ack, Message]] = {}
        self._number = 0
        self._attempt: Wire | None = None
        self._closed = False

    @property
    def connected(self) -> bool:
        """Whether a publication would be sent now."""
        return self.wire is not None

    @property
    def socket(self) -> Wire | None:
        """The connection, or the one that it tries to make: it ends with the process."""
        return self.wire or self._attempt

    @property
    def failure(self) -> LinkError | None:
        """None: it never gives up."""
        return None

    @property
    def max_packet_size(self) -> int | None:
        """None: unknown."""
        return None

    def open(self, timeout: float = 10.0) -> None:
        """Connect at once.

        Raises:
            BrokerUnreachable: The broker is down.
        """
        wire = Wire(self)
        if not self.broker.connect(wire):
            raise BrokerUnreachable(f"no broker answered within {timeout} s")
        self.wire = wire
        self._on_connection(True)

    def publish(self, message: Message, on_ack: Ack = ignore_ack) -> Withdraw:
        """Send a message.

        Raises:
            NotConnected: The link is down.
        """
        if self.wire is None:
            raise NotConnected("the link is down; nothing was sent")
        if self.node.dead or self.node.is_stuck:
            return already_sent
        self._number += 1
        self._acks[self._number] = on_ack, message
        lead = self.node.lead
        self.broker.up(self.wire, self.broker.arrived, self.wire, self._number, message.joined(), lead=lead)
        return already_sent

    def subscribe(
        self, topic_filter: str, handler: MessageHandler, *, share: str | None = None, retained: bool = True
    ) -> None:
        """Receive the messages of a filter, also after each reconnect."""
        self._routes.put(Route.make(topic_filter, share, handler))
        subscription = self.subscriptions[topic_filter, share] = Subscription(topic_filter, share, retained)
        if self.wire is not None and not self.wire.is_cut:
            self.broker.subscribe(self.wire, subscription)

    def unsubscribe(self, topic_filter: str, *, share: str | None = None) -> None:
        """Stop receiving; what is under way still comes, as the original waits for the broker's answer."""
        self.subscriptions.pop((topic_filter, share), None)
        if self.wire is not None and not self.wire.is_cut:
            self.wire.subscriptions.pop((topic_filter, share), None)
        if share is None:
            self.node.after(1.0, self._forget, topic_filter)

    def _forget(self, topic_filter: str) -> None:
        if (topic_filter, None) not in self.subscriptions:
            self._routes.remove(subscription_name(topic_filter, None))

    def close(self, timeout: float = 5.0) -> None:
        """Disconnect behind what was published, without a will; one that is being made ends with its will."""
        del timeout
        self._closed = True
        wire, is_made = self.socket, self.wire is not None
        self.wire = None
        if wire is not None and not self.node.dead:
            self.broker.up(wire, partial(self.broker.drop, wire, will=not is_made))

    def connected_by(self, wire: Wire) -> None:
        """Receive the CONNACK."""
        self.node.call(self._accept, wire)

    def receive(self, wire: Wire, message: Message) -> None:
        """Receive a message; one of an earlier connection is void."""
        self.node.call(self._handle, wire, message)

    def acked(self, wire: Wire, number: int, code: int) -> None:
        """Receive a PUBACK."""
        self.node.call(self._handle_ack, wire, number, code)

    def lost(self, wire: Wire) -> None:
        """Notice that a connection has ended, and connect again."""
        self.node.call(self._lose, wire)

    def _accept(self, wire: Wire) -> None:
        if self._closed or self._attempt is not wire:
            return
        self.wire, self._attempt = wire, None
        for name, subscription in self.subscriptions.items():
            if name not in wire.subscriptions:  # it came after the CONNECT
                self.broker.subscribe(wire, subscription)
        self.node.world.note(self.node.name, "is connected")
        self._on_connection(True)

    def _handle(self, wire: Wire, message: Message) -> None:
        if self.wire is wire:
            self.on_message(message)
            if message.correlation_data and "/workers/" in message.topic:
                self.lane.add(message.correlation_data)
            self._routes.deliver(message)

    def _handle_ack(self, wire: Wire, number: int, code: int) -> None:
        if self.wire is wire and number in self._acks:
            on_ack, message = self._acks.pop(number)
            self.on_ack(code, message)
            on_ack(code)

    def _lose(self, wire: Wire) -> None:
        if self._attempt is wire:
            self._attempt = None
            self._try_again()
        if self.wire is not wire:
            return
        self.wire = None
        self._acks.clear()
        self.node.world.note(self.node.name, "notices the loss of its connection")
        self._on_connection(False)
        self._try_again()

    def _try_again(self) -> None:
        if not self._closed:
            world = self.node.world
            world.after(world.random.uniform(*self.reconnects_in), self.node.call, self._connect)

    def _connect(self) -> None:
        if self._closed or self.wire is not None or self._attempt is not None:
            return
        if not self.broker.is_up:
            self._try_again()
            return
        self._attempt = wire = Wire(self)
        self.broker.up(wire, self._reach, wire)

    def _reach(self, wire: Wire) -> None:
        """Reach the broker with a CONNECT and all subscriptions."""
        if self.node.dead or self._closed:
            return
        if not self.broker.connect(wire):
            self.lost(wire)
            return
        self.broker.down(wire, self.connected_by, wire)
        for subscription in self.subscriptions.values():
            self.broker.subscribe(wire, subscription)
