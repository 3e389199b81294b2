"""A simulated Mosquitto as it was measured: QoS 1 a hop, blind shares, no promise in a PUBACK, wills, retained states.

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
        subscriptions: Those that the broker knows.
    """

    peer: SimulatedLink
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
        wires: Those it counts as connected, by client id.
        noise: What happens to single messages.
        masks: Whether somebody reads along, so that no PUBACK says that nobody subscribed.
    """

    def __init__(self, world: World, noise: Noise) -> None:
        self.world = world
        self.noise = noise
        self.is_up = True
        self.masks = False
        self.wires: dict[str, Wire] = {}
        self._retained: dict[str, Message] = {}
        self._turns: dict[tuple[str, str], int] = {}

    def connect(self, wire: Wire) -> bool:
        """Accept a connection; one with the same client id ends, and its will is published."""
        if not self.is_up or wire.is_cut:
            return False
        peer = wire.peer
        if old := self.wires.get(peer.client_id):
            self.drop(old)
            self.world.after(self.noise.latency, self._reset, old)
        wire.at_broker = True
        self.wires[peer.client_id] = wire
        return True

    def subscribe(self, wire: Wire, subscription: Subscription) -> None:
        """Add a subscription, and send what is retained."""
        if not wire.at_broker:
            return
        wire.subscriptions[subscription.topic_filter, subscription.share] = subscription
        if subscription.share is None and subscription.retained:
            fits = compile_filter(subscription.topic_filter).fullmatch
            for topic, message in self._retained.items():
                if fits(topic):
                    self._send(wire, message)

    def drop(self, wire: Wire, *, will: bool = True) -> None:
        """End a connection, and publish its will."""
        if not wire.at_broker:
            return
        wire.at_broker = False
        del self.wires[wire.peer.client_id]
        self.world.note("broker loses", wire.peer.client_id.partition("~")[0], will)
        if will and wire.peer.will is not None:
            self.route(wire.peer.will)

    def stop(self, *, gently: bool) -> None:
        """Forget everything; a server that is stopped gently publishes the wills of all first."""
        self.world.note("broker stops", gently)
        for wire in list(self.wires.values()):
            self.drop(wire, will=gently)
            self.world.after(self.world.random.uniform(0.001, 0.05), self._reset, wire)
        self.is_up = False
        self.wires.clear()
        self._retained.clear()

    def _reset(self, wire: Wire) -> None:
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
            code = self.route(message)
        if not (noise.unacknowledged and chance() < noise.unacknowledged):
            self.down(wire, wire.peer.acked, wire, number, code)

    def route(self, message: Message) -> int:
        """Publish a message; return the reason code for its sender."""
        if message.retain:
            self._keep(message)
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
            receivers.append(members[turn % len(members)])
        for wire, each in receivers:
            self._deliver(wire, each, message)
        if receivers or self.masks:
            return ReasonCode.SUCCESS
        return ReasonCode.NO_MATCHING_SUBSCRIBERS

    def _keep(self, message: Message) -> None:
        if len(message.payload):
            self._retained[message.topic] = replace(message, retain=True)
        else:
            self._retained.pop(message.topic, None)

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


def _short(topic: str) -> str:
    """Return a topic without the id of a request: that is of chance, not of the seed."""
    return topic.rpartition("/")[0] if "/results/" in topic else topic
