"""A simulated Mosquitto as it was measured: QoS 1 a hop, blind shares, no promise in a PUBACK, wills, retained states.

Or a nats-server behind `NatsLink`: members of a group are drawn, connections of one client id don't end each other, and
a will comes due seconds after the last sign of life, or is published by its own link when that returns.

Each connection is a `Wire`: two directions, each in order, each with its own delay. Messages on a wire that is cut are
lost; a wire that hangs keeps them until it goes on, or loses them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from mqinfer.broker.link import Message, ReasonCode
from mqinfer.broker.routes import compile_filter
from tests.simulation.world import World

if TYPE_CHECKING:
    from tests.simulation.link import SimulatedLink

__all__ = ["Broker", "Noise", "Subscription", "Wire"]

_LOST_S, _BEAT_S = 6.0, 2.0
"""A link of NATS is lost that has given no sign of life for so long, and how often it does."""


@dataclass(slots=True)
class Noise:
    """Chances for each message while faults last; 0 for never.

    Attributes:
        latency: Of most messages, in seconds, one way.
        slow: That a message takes up to `slow_s`.
        slow_s: So long.
        dropped: That the broker drops it for a receiver, and acknowledges it all the same.
        doubled: That a receiver gets it twice.
        unacknowledged: That a PUBACK does not come.
        refused: That the broker answers with an error and routes nothing.
        damaged: That a bit flips in a payload.
        misrouted: That somebody gets it who did not subscribe to it.
        held: That a state comes late, with all behind it.
    """

    latency: float = 0.001
    slow: float = 0.0
    slow_s: float = 0.5
    dropped: float = 0.0
    doubled: float = 0.0
    unacknowledged: float = 0.0
    refused: float = 0.0
    damaged: float = 0.0
    misrouted: float = 0.0
    held: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class Subscription:
    """A filter of one client."""

    topic_filter: str
    share: str | None
    retained: bool


@dataclass(slots=True, eq=False)
class Wire:
    """One connection.

    Attributes:
        peer: Its client.
        up_at: When the last message arrives at the broker: nothing overtakes.
        down_at: The same at the client.
        is_cut: Whether nothing comes through any more, in either direction.
        hangs_until: Until when nothing comes through: TCP sends it again afterwards.
        full_until: Until when the broker drops everything for this client: its queue is full.
        at_broker: Whether the broker still counts it as connected.
        name: Of the connection at the broker.
        alive_at: When it stored a sign of life of the client last.
        subscriptions: Those that the broker knows.
    """

    peer: SimulatedLink
    name: str = ""
    alive_at: float = 0.0
    up_at: float = 0.0
    down_at: float = 0.0
    is_cut: bool = False
    hangs_until: float = 0.0
    full_until: float = 0.0
    at_broker: bool = False
    subscriptions: dict[tuple[str, str | None], Subscription] = field(default_factory=dict)


class Broker:
    """Routes between the wires.

    Attributes:
        is_up: Whether it takes connections.
        wires: Those it counts as connected, by client id; of NATS by a name of the connection.
        noise: What happens to single messages.
        masks: Whether somebody reads along, so that no PUBACK says that nobody subscribed.
    """

    def __init__(self, world: World, noise: Noise, *, is_nats: bool = False) -> None:
        self.world = world
        self.noise = noise
        self._signs = Signs(self) if is_nats else None
        self.is_up = True
        self.masks = False
        self.wires: dict[str, Wire] = {}
        self._retained: dict[str, tuple[Message, str]] = {}  # with the client id of the link that it ends with
        self._turns: dict[tuple[str, str], int] = {}

    def connect(self, wire: Wire) -> bool:
        """Accept a connection; one with the same client id ends, and its will is published."""
        if not self.is_up or wire.is_cut:
            return False
        wire.name = wire.peer.client_id if self._signs is None else self._signs.name()
        if old := self.wires.get(wire.name):
            self.drop(old)
            self.world.after(self.noise.latency, self.reset, old)
        wire.at_broker = True
        self.wires[wire.name] = wire
        if self._signs and wire.peer.will:
            self._signs.begin(wire, wire.peer.will)
        return True

    def subscribe(self, wire: Wire, subscription: Subscription) -> None:
        """Add a subscription, and send what is retained."""
        if not wire.at_broker:
            return
        wire.subscriptions[subscription.topic_filter, subscription.share] = subscription
        if subscription.share is None and subscription.retained:
            fits = compile_filter(subscription.topic_filter).fullmatch
            for topic, (message, _) in self._retained.items():
                if fits(topic):
                    self._send(wire, message)

    def drop(self, wire: Wire, *, will: bool = True) -> None:
        """End a connection, and publish its will."""
        if not wire.at_broker:
            return
        wire.at_broker = False
        del self.wires[wire.name]
        self.world.note("broker loses", wire.peer.client_id.partition("~")[0], will)
        if self._signs:
            if not will:
                self._signs.end(wire.peer.client_id)
        elif will and wire.peer.will is not None:
            self.route(wire.peer.will)

    def stop(self, *, gently: bool) -> None:
        """Forget everything; a server that is stopped gently publishes the wills of all first."""
        self.world.note("broker stops", gently)
        for wire in list(self.wires.values()):
            self.drop(wire, will=gently)
            self.world.after(self.world.random.uniform(0.001, 0.05), self.reset, wire)
        self.is_up = False
        self.wires.clear()
        self._retained.clear()
        if self._signs:
            self._signs.forget()

    def reset(self, wire: Wire) -> None:
        """Break a connection, and have its client notice."""
        wire.is_cut = True
        wire.peer.lost(wire)

    def start(self) -> None:
        """Take connections again, if it does not."""
        if not self.is_up:
            self.world.note("broker starts")
            self.is_up = True

    def arrived(self, wire: Wire, number: int, message: Message) -> None:
        """Receive a publication."""
        if not wire.at_broker or wire.is_cut:
            return
        noise, chance = self.noise, self.world.random.random
        if noise.refused and chance() < noise.refused:
            code = self.world.random.choice((ReasonCode.UNSPECIFIED, 0x97, ReasonCode.NO_MATCHING_SUBSCRIBERS))
        else:
            will = wire.peer.will
            is_replaced = self._signs and will is not None and will.topic == message.topic
            code = self.route(message, wire.peer.client_id if is_replaced else "")
        if not (noise.unacknowledged and chance() < noise.unacknowledged):
            self.down(wire, wire.peer.acked, wire, number, code)

    def route(self, message: Message, owner: str = "") -> int:
        """Publish a message; return the reason code for its sender."""
        if message.retain:
            self._keep(message, owner)
        receivers: list[tuple[Wire, Subscription]] = []
        groups: dict[tuple[str, str], list[tuple[Wire, Subscription]]] = {}
        for wire in self.wires.values():
            for each in wire.subscriptions.values():
                if compile_filter(each.topic_filter).fullmatch(message.topic):
                    if each.share is None:
                        receivers.append((wire, each))
                    else:
                        groups.setdefault((each.share, each.topic_filter), []).append((wire, each))
        for key, members in groups.items():
            turn = self._turns[key] = self._turns.get(key, 0) + 1
            receivers.append(self.world.random.choice(members) if self._signs else members[turn % len(members)])
        for wire, each in receivers:
            self._deliver(wire, each, message)
        if receivers or self.masks:
            return ReasonCode.SUCCESS
        return ReasonCode.NO_MATCHING_SUBSCRIBERS

    def _keep(self, message: Message, owner: str) -> None:
        if len(message.payload):
            self._retained[message.topic] = replace(message, retain=True), owner
        else:
            self._retained.pop(message.topic, None)

    def come_due(self, will: Message, owner: str) -> None:
        """Publish a will; it is retained where nobody else has said something on its topic since."""
        if self._retained.get(will.topic, (will, owner))[1] != owner:
            will = replace(will, retain=False)
        self.route(will)

    def _deliver(self, wire: Wire, subscription: Subscription, message: Message) -> None:
        noise, random = self.noise, self.world.random
        message = replace(message, retain=False) if message.retain else message
        if message.correlation_data:
            wire.peer.given.add(message.correlation_data)
        if wire.full_until > self.world.now or (noise.dropped and random.random() < noise.dropped):
            self.world.note("broker drops", _short(message.topic))
            return
        if noise.misrouted and random.random() < noise.misrouted:
            self._misroute(subscription, message)
        self._send(wire, message)
        if noise.doubled and random.random() < noise.doubled:
            self.world.after(random.choice((0.0, random.uniform(0, 3))), self._again, wire, message)

    def _again(self, wire: Wire, message: Message) -> None:
        if wire.at_broker:
            self.world.note("broker doubles", _short(message.topic))
            self._send(wire, message)

    def _misroute(self, subscription: Subscription, message: Message) -> None:
        """Deliver to another client that has a subscription like it."""
        kind = len(subscription.topic_filter.split("/")), subscription.share
        others = [
            wire
            for wire in self.wires.values()
            for each in wire.subscriptions.values()
            if (len(each.topic_filter.split("/")), each.share) == kind
            and each.topic_filter != subscription.topic_filter
        ]
        if others:
            wire = self.world.random.choice(others)
            self.world.note("broker misroutes", _short(message.topic), "to", wire.peer.client_id.partition("~")[0])
            self._send(wire, message)

    def _send(self, wire: Wire, message: Message) -> None:
        noise, random = self.noise, self.world.random
        if noise.held and message.topic.endswith("/state") and random.random() < noise.held:
            wire.down_at = max(wire.down_at, self.world.now + random.uniform(0, 2))
        if noise.damaged and message.user_properties and random.random() < noise.damaged:
            damaged = bytearray(message.payload)
            damaged[random.randrange(len(damaged))] ^= 1 << random.randrange(8)
            message = replace(message, payload=bytes(damaged))
        self.down(wire, wire.peer.receive, wire, message)

    def down(self, wire: Wire, call: Callable[..., None], *arguments: Any) -> None:
        """Send something to a client, behind whatever was sent to it before."""
        if not wire.is_cut:
            wire.down_at = max(wire.down_at, wire.hangs_until, self.world.now + self._latency())
            self.world.at(wire.down_at, self._come_through, wire, call, *arguments)

    def up(self, wire: Wire, call: Callable[..., None], *arguments: Any, lead: float = 0.0) -> None:
        """Send something to the broker, behind whatever was sent to it before."""
        if not wire.is_cut and lead < math.inf:
            wire.up_at = max(wire.up_at, wire.hangs_until, self.world.now + lead + self._latency())
            self.world.at(wire.up_at, self._come_through, wire, call, *arguments)

    def _come_through(self, wire: Wire, call: Callable[..., None], *arguments: Any) -> None:
        if wire.is_cut:
            return
        if wire.hangs_until > self.world.now:
            self.world.at(wire.hangs_until, self._come_through, wire, call, *arguments)
            return
        call(*arguments)

    def _latency(self) -> float:
        noise, random = self.noise, self.world.random
        if noise.slow and random.random() < noise.slow:
            return random.uniform(0, noise.slow_s)
        return noise.latency * (0.5 + random.random())


class Signs:
    """Signs of life of the links at a nats-server, and their wills, which come due without them.

    Args:
        broker: The server.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker, self._world = broker, broker.world
        self._number = 0
        self._known: set[SimulatedLink] = set()
        self._wills: dict[str, Message] = {}
        self._heard: dict[str, float] = {}

    def name(self) -> str:
        """Return the name of a connection."""
        self._number += 1
        return f"connection {self._number}"

    def begin(self, wire: Wire, will: Message) -> None:
        """Take the will of a link that connects; one that returns publishes it first."""
        if wire.peer in self._known:
            self._broker.route(replace(will, retain=False))
        self._known.add(wire.peer)
        self._wills[wire.peer.client_id] = will
        self._hear(wire)
        self._world.after(_BEAT_S, wire.peer.node.call, self._beat, wire)

    def end(self, client_id: str) -> None:
        """Forget the will of a link that has closed."""
        self._wills.pop(client_id, None)

    def forget(self) -> None:
        """Forget everything, as a server that keeps it in memory."""
        self._wills.clear()
        self._heard.clear()

    def _beat(self, wire: Wire) -> None:
        """Send a sign of life, or give up the connection where none was stored for too long."""
        if wire.peer.wire is not wire:
            return
        if self._world.now - wire.alive_at > _LOST_S:
            self._broker.drop(wire)
            self._broker.reset(wire)
            return
        self._broker.up(wire, self._hear, wire)
        self._world.after(_BEAT_S, wire.peer.node.call, self._beat, wire)

    def _hear(self, wire: Wire) -> None:
        if wire.at_broker:
            client_id = wire.peer.client_id
            wire.alive_at = self._heard[client_id] = self._world.now
            self._world.after(_LOST_S, self._expire, client_id, self._world.now)

    def _expire(self, client_id: str, heard: float) -> None:
        if self._heard.get(client_id) == heard and (will := self._wills.pop(client_id, None)):
            self._world.note("no sign of life", client_id.partition("~")[0])
            self._broker.come_due(will, client_id)


def _short(topic: str) -> str:
    """Return a topic without the id of a request: that is of chance, not of the seed."""
    return topic.rpartition("/")[0] if "/results/" in topic else topic
