"""Who connects where, what a connection means that fails (at CONNACK, by DISCONNECT), and when to try again."""

from __future__ import annotations

import random
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from paho.mqtt.client import Client, WebsocketConnectionError
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.link import Message
from mqinfer.broker.tls import tls_error
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NotAuthorized
from mqinfer.protocol.limits import DEFAULT_LIMITS

UNSUPPORTED_VERSION = 0x84
_UNSPECIFIED = 0x80  # also paho's code for a connection that was closed without a DISCONNECT
_TAKEN_OVER = 0x8E
# Bad user name or password, not authorized, banned, bad authentication method: trying again won't help.
_REFUSED_LOGINS = frozenset({0x86, 0x87, 0x8A, 0x8C})
_NO_HANDSHAKE = "WebSocket handshake error"  # paho's words for no answer; where there was one, it says what was wrong
_CLOSED = (ConnectionResetError, ConnectionAbortedError, BrokenPipeError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
# A wait adds at most this share of what was waited so far: whoever was away for two seconds is found within one more.
# The usual doubling with each attempt may wait for as long again, or longer where the first draws were short.
_SHARE = 0.5
# So many connections that ended within so many seconds are a loop. A link that is cut every second is none.
_LOOP, _LOOP_S = 10, 5.0


class ConnectionClosed(BrokerUnreachable):
    """The connection was closed without a word before the broker had answered; the next one may fare better."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who connects where.

    Attributes:
        address: The broker.
        client_id: Of one link of one process: a second connection with it ends the first.
        will: What the broker publishes when the connection is lost.
        tls: Made of the address's TLS options, once.
    """

    address: BrokerAddress
    client_id: str
    will: Message | None = None
    tls: ssl.SSLContext | None = None


def client_arguments(identity: Identity, *, version5: bool) -> dict[str, Any]:
    """Return the arguments of paho's constructor."""
    return {
        "callback_api_version": CallbackAPIVersion.VERSION2,
        "client_id": identity.client_id,
        "clean_session": None if version5 else True,
        "protocol": MQTTProtocolVersion.MQTTv5 if version5 else MQTTProtocolVersion.MQTTv311,
        "transport": "websockets" if identity.address.transport == "websockets" else "tcp",
        "reconnect_on_failure": False,
    }


def configure(client: Client, identity: Identity) -> None:
    """Set login, TLS, path, will and TCP_NODELAY of a new client."""
    address = identity.address
    if address.username is not None:
        client.username_pw_set(address.username, address.password)
    if identity.tls is not None:
        client.tls_set_context(identity.tls)
    if address.transport == "websockets":
        client.ws_set_options(path=address.path)
    if identity.will is not None:
        _set_will(client, identity.will)
    client.on_socket_open = set_nodelay


def connect_properties() -> Properties:
    """Return the Maximum Packet Size for CONNECT (MQTT 5, section 3.1.2.11.4): a broker drops larger packets."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho left it untyped
    properties.MaximumPacketSize = DEFAULT_LIMITS.packet_bytes
    return properties


def set_nodelay(_client: Client, _userdata: Any, sock: Any) -> None:
    """Switch Nagle's algorithm off: with it a QoS 1 round trip takes 83 ms instead of 0.6 ms.

    paho has no option for it and passes sockets of three kinds, so this uses the file descriptor.
    """
    with socket.fromfd(sock.fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def refusal(identity: Identity, reason: ReasonCode) -> LinkError:
    """Return the error of a CONNACK that refuses.

    Args:
        identity: Who wanted to connect where.
        reason: The broker's.
    """
    if reason.value == UNSUPPORTED_VERSION:
        return BrokerUnreachable(f"{identity.address} speaks neither MQTT 5 nor 3.1.1")
    if reason.value in _REFUSED_LOGINS:
        words = f"refused the login of {identity.client_id!r} ({reason.getName()})"
        return NotAuthorized(f"{identity.address} {words}: {_login_advice(identity)}")
    return BrokerUnreachable(f"{identity.address} refused the connection: {reason.getName()}")


def _login_advice(identity: Identity) -> str:
    user, tls = identity.address.username, identity.address.tls
    if user is not None:
        return f"it knows no user {user!r} with this password; check the name in --broker, and --password-file"
    if tls is not None and tls.cert_file is not None:
        return f"it has no rights for the client certificate {tls.cert_file}; ask the broker's operator"
    return "it wants a login; put the user's name before the host in --broker, with --password-file, or --cert-file"


def disconnection(
    identity: Identity, reason: ReasonCode, *, is_from_broker: bool, was_accepted: bool, failure: OSError | None
) -> LinkError:
    """Return the error of a connection that ended.

    Args:
        identity: Who was connected where.
        reason: The broker's, or paho's in its place.
        is_from_broker: Whether the broker sent a DISCONNECT.
        was_accepted: Whether it had accepted the connection.
        failure: Of the socket, where it failed.
    """
    address = identity.address
    if is_from_broker and reason.value == _TAKEN_OVER:
        # Not for good: the id is this process's own secret, so whoever took it over had no right to.
        return BrokerUnreachable(
            f"{address}: client id {identity.client_id!r} was taken over by another connection; "
            "does another program use it?"
        )
    if was_accepted:
        return BrokerUnreachable(f"{address} ended the connection: {reason.getName()}")
    if isinstance(failure, ssl.SSLError) and failure.reason and not isinstance(failure, _CLOSED):
        return tls_error(address, failure)
    was_silent = reason.value == _UNSPECIFIED  # and not, say, bytes that are no MQTT
    return (ConnectionClosed if was_silent else BrokerUnreachable)(_unanswered(address))


def dial_error(address: BrokerAddress, error: Exception) -> LinkError:
    """Return the error of a connection that could not be made.

    Args:
        address: The broker.
        error: Of the socket, of TLS or of websockets.
    """
    if isinstance(error, _CLOSED) or (isinstance(error, WebsocketConnectionError) and str(error) == _NO_HANDSHAKE):
        return ConnectionClosed(_unanswered(address))
    if isinstance(error, ssl.SSLError):
        return tls_error(address, error)
    return BrokerUnreachable(
        f"no broker answers at {address} ({error}); start one with: mqinfer broker --port {address.port}"
    )


def _unanswered(address: BrokerAddress) -> str:
    return f"{address} closed the connection before it answered; is it an MQTT broker, and does it " + (
        "speak TLS, and want a client certificate?" if address.tls else "want TLS (mqtts://)?"
    )


def _set_will(client: Client, will: Message) -> None:
    properties = _properties(PacketTypes.WILLMESSAGE, will) if client.protocol == MQTTProtocolVersion.MQTTv5 else None
    client.will_set(will.topic, bytes(will.joined().payload), will.qos, will.retain, properties)


def _properties(packet_type: int, message: Message) -> Properties:
    properties = Properties(packet_type)  # type: ignore[no-untyped-call]  # paho left it untyped
    named = {
        "ContentType": message.content_type,
        "ResponseTopic": message.response_topic,
        "CorrelationData": message.correlation_data,
        "MessageExpiryInterval": message.expiry_s,
        "UserProperty": list(message.user_properties) or None,
    }
    for name, value in named.items():
        if value is not None:
            setattr(properties, name, value)
    return properties


class Backoff:
    """Exponential back-off with full jitter, so that a fleet doesn't reconnect in step.

    Source: Marc Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015; here with a floor.

    Args:
        shortest: Least wait, in seconds.
        longest: Most wait, in seconds.
        draw: Returns numbers in [0, 1).
    """

    def __init__(self, shortest: float = 0.1, longest: float = 5.0, draw: Callable[[], float] = random.random) -> None:
        self._shortest = shortest
        self._longest = longest
        self._draw = draw
        self._waited = 0.0
        self._ends: deque[float] = deque(maxlen=_LOOP)

    def next(self) -> float:
        """Return the seconds to wait now; the ceiling grows with what was waited so far."""
        ceiling = min(self._shortest + _SHARE * self._waited, self._longest)
        seconds = self._shortest + (ceiling - self._shortest) * self._draw()
        self._waited += seconds
        return seconds

    def lost(self, now: float) -> bool:
        """Count the loss of a connection; start anew unless losses come so fast that they are a loop.

        Returns:
            Whether they are one.
        """
        self._ends.append(now)
        is_loop = len(self._ends) == _LOOP and now - self._ends[0] < _LOOP_S
        if not is_loop:
            self._waited = 0.0
        return is_loop
