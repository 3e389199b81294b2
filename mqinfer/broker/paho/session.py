"""One connection to a broker, from dialling to its end. Only the link's thread touches it.

Each connection gets a paho client of its own, so nothing of an earlier one can be sent again: paho's reconnect, its
resending of old messages and its retry of refused logins are never used.
"""

from __future__ import annotations

import logging
import socket
import time
from concurrent.futures import Future
from typing import Any

from paho.mqtt.client import MQTT_CLEAN_START_FIRST_ONLY, Client, DisconnectFlags
from paho.mqtt.exception import MalformedPacket
from paho.mqtt.reasoncodes import ReasonCode as PahoReason
from paho.mqtt.subscribeoptions import SubscribeOptions

from mqinfer.broker.link import Ack, Message, ReasonCode
from mqinfer.broker.packets import Head
from mqinfer.broker.paho.client import LinkClient
from mqinfer.broker.paho.connecting import (
    UNSUPPORTED_VERSION,
    Identity,
    connect_properties,
    dial_error,
    disconnection,
    refusal,
)
from mqinfer.broker.paho.liveness import KEEPALIVE_S, Liveness, count_bytes
from mqinfer.broker.routes import Route, Routes
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NotAuthorized
from mqinfer.protocol.limits import DEFAULT_LIMITS

_log = logging.getLogger("mqinfer.broker")

_RECEIVE_MAXIMUM = 65_535  # of a broker that names none (MQTT 5, section 3.2.2.3.3)
_TICK_S = 1.0  # between looks at whether the connection is alive
_MOST_BUFFERED = 1 << 20  # bytes; what goes on waiting in the outbox can still be withdrawn
_RECEIVE_MAXIMUM_311 = 20  # MQTT 3.1.1 has no field for it; Mosquitto's default


