"""A client's own certificate: whose it is and when it ends, read without a library beside Python's.

TLS checks certificates; this module only reads two fields of a file that its owner has chosen, so that the owner need
not state the name twice and is warned in time. `ssl` shows those of the other side's certificate alone, by the function
of the standard library's own tests that is used here.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from mqinfer.protocol.errors import ConfigError

_WARNED = timedelta(days=30)
"""How long before its end a certificate is warned of."""


def ending(end: datetime, now: datetime) -> str | None:
    """Return when a certificate ends, in words, where it has ended or will soon, else None."""
    days = (end - now).days
    when = f"ended on {end:%Y-%m-%d}" if days < 0 else f"ends in {days} days, on {end:%Y-%m-%d}"
    return None if end - now > _WARNED else when


@dataclass(frozen=True, slots=True)
class OwnCertificate:
    """What a client reads of its certificate.

    Attributes:
        name: The first common name of its subject; empty where it has none.
        end: When it ends, in UTC.
    """

    name: str
    end: datetime

    @classmethod
    def read(cls, path: Path) -> OwnCertificate:
        """Read the first certificate of a PEM file.

        Raises:
            ConfigError: The file can't be read, or holds no certificate.
        """
        # Private, and in CPython since 2.6; imported here, since only who has a certificate needs it.
        from _ssl import _test_decode_cert  # type: ignore[attr-defined]

        try:
            if b"-----BEGIN CERTIFICATE-----" not in path.read_bytes():
                raise ConfigError(f"{path} holds no certificate; expected a PEM file with BEGIN CERTIFICATE")
            found: dict[str, Any] = dict(_test_decode_cert(path))
            end = datetime.fromtimestamp(ssl.cert_time_to_seconds(found["notAfter"]), UTC)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"the certificate in {path} is damaged") from error
        except OSError as error:
            raise ConfigError(f"{path} can't be read: {error.strerror or error}") from error
        names = [value for group in found["subject"] for kind, value in group if kind == "commonName"]
        return cls(next(iter(names), ""), end)
