"""What a failed TLS connection means: the other side's certificate, this side's, or no TLS at all.

A broker that refuses a client's certificate never says so in MQTT. With TLS 1.2 the handshake fails; with TLS 1.3 the
client takes the handshake for done, and finds an alert in place of the broker's answer.
"""

from __future__ import annotations

import ssl

from mqinfer.broker.address import BrokerAddress
from mqinfer.protocol.errors import BrokerUnreachable, LinkError, NotAuthorized

__all__ = ["tls_error"]

_ABOUT_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
_NO_CERTIFICATE = "HANDSHAKE_FAILURE"  # what TLS 1.2 says for "certificate required"


def tls_error(address: BrokerAddress, error: ssl.SSLError) -> LinkError:
    """Make the error that tells what was wrong.

    Args:
        address: The broker.
        error: What the TLS library said.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return BrokerUnreachable(
            f"{address}: the broker's certificate is not trusted ({error.verify_message}); is the CA file right?"
        )
    own = address.tls.cert_file if address.tls else None
    reason = error.reason or ""
    _, alert, what = reason.partition("_ALERT_")
    words = what.replace("_", " ").lower()
    if alert and own is None and what.endswith(("CERTIFICATE_REQUIRED", _NO_CERTIFICATE)):
        return NotAuthorized(
            f"{address} wants a client certificate ({words}); give one with --cert-file and --key-file"
        )
    if alert and any(word in what for word in _ABOUT_CERTIFICATES):
        return NotAuthorized(
            f"{address} refused the client certificate {own} ({words}); has it run out, or is it of another authority?"
        )
    return BrokerUnreachable(f"{address}: TLS failed ({reason or error}); does this port speak TLS?")