class Session:
    """A connection, and the messages in flight on it.

    Args:
        identity: Who connects where.
        routes: What to subscribe to, and who receives the messages.
        version5: Whether to speak MQTT 5, or 3.1.1.

    Attributes:
        client: What reads and writes; a new one for each connection.
        acks: By packet identifier, who waits for the PUBACK of a QoS 1 message that was sent.
        accepted: Whether the broker has accepted the connection.
        alive: Whether it has not ended.
        error: Why it ended.
        version_refused: Whether the broker does not speak the version.
        receive_maximum: Most QoS 1 messages that may be unacknowledged.
        max_packet_size: In bytes, or None while unknown.
    """

    def __init__(self, identity: Identity, routes: Routes, *, version5: bool) -> None:
        self._identity = identity
        self._routes = routes
        self.acks: dict[int, Ack] = {}
        self._pending: dict[int, tuple[str, Future[None]]] = {}  # SUBSCRIBE and UNSUBSCRIBE
        self._resubscribing: set[int] = set()
        self.version5 = version5
        self.accepted = False
        self.alive = True
        self.version_refused = False
        self._leaving = False
        self._liveness = Liveness()
        self._next_tick = 0.0
        self.error: LinkError | None = None
        self.receive_maximum = _RECEIVE_MAXIMUM_311
        self.max_packet_size: int | None = None
        self.client = LinkClient(identity, version5=version5, deliver=routes.deliver, acked=self._on_ack)
        self.client.on_connect = self._on_connect
        self.client.on_disconnect = self._on_disconnect
        self.client.on_subscribe = self._on_subscribe
        self.client.on_unsubscribe = self._on_unsubscribe

    @property
    def ready(self) -> bool:
        """Whether the broker has accepted the connection and answered all subscriptions that were made again."""
        return self.accepted and self.alive and not self._resubscribing

    @property
    def has_room(self) -> bool:
        """Whether one more QoS 1 message fits into the broker's Receive Maximum, and little waits for the socket."""
        return len(self.acks) < self.receive_maximum and self.client.buffered < _MOST_BUFFERED

    def fileno(self) -> int:
        """Return the descriptor for `select`; -1 when the socket is gone."""
        sock = self.client.socket()
        return -1 if sock is None else sock.fileno()

    def dial(self, timeout: float) -> None:
        """Connect the socket and send CONNECT; the broker's answer comes when `client` reads.

        Args:
            timeout: In seconds, for TCP, TLS and websockets each.

        Raises:
            BrokerUnreachable: No broker answers, or TLS fails.
            NotAuthorized: The broker refuses the certificate, or requires one.
        """
        address = self._identity.address
        self.client.connect_timeout = timeout
        how: dict[str, Any] = {"clean_start": MQTT_CLEAN_START_FIRST_ONLY}  # 3.1.1: set by the constructor
        if self.version5:
            how = {"clean_start": True, "properties": connect_properties()}
        try:
            self.client.connect(address.host, address.port, KEEPALIVE_S, **how)
        except (OSError, ValueError) as error:  # ValueError: from paho and idna for an impossible host name
            raise dial_error(address, error) from error

    def write(self) -> None:
        """Send what is waiting, as much as the socket accepts."""
        if self.client.want_write():
            self.client.loop_write()

    def tick(self) -> None:
        """Keep the connection alive, and detect that it isn't, about once a second."""
        now = time.monotonic()
        if now >= self._next_tick and self.accepted and self.alive:
            self._next_tick = now + _TICK_S
            self._ping_if_quiet(now)
            self._end_if_dead()

    def _ping_if_quiet(self, now: float) -> None:
        """Send a PINGREQ after a Keep Alive in which nothing was sent, or nothing received."""
        keepalive_s = min(KEEPALIVE_S, self.client.keepalive or KEEPALIVE_S)  # the broker may state one, or 0 for none
        quiet_since = min(self.client.heard_at, self.client.sent_at)
        if now + _TICK_S >= quiet_since + keepalive_s and not self.client.awaits_pong:
            self.client.ping()

    def _end_if_dead(self) -> None:
        client, descriptor = self.client, self.fileno()
        if descriptor < 0:  # the PINGREQ has found the connection broken
            return
        is_owed = bool(self.acks or self._pending or client.awaits_pong)
        counts = count_bytes(descriptor, client.buffered)
        if self._liveness.look(counts, heard_at=client.heard_at, is_owed=is_owed):
            self.alive = False
            self.error = BrokerUnreachable(f"{self._identity.address} has stopped answering: the connection is dead")

    def send(self, message: Message, head: Head, on_ack: Ack) -> None:
        """Queue a message for `write`."""
        identifier = self.client.send(message, head, self.acks)
        if message.qos:
            self.acks[identifier] = on_ack

    def subscribe(self, route: Route, answer: Future[None]) -> None:
        """Ask for a subscription; the broker's answer, or the end of the connection, ends the waiting for it."""
        if self.version5:
            kept = SubscribeOptions.RETAIN_SEND_ON_SUBSCRIBE if route.retained else SubscribeOptions.RETAIN_DO_NOT_SEND
            options = SubscribeOptions(qos=1, retainHandling=kept)
            _, identifier = self.client.subscribe(route.subscription, options=options)
        else:
            _, identifier = self.client.subscribe(route.subscription, qos=1)
        self._wait_for(identifier, route.subscription, answer)

    def unsubscribe(self, name: str, answer: Future[None]) -> None:
        """Remove a subscription; its route goes when the broker has answered."""
        _, identifier = self.client.unsubscribe(name)
        self._wait_for(identifier, name, answer)

    def leave(self) -> None:
        """Send DISCONNECT, once: the broker drops the will, and closes."""
        if not self._leaving:
            self._leaving = True
            self.client.disconnect()

    def end(self) -> None:
        """Close the socket without a DISCONNECT, if it is still open."""
        self.alive = False
        for _, answer in self._pending.values():
            answer.set_result(None)  # it is made again with the next connection
        self._pending.clear()
        self.acks.clear()
        sock = self.client.socket()
        if sock is not None:
            sock.close()

    def cut(self, answer: Future[None]) -> None:
        """Break the connection without a DISCONNECT; reading finds it broken."""
        with socket.fromfd(self.fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
            same.shutdown(socket.SHUT_RDWR)
        answer.set_result(None)

    def _wait_for(self, identifier: int | None, name: str, answer: Future[None]) -> None:
        if identifier is None:  # the connection has just gone
            answer.set_result(None)
        else:
            self._pending[identifier] = (name, answer)

    def _on_ack(self, identifier: int, code: int) -> None:
        on_ack = self.acks.pop(identifier, None)
        if on_ack is None:
            raise _unasked("PUBACK", identifier)
        try:
            on_ack(code)
        except Exception:  # noqa: BLE001 - foreign code on the link's thread
            _log.exception("the handler of a PUBACK failed")

    def _on_connect(self, _client: Client, _userdata: Any, _flags: Any, reason: PahoReason, found: Any) -> None:
        if self.accepted:
            raise MalformedPacket("a second CONNACK")
        if reason.value:
            self.version_refused = reason.value == UNSUPPORTED_VERSION
            self.error = refusal(self._identity, reason)
            return
        if self.version5:
            self.receive_maximum = getattr(found, "ReceiveMaximum", _RECEIVE_MAXIMUM)
            # Receivers name the same, so a broker that accepted a larger message would drop it.
            own = DEFAULT_LIMITS.packet_bytes
            self.max_packet_size = min(own, getattr(found, "MaximumPacketSize", own))
        self.accepted = True
        for route in self._routes:
            self.subscribe(route, Future())
        self._resubscribing = set(self._pending)

    def _on_disconnect(
        self, _client: Client, _userdata: Any, flags: DisconnectFlags, reason: PahoReason, _found: Any
    ) -> None:
        self.alive = False
        if self.error is None:
            self.error = disconnection(
                self._identity,
                reason,
                is_from_broker=flags.is_disconnect_packet_from_server,
                was_accepted=self.accepted,
                failure=self.client.failure,
            )

    def _on_subscribe(
        self, _client: Client, _userdata: Any, identifier: int, reasons: list[PahoReason], _found: Any
    ) -> None:
        if identifier not in self._pending:
            raise _unasked("SUBACK", identifier)
        name, answer = self._pending.pop(identifier)
        self._resubscribing.discard(identifier)
        if reasons and reasons[0].value >= ReasonCode.UNSPECIFIED:
            _log.error("%s refused the subscription %s: %s", self._identity.address, name, reasons[0].getName())
            answer.set_exception(NotAuthorized(f"the broker refused the subscription {name!r}: {reasons[0].getName()}"))
        else:
            answer.set_result(None)

    def _on_unsubscribe(self, _client: Client, _userdata: Any, identifier: int, _reasons: Any, _found: Any) -> None:
        if identifier not in self._pending:
            raise _unasked("UNSUBACK", identifier)
        name, answer = self._pending.pop(identifier)
        self._routes.remove(name)
        answer.set_result(None)


def _unasked(packet: str, identifier: int) -> MalformedPacket:
    """Return what ends a connection whose broker answers what was not sent: what was sent would never be answered."""
    return MalformedPacket(f"a {packet} for packet identifier {identifier}, which nothing here waits for")
