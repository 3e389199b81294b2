"""What it means that a broker refuses a connection or ends it, by the reason codes of CONNACK and DISCONNECT."""

from __future__ import annotations

import ssl

from paho.mqtt.reasoncodes import ReasonCode

from mqinfer.broker.paho.client import Identity
from mqinfer.broker.paho.tls_errors import tls_error
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NotAuthorized

__all__ = ["UNSUPPORTED_VERSION", "disconnection", "refusal"]

UNSUPPORTED_VERSION = 0x84
_TAKEN_OVER = 0x8E
# Bad user name or password, not authorized, banned, bad authentication method: trying again won't help.
_REFUSED_LOGINS = frozenset({0x86, 0x87, 0x8A, 0x8C})


def refusal(identity: Identity, reason: ReasonCode) -> LinkError:
    """Make the error of a CONNACK that does not accept.

    Args:
        identity: Who wanted to connect where.
        reason: What the broker said.
    """
    if reason.value == UNSUPPORTED_VERSION:
        return BrokerUnreachable(f"{identity.address} speaks neither MQTT 5 nor 3.1.1")
    if reason.value in _REFUSED_LOGINS:
        return NotAuthorized(f"{identity.address} refused the login of {identity.client_id!r}: {reason.getName()}")
    return BrokerUnreachable(f"{identity.address} refused the connection: {reason.getName()}")


def disconnection(
    identity: Identity, reason: ReasonCode, *, is_from_broker: bool, was_accepted: bool, failure: OSError | None
) -> LinkError:
    """Make the error of a connection that ended.

    Args:
        identity: Who was connected where.
        reason: What the broker said, or paho in its place.
        is_from_broker: Whether the broker sent a DISCONNECT.
        was_accepted: Whether it had accepted the connection.
        failure: Of the socket, where it failed.
    """
    address = identity.address
    if is_from_broker and reason.value == _TAKEN_OVER:
        return NotAuthorized(
            f"{address}: client id {identity.client_id!r} was taken over by another connection; "
            "two programs share one name"
        )
    if was_accepted:
        return BrokerUnreachable(f"{address} ended the connection: {reason.getName()}")
    if isinstance(failure, ssl.SSLError) and failure.reason:
        return tls_error(address, failure)
    return BrokerUnreachable(
        f"{address} closed the connection before it answered; is it an MQTT broker, and does it "
        + ("want a client certificate?" if address.tls else "want TLS (mqtts://)?")
    )
