"""When the certificates of a broker's folder end: its own, its authority's, and the clients'."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from mqinfer.broker.certificate import OwnCertificate, ending
from mqinfer.broker.mosquitto.folder import BrokerFolder
from mqinfer.broker.roles import BROKER

_AUTHORITY = "authority"


class Expiry(NamedTuple):
    """One line of `mqinfer broker list`.

    Attributes:
        role: Of a client; `broker` or `authority`.
        name: Of the client; empty for the others.
        end: When its certificate ends, the last of several; None without one.
        password: Whether it may log in with a password.
    """

    role: str
    name: str = ""
    end: datetime | None = None
    password: bool = False

    def warning(self, now: datetime) -> str | None:
        """Return what to do about a certificate that has ended or will soon, or None."""
        if self.end is None:
            lost = f"{self.role} {self.name} has no certificate and no password"
            return None if self.password else f"{lost}; make one with: mqinfer broker renew DIR {self.name}"
        if not (when := ending(self.end, now)):
            return None
        who = f"{self.role} {self.name}".strip()
        if self.role == _AUTHORITY:
            return f"the certificate of the {who} {when}; make a new folder, and give each client new files"
        return f"the certificate of {who} {when}; renew it with: mqinfer broker renew DIR {self.name or BROKER}"


def entries(folder: BrokerFolder) -> list[Expiry]:
    """List the certificates of a folder: the broker's, the authority's, and the clients' by name.

    Raises:
        ConfigError: The folder was not made by `init`, or a file of it is damaged.
    """
    clients, passwords = folder.clients(), folder.passwords()
    own = [
        Expiry(role, end=OwnCertificate.read(folder.path / file).end)
        for role, file in ((BROKER, "broker.crt"), (_AUTHORITY, "ca.crt"))
    ]
    return own + [
        Expiry(role, name, max((each.end for each in folder.certificates(name)), default=None), name in passwords)
        for name, role in sorted(clients.items())
    ]


def warnings(folder: BrokerFolder, now: datetime | None = None) -> list[str]:
    """List what to do about certificates that have ended or will soon."""
    found = [entry.warning(now or datetime.now(UTC)) for entry in entries(folder)]
    return [warning for warning in found if warning]
