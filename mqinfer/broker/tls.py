"""TLS of a connection to a broker: its context, and what its errors mean.

A broker that refuses a client's certificate never reports it in its protocol. With TLS 1.2 the handshake fails; with
TLS 1.3 the client's handshake succeeds, and an alert comes in place of the broker's answer.
"""

from __future__ import annotations

import ssl

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError, LinkError, NotAuthorized

STRICT_CODES = range(79, 95)
"""Errors of OpenSSL's strict check, from X509_V_ERR_INVALID_CA on (openssl/x509_vfy.h)."""
_ABOUT_CERTIFICATES = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")
_REVOKED = "CERTIFICATE_REVOKED"
_NO_CERTIFICATE = "HANDSHAKE_FAILURE"  # TLS 1.2 has this alert for "certificate required"


class _ClosingSocket(ssl.SSLSocket):
    """A TLS socket that closes itself when its handshake fails, which paho forgets to do."""

    def do_handshake(self, block: bool = False) -> None:  # noqa: FBT001, FBT002 - the base class's signature
        """Shake hands."""
        try:
            super().do_handshake(block)
        except OSError:
            self.close()
            raise


def make_tls_context(options: TlsOptions) -> ssl.SSLContext:
    """Load the certificates into a TLS context.

    Raises:
        ConfigError: A file is missing or is no certificate or key.
    """
    try:
        context = ssl.create_default_context(cafile=options.ca_file)
        context.sslsocket_class = _ClosingSocket
        if options.cert_file is not None:
            context.load_cert_chain(options.cert_file, options.key_file)
    except OSError as error:  # ssl.SSLError is one
        files = ", ".join(str(path) for path in (options.ca_file, options.cert_file, options.key_file) if path)
        raise ConfigError(f"TLS files {files}: {error}") from error
    return context


def tls_error(address: BrokerAddress, error: ssl.SSLError) -> LinkError:
    """Return the error for a failed TLS connection: the broker's certificate, the client's own, or no TLS at all.

    Args:
        address: The broker.
        error: The TLS library's.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return _untrusted(address, error)
    own = address.tls.cert_file if address.tls else None
    reason = error.reason or ""
    _, alert, what = reason.partition("_ALERT_")
    words = what.replace("_", " ").lower()
    if alert and own is None and what.endswith(("CERTIFICATE_REQUIRED", _NO_CERTIFICATE)):
        return NotAuthorized(
            f"{address} wants a client certificate ({words}); pass one with --cert-file and --key-file"
        )
    if alert and any(map(what.__contains__, _ABOUT_CERTIFICATES)):
        hints = {
            True: "ask the broker's operator for a new one",
            False: "has it run out, or is it of another authority?",
        }
        hint = hints[what.endswith(_REVOKED)]
        return NotAuthorized(f"{address} refused the client certificate {own} ({words}); {hint}")
    return BrokerUnreachable(f"{address}: TLS failed ({reason or error}); does this port speak TLS?")


def _untrusted(address: BrokerAddress, error: ssl.SSLCertVerificationError) -> BrokerUnreachable:
    cure = "is the CA file right?"
    if error.verify_code in STRICT_CODES:
        cure = "make a new one that keeps to RFC 5280, as Python 3.13 and later do (docs/reference/security.md)"
    return BrokerUnreachable(f"{address}: the broker's certificate is not trusted ({error.verify_message}); {cure}")
