"""The certificate that a server shows, and the context made of it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path

from mqinfer.protocol.errors import ConfigError


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """PEM files with which a server encrypts.

    Attributes:
        cert: Its certificate, followed by those of its authorities.
        key: Its private key.
        client_ca: Of the authority that signs callers' certificates; None: callers need none.
    """

    cert: Path
    key: Path
    client_ca: Path | None = None


def ssl_context(files: TlsFiles) -> ssl.SSLContext:
    """Return what HTTP servers encrypt with; TLS 1.2 and later.

    Raises:
        ConfigError: A file can't be read, or the key is not that of the certificate.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(files.cert, files.key)
        if files.client_ca:
            context.load_verify_locations(files.client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except OSError as error:
        given = f"--tls-cert {files.cert}, --tls-key {files.key}"
        given += f", --client-ca {files.client_ca}" if files.client_ca else ""
        raise ConfigError(f"{given}: {error}; expected PEM files, and the key of the certificate") from error
    return context
