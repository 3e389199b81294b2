"""The register of the certificates that a folder has issued, one line each: `NAME SERIAL END KEY`, and `revoked TIME`.

It is what the revocation list is made of. The folder keeps it because the certificates themselves may be moved away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from mqinfer.protocol.errors import ConfigError

_TIME = "%Y-%m-%dT%H:%M:%SZ"
_LINE = re.compile(
    r"(?P<name>\S+) (?P<serial>[0-9a-f]+) (?P<end>\S+)(?: (?P<key>[0-9a-f]{64}))?(?: revoked (?P<revoked>\S+))?"
)
_KEPT_AFTER_END = timedelta(days=1)  # of clocks that differ


@dataclass(frozen=True, slots=True)
class Issued:
    """A client's certificate.

    Attributes:
        name: Of the client.
        serial: Unique among those of the authority.
        end: When it runs out, in UTC.
        revoked: When it was revoked, or None.
        key: SHA-256 of its public key (SubjectPublicKeyInfo); empty where an earlier version has enlisted it.
    """

    name: str
    serial: int
    end: datetime
    revoked: datetime | None = None
    key: str = ""


def parse_register(text: str) -> list[Issued]:
    """Read a register.

    Raises:
        ConfigError: A line is malformed.
    """
    return [_parse(line) for line in text.splitlines()]


def _parse(line: str) -> Issued:
    found = _LINE.fullmatch(line)
    if found is None:
        raise _malformed(line)
    at = found["revoked"]
    revoked_at = _time(at) if at else None
    return Issued(found["name"], int(found["serial"], 16), _time(found["end"]), revoked_at, found["key"] or "")


def _time(text: str) -> datetime:
    try:
        return datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    except ValueError:
        raise _malformed(text) from None


def _malformed(text: str) -> ConfigError:
    return ConfigError(
        f"the register of certificates has {text[:200]!r}; expected: NAME SERIAL END [KEY] [revoked TIME]"
    )


def format_register(certificates: Iterable[Issued]) -> str:
    """Return the register's text, without the certificates that have run out."""
    oldest = datetime.now(UTC) - _KEPT_AFTER_END
    return "".join(_line(each) for each in certificates if each.end > oldest)


def _line(issued: Issued) -> str:
    state = f" revoked {issued.revoked.strftime(_TIME)}" if issued.revoked else ""
    key = f" {issued.key}" if issued.key else ""
    return f"{issued.name} {issued.serial:x} {issued.end.strftime(_TIME)}{key}{state}\n"


def revoked(certificates: Iterable[Issued], name: str) -> list[Issued]:
    """Return the certificates, with those of one client revoked."""
    now = datetime.now(UTC)
    return [replace(each, revoked=each.revoked or now) if each.name == name else each for each in certificates]
