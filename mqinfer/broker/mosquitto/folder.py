"""The folder of a secured broker: made by `init`; clients are added and removed.

::

    DIR/mosquitto.conf     the configuration
    DIR/ca.crt, ca.key     the private authority; the key signs new clients and nothing else, keep it secret
    DIR/broker.crt, .key   the broker's certificate
    DIR/acl, passwords     one section and, with a password, one line a client
    DIR/certificates       the register of the clients' certificates; revoked.pem: the signed list of revoked ones
    DIR/group              the name of the workers' group, a secret that only they may know
    DIR/clients/NAME.crt, NAME.key   what a client needs, with ca.crt

Existing files are kept: the authority is made once, and a configuration that was changed by hand stays as it is.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mqinfer.broker.mosquitto.access import (
    DEFAULT_PROCESSES,
    Role,
    access_rules,
    put_section,
    role_of,
    sections,
    without_section,
)
from mqinfer.broker.mosquitto.certificates import Authority, Pair, check_host
from mqinfer.broker.mosquitto.configuration import Listener, Ports, listeners, render_secure
from mqinfer.broker.mosquitto.files import new_password, put_password, read_file, without_password, write_file
from mqinfer.broker.mosquitto.register import Issued, format_register, parse_register, revoked, with_revocation_list
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.topics import Topics, check_name

__all__ = ["DEFAULT_DAYS", "BrokerFolder", "Login", "Ports"]

DEFAULT_DAYS = 825
"""Validity of the certificates of brokers and clients; adding a client again renews its certificate."""

_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Login:
    """What a client needs to log in.

    Attributes:
        name: Its user name, and its name in topics.
        ca_file: The authority that signed the broker's certificate.
        cert_file: Its certificate, or None with a password.
        key_file: The certificate's key, or None.
        password: Or None with a certificate. Only its hash is kept.
    """

    name: str
    ca_file: Path
    cert_file: Path | None = None
    key_file: Path | None = None
    password: str | None = None


class BrokerFolder:
    """A secured broker's folder.

    Args:
        path: Where it is, or will be made.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def configuration_file(self) -> Path:
        """What Mosquitto is started with."""
        return self.path / "mosquitto.conf"

    @property
    def watched(self) -> tuple[Path, ...]:
        """The files that Mosquitto reads again on SIGHUP; with the certificate its key, which is written first."""
        files = [self._file(name) for name in ("acl", "passwords", "broker.crt", "revoked.pem")]
        return tuple(file for file in files if file.exists())  # a folder of an earlier version has no revoked.pem

    def configuration(self) -> str:
        """Read what Mosquitto is started with.

        Raises:
            ConfigError: There is none.
        """
        return read_file(self.configuration_file).decode()

    def listeners(self) -> list[Listener]:
        """List where the broker listens.

        Raises:
            ConfigError: There is no configuration, or it listens nowhere.
        """
        return listeners(self.configuration())

    def init(self, hosts: Sequence[str] = (), ports: Ports | None = None, days: int = DEFAULT_DAYS) -> None:
        """Write what is missing, and a new certificate for the broker.

        Args:
            hosts: Names and addresses under which clients reach the broker, besides this machine's own name and
                loopback.
            ports: Where it listens; used only if there is no configuration yet.
            days: Validity of the broker's certificate.

        Raises:
            ConfigError: A host is malformed, or the folder can't be written.
            MissingExtra: `cryptography` is not installed.
        """
        configuration = render_secure(self.path, ports or Ports())
        if not self._file("ca.crt").exists():
            self._write_pair(self.path / "ca", Authority.make())
        authority = self._authority()
        broker = authority.broker(list(dict.fromkeys([*_LOCAL, *_own_name(), *hosts])), days)
        self._write_pair(self.path / "broker", broker, for_broker=True)
        self._write_register(self._enlisted(authority, (self.path / "clients").glob("*.crt")))
        self._write_list(authority)
        if not self._file("group").exists():
            write_file(self._file("group"), secrets.token_hex(16).encode())
        for name in ("acl", "passwords"):
            if not self._file(name).exists():
                write_file(self._file(name), b"", for_broker=True)
        if self.configuration_file.exists():  # of an earlier version, or changed by hand
            list_file = str(self._file("revoked.pem").resolve())
            configuration = with_revocation_list(before := self.configuration(), list_file)
            if configuration == before:
                return
        write_file(self.configuration_file, configuration.encode(), secret=False)

    def group(self) -> str | None:
        """Return the name of the workers' group, None in a folder of an earlier version.

        Mosquitto 2.0 lets every client join a group that it can name, and drops the requests whose turn it takes.
        """
        return read_file(self._file("group")).decode().strip() if self._file("group").exists() else None

    def clients(self) -> dict[str, str]:
        """Return the role of each client."""
        return sections(self._acl())

    def add(  # noqa: PLR0913 - the choices that a client's owner has
        self,
        role: Role,
        name: str,
        *,
        topics: Topics | None = None,
        processes: int = DEFAULT_PROCESSES,
        days: int = DEFAULT_DAYS,
        by_password: bool = False,
    ) -> Login:
        """Add a client, or renew its certificate or password.

        Args:
            role: What it is.
            name: Its user name, and its name in topics.
            topics: The site's.
            processes: Of a worker, at most.
            days: Validity of its certificate.
            by_password: Whether it receives a password in place of a certificate.

        Raises:
            BadTopic: The name breaks the rules for names.
            ConfigError: The name has another role, or the folder was not made by `init`.
        """
        acl = self._acl()
        rules = access_rules(role, name, topics or Topics(), processes)
        other = role_of(acl, name)
        if other not in {None, role}:
            raise ConfigError(f"{name!r} is a {other} already; remove it first, or choose another name")
        if by_password and all(listener.kind == "certificates" for listener in self.listeners()):
            raise ConfigError(
                f"{self.configuration_file} has no listener for passwords; delete it, and write it anew with: "
                f"mqinfer broker init {self.path} --password-port 8884"
            )
        login = self._add_password(name) if by_password else self._add_certificate(name, days)
        write_file(self._file("acl"), put_section(acl, role, name, rules).encode(), for_broker=True)
        return login

    def remove(self, name: str) -> int:
        """Remove a client's rights and its password, and revoke its certificates.

        What needs no key of the authority is done first: without it the rights are gone all the same.

        Returns:
            The number of its certificates that are revoked.

        Raises:
            ConfigError: There is no such client, or the authority's key is not there to sign the revocation.
        """
        acl = self._acl()
        if role_of(acl, name) is None and all(each.name != name for each in self._register()):
            raise ConfigError(f"there is no client {name!r}; there are: {', '.join(sections(acl)) or 'none'}")
        write_file(self._file("acl"), without_section(acl, name).encode(), for_broker=True)
        passwords = read_file(self._file("passwords")).decode()
        write_file(self._file("passwords"), without_password(passwords, name).encode(), for_broker=True)
        return self._revoke(name)

    def certificates(self, name: str) -> list[Issued]:
        """List a client's certificates that are neither revoked nor, by more than a day, out of date."""
        return [each for each in self._register() if each.name == name and not each.revoked]

    def _revoke(self, name: str) -> int:
        """Revoke a client's certificates; those that it can't sign are signed the next time that the key is there."""
        file, certificates = self.path / "clients" / f"{name}.crt", self._register()
        if not file.exists() and all(each.name != name for each in certificates):
            return 0
        self._write_register(revoked(certificates, name))
        try:
            authority = self._authority()
        except ConfigError as error:
            raise ConfigError(
                f"{name} has no rights any more, but its certificate still opens a connection: {error}"
            ) from error
        certificates = revoked(self._enlisted(authority, [file]), name)
        self._write_register(certificates)
        self._write_list(authority)
        return sum(each.name == name for each in certificates)

    def _enlisted(self, authority: Authority, files: Iterable[Path]) -> list[Issued]:
        """Return the register, with certificates that earlier versions have issued without it."""
        certificates = self._register()
        known = {each.serial for each in certificates}
        found = [authority.issued(read_file(file)) for file in files if file.exists()]
        return certificates + [each for each in found if each and each.serial not in known]

    def _register(self) -> list[Issued]:
        file = self._file("certificates")
        return parse_register(read_file(file).decode()) if file.exists() else []

    def _write_register(self, certificates: Iterable[Issued]) -> None:
        write_file(self._file("certificates"), format_register(certificates).encode())

    def _write_list(self, authority: Authority) -> None:
        file = self._file("revoked.pem")
        before = read_file(file) if file.exists() else None
        signed = authority.revocation_list(self._register(), before)
        if signed != before:
            write_file(file, signed, secret=False)

    def _add_certificate(self, name: str, days: int) -> Login:
        stem = self.path / "clients" / check_name("client", name)
        authority = self._authority()
        self._write_register(self._enlisted(authority, [stem.with_name(f"{name}.crt")]))  # one of an earlier version
        cert_file, key_file = self._write_pair(stem, authority.client(name, days))
        self._write_register(self._enlisted(authority, [cert_file]))
        self._write_list(authority)
        return Login(name, self._file("ca.crt"), cert_file, key_file)

    def _add_password(self, name: str) -> Login:
        password = new_password()
        text = put_password(read_file(self._file("passwords")).decode(), check_name("client", name), password)
        write_file(self._file("passwords"), text.encode(), for_broker=True)
        return Login(name, self._file("ca.crt"), password=password)

    def _authority(self) -> Authority:
        """Return the authority, which has to sign something.

        Raises:
            ConfigError: Its certificate or key is not there.
        """
        if self._file("ca.crt").exists() and not self._file("ca.key").exists():
            raise ConfigError(
                f"{self._file('ca.key')} is missing, and nothing can be signed without it; put it back and try again"
            )
        return Authority(Pair(read_file(self._file("ca.crt")), read_file(self._file("ca.key"))))

    def _acl(self) -> str:
        return read_file(self._file("acl")).decode()

    def _file(self, name: str) -> Path:
        return self.path / name

    @staticmethod
    def _write_pair(stem: Path, pair: Pair, *, for_broker: bool = False) -> tuple[Path, Path]:
        cert_file, key_file = (stem.with_name(f"{stem.name}.{suffix}") for suffix in ("crt", "key"))
        write_file(key_file, pair.key, for_broker=for_broker)
        write_file(cert_file, pair.certificate, secret=False)
        return cert_file, key_file


def _own_name() -> list[str]:
    """Return the machine's name, if a certificate can hold it."""
    try:
        return [check_host(socket.gethostname())]
    except ConfigError:
        return []
