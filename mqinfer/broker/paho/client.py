"""paho's client as it comes, behind the four things that a session needs: deliver, acked, send and pending input."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Container
from dataclasses import dataclass
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTErrorCode, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.broker.link import Message
from mqinfer.broker.packets import Head
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.limits import DEFAULT_LIMITS

__all__ = [
    "Identity",
    "PlainClient",
    "client_arguments",
    "configure",
    "connect_properties",
    "has_buffered",
    "make_tls_context",
    "set_nodelay",
]


@dataclass(frozen=True, slots=True)
class Identity:
    """Who connects where.

    Attributes:
        address: The broker.
        client_id: One a process and link: a second connection with it ends the first.
        will: What the broker publishes when the connection is lost.
        keepalive_s: Seconds of silence after which the other side counts as gone (1.5 times that at the broker).
        tls: What the address's TLS options make, built once.
    """

    address: BrokerAddress
    client_id: str
    will: Message | None = None
    keepalive_s: int = 15
    tls: ssl.SSLContext | None = None


class PlainClient(Client):
    """paho's client with its public interface alone.

    Attributes:
        deliver: Gets each message that comes in.
        acked: Gets packet identifier and reason code of each PUBACK.
        failure: What broke the connection; always None, since paho keeps it to itself.
    """

    deliver: Callable[[Message], None]
    acked: Callable[[int, int], None]
    failure: OSError | None = None

    def __init__(self, identity: Identity, *, version5: bool) -> None:
        super().__init__(**client_arguments(identity, version5=version5))
        self.max_inflight_messages = 0  # the session holds the window; paho's own costs a search for each PUBACK
        self.on_message = self._on_received
        self.on_publish = self._on_puback

    @property
    def holds_acks(self) -> bool:
        """Never: paho sends each PUBACK at once."""
        return False

    def send(self, message: Message, _head: Head, _taken: Container[int]) -> int:
        """Queue a PUBLISH, which paho encodes and numbers itself; returns its packet identifier."""
        payload = b"".join((message.payload, *message.tail))
        properties = _properties(PacketTypes.PUBLISH, message) if self.protocol == MQTTProtocolVersion.MQTTv5 else None
        return self.publish(message.topic, payload, message.qos, message.retain, properties).mid

    def read(self) -> MQTTErrorCode:
        """Read what has come, with TLS also what the socket no longer tells `select` of."""
        code = self.loop_read()
        while code == MQTTErrorCode.MQTT_ERR_SUCCESS and has_buffered(self.socket()):
            code = self.loop_read()
        return code

    def _on_received(self, _client: Client, _userdata: Any, received: MQTTMessage) -> None:
        found = received.properties  # None with MQTT 3.1.1
        self.deliver(
            Message(
                topic=received.topic,
                payload=received.payload,
                qos=received.qos,
                retain=received.retain,
                content_type=getattr(found, "ContentType", None),
                response_topic=getattr(found, "ResponseTopic", None),
                correlation_data=getattr(found, "CorrelationData", None),
                expiry_s=getattr(found, "MessageExpiryInterval", None),
                user_properties=tuple(getattr(found, "UserProperty", ())),
            )
        )

    def _on_puback(self, _client: Client, _userdata: Any, identifier: int, reason: ReasonCode, _found: Any) -> None:
        self.acked(identifier, reason.value)


def client_arguments(identity: Identity, *, version5: bool) -> dict[str, Any]:
    """The arguments of paho's constructor."""
    return {
        "callback_api_version": CallbackAPIVersion.VERSION2,
        "client_id": identity.client_id,
        "clean_session": None if version5 else True,
        "protocol": MQTTProtocolVersion.MQTTv5 if version5 else MQTTProtocolVersion.MQTTv311,
        "transport": "websockets" if identity.address.transport == "websockets" else "tcp",
        "reconnect_on_failure": False,
    }


def configure(client: Client, identity: Identity) -> None:
    """Give a new client its login, TLS, path, will and TCP_NODELAY."""
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
    """Name the Maximum Packet Size (MQTT 5, section 3.1.2.11.4): a broker keeps larger packets to itself."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]  # paho left it untyped
    properties.MaximumPacketSize = DEFAULT_LIMITS.packet_bytes
    return properties


class _TidySocket(ssl.SSLSocket):
    """A TLS socket that closes itself when its handshake fails, which paho forgets to do."""

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - the base class's signature
        """Shake hands."""
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


def make_tls_context(options: TlsOptions) -> ssl.SSLContext:
    """Load the certificates.

    Raises:
        ConfigError: A file is missing or is no certificate or key.
    """
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        context.sslsocket_class = _TidySocket
        if options.cert_file is not None:
            context.load_cert_chain(options.cert_file, options.key_file)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(str(path) for path in (options.ca_file, options.cert_file, options.key_file) if path)
        raise ConfigError(f"TLS files {files}: {error}") from error
    return context


def set_nodelay(_client: Client, _userdata: Any, sock: Any) -> None:
    """Switch Nagle's algorithm off: with it a QoS 1 round trip takes 83 ms instead of 0.6 ms.

    paho has no option for it and hands over sockets of three kinds, so this goes by the file descriptor.
    """
    with socket.fromfd(sock.fileno(), socket.AF_INET, socket.SOCK_STREAM) as same:
        same.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def has_buffered(sock: Any) -> bool:
    """Whether a TLS socket holds decrypted bytes, which `select` knows nothing of."""
    pending = getattr(sock, "pending", None)
    return pending is not None and pending() > 0


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
