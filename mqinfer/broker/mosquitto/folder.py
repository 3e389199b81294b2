"""The folder of a secured broker: made by `init`; clients are added and removed.

::

    DIR/mosquitto.conf     the configuration
    DIR/ca.crt, ca.key     the private authority; the key signs new clients and nothing else, keep it secret
    DIR/broker.crt, .key   the broker's certificate
    DIR/acl, passwords     one section and, with a password, one line a client
    DIR/certificates       the register of the clients' certificates; revoked.pem: the signed list of revoked ones
    DIR/group              the name of the workers' group, a secret that only they may know
    DIR/clients/NAME.crt, NAME.key   what a client needs, with ca.crt; NAME.password where it has a password

Existing files are kept: the authority is made once, and a configuration that was changed by hand stays as it is. The
folder may be moved. What is asked for is checked as a whole before the first file is written.
"""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mqinfer.broker.mosquitto.access import (
    names_of,
    put_section,
    role_of,
    sections,
    without_section,
)
from mqinfer.broker.mosquitto.certificates import Authority, Pair, check_host, hosts_of
from mqinfer.broker.mosquitto.configuration import (
    Ports,
    ports_of,
    render_secure,
)
from mqinfer.broker.mosquitto.files import (
    check_user,
    give_file,
    new_password,
    put_password,
    read_file,
    without_password,
    write_file,
)
from mqinfer.broker.mosquitto.register import Issued, format_register, parse_register, revoked
from mqinfer.broker.roles import BROKER, DEFAULT_SUBS, Role, access_rules
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.topics import Topics, check_name, is_name

__all__ = ["DEFAULT_DAYS", "BrokerFolder", "Login", "Ports"]

DEFAULT_DAYS = 825
"""Validity of the certificates of brokers and clients; adding a client again renews its certificate."""

_SECRETS = ("broker.key", "acl", "passwords", "certificates")
"""What only the broker reads; `ca.key`, the workers' group and the clients' keys stay with whoever made the folder."""
_LOCAL = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True, slots=True)
class Login:
    """What a client needs to log in.

    Attributes:
        name: Its user name, and its name in topics.
        ca_file: The authority that signed the broker's certificate.
        cert_file: Its certificate, or None with a password.
        key_file: The certificate's key, or None.
        password: Or None with a certificate. The broker keeps its hash.
        password_file: The file that it was written to, for the client.
    """

    name: str
    ca_file: Path
    cert_file: Path | None = None
    key_file: Path | None = None
    password: str | None = None
    password_file: Path | None = None


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

    def configuration(self) -> str:
        """Read what Mosquitto is started with.

        Raises:
            ConfigError: There is none.
        """
        return read_file(self.configuration_file).decode()

    def host(self) -> str:
        """Return the first name or address under which clients reach the broker, as its certificate has it.

        Raises:
            ConfigError: There is no certificate.
            MissingExtra: `cryptography` is not installed.
        """
        return self._hosts()[0]

    def init(  # noqa: PLR0913 - the choices that a site's owner has
        self,
        hosts: Sequence[str] = (),
        ports: Ports | None = None,
        days: int = DEFAULT_DAYS,
        clients: Sequence[tuple[Role, str]] = (),
        topics: Topics | None = None,
        *,
        user: str | None = None,
    ) -> list[Login]:
        """Write what is missing, and a new certificate for the broker; add clients.

        Args:
            hosts: Names and addresses under which clients reach the broker, besides this machine's own name and
                loopback. None keeps those of an earlier certificate.
            ports: Where it listens; None keeps what there is.
            days: Validity of the certificates.
            clients: To add, each with its role.
            topics: The site's.
            user: Who runs the broker; the secrets that it reads are this user's, also when they are written again. None
                keeps their owners, and new ones are for a Mosquitto that root starts.

        Returns:
            The logins of the clients.

        Raises:
            BadTopic: A client's name breaks the rules for names.
            ConfigError: A host, name or user is wrong, the ports can't be changed, or the folder can't be written.
            MissingExtra: `cryptography` is not installed.
        """
        wanted = [check_host(host) for host in hosts]
        known = self._file("broker.crt").exists() and not wanted
        names = self._hosts() if known else list(dict.fromkeys([*wanted, *_own_name(), *_LOCAL]))
        configuration = self._configured(ports)
        self._planned(clients, topics)
        if user is not None:
            check_user(user, self.path)
        if not self._file("ca.crt").exists():
            self._write_pair(self.path / "ca", Authority.make())
        authority = self._authority()
        self._write_pair(self.path / "broker", authority.broker(names, days), for_broker=True)
        self._write_register(self._enlisted(authority, (self.path / "clients").glob("*.crt")))
        self._write_list(authority)
        self._write_missing("group", secrets.token_hex(16).encode(), for_broker=False)
        self._write_missing("acl", b"")
        self._write_missing("passwords", b"")
        if not self.configuration_file.exists() or self.configuration() != configuration:
            write_file(self.configuration_file, configuration.encode(), secret=False)
        if user is not None:
            self._give_secrets(user)
        return [self.add(role, name, topics=topics, days=days) for role, name in clients]

    def _give_secrets(self, user: str) -> None:
        for name in _SECRETS:
            give_file(self._file(name), user)

    def _write_missing(self, name: str, content: bytes, *, for_broker: bool = True) -> None:
        if not self._file(name).exists():
            write_file(self._file(name), content, for_broker=for_broker)

    def ports(self) -> Ports:
        """Return where the broker listens, or will by default.

        Raises:
            ConfigError: The configuration listens nowhere.
        """
        return ports_of(self.configuration()) if self.configuration_file.exists() else Ports()

    def _configured(self, ports: Ports | None) -> str:
        """Return the configuration with these ports.

        Raises:
            ConfigError: It has others, and was changed by hand.
        """
        if not self.configuration_file.exists():
            return render_secure(ports or Ports())
        text = self.configuration()
        if ports is None or ports == ports_of(text):
            return text
        if text != render_secure(ports_of(text)):
            raise ConfigError(
                f"{self.configuration_file} was changed by hand, so its ports stay as they are; edit its lines "
                "`listener PORT`, or delete the file and run init again"
            )
        return render_secure(ports)

    def _planned(self, clients: Sequence[tuple[Role, str]], topics: Topics | None) -> None:
        """Check that clients can be added one after the other."""
        acl = self._acl() if self._file("acl").exists() else ""
        for role, name in clients:
            acl = _with_client(acl, role, name, access_rules(role, name, topics or Topics()))

    def _hosts(self) -> list[str]:
        return hosts_of(read_file(self._file("broker.crt")))

    def group(self) -> str:
        """Return the name of the workers' group.

        Mosquitto 2.0 lets every client join a group that it can name, and drops the requests whose turn it takes.
        """
        return read_file(self._file("group")).decode().strip()

    def clients(self) -> dict[str, str]:
        """Return the role of each client."""
        return sections(self._acl())

    def add(  # noqa: PLR0913 - the choices that a client's owner has
        self,
        role: Role,
        name: str,
        *,
        topics: Topics | None = None,
        processes: int | None = None,
        subs: Sequence[str] = DEFAULT_SUBS,
        homeassistant: bool = False,
        days: int = DEFAULT_DAYS,
        by_password: bool = False,
    ) -> Login:
        """Add a client, or renew its certificate or password.

        Args:
            role: What it is.
            name: Its user name, and its name in topics.
            topics: The site's.
            processes: Of a worker or a gateway, at most; None for as many as usual.
            subs: Sub-names of a vehicle's processes.
            homeassistant: Whether a vehicle may introduce its streams to Home Assistant.
            days: Validity of its certificate.
            by_password: Whether it receives a password in place of a certificate.

        Raises:
            BadTopic: The name breaks the rules for names.
            ConfigError: The name has another role, or the folder was not made by `init`.
        """
        rules = access_rules(role, name, topics or Topics(), processes, subs, homeassistant=homeassistant)
        acl = _with_client(self._acl(), role, name, rules)
        ports = self.ports()
        if by_password and ports.passwords is None and ports.websockets is None:
            raise ConfigError(
                f"{self.configuration_file} has no listener for passwords; add one with: "
                f"mqinfer broker init {self.path} --password-port 8884"
            )
        login = self._add_password(name) if by_password else self._add_certificate(name, days)
        write_file(self._file("acl"), acl.encode(), for_broker=True)
        return login

    def renew(self, names: Sequence[str], days: int = DEFAULT_DAYS) -> list[Path]:
        """Write new certificates; rights stay, and the earlier certificates stay good until they end.

        Args:
            names: Clients, and `broker` for the broker's own certificate.
            days: Validity.

        Returns:
            The new certificates, in this order.

        Raises:
            ConfigError: There is no such client, it has a password and no certificate, or nothing can be signed.
        """
        acl = self._acl()
        for name in names:
            if name != BROKER and role_of(acl, name) is None:
                raise self._unknown(name, acl)
            if name != BROKER and not self.certificates(name) and name in self.passwords():
                raise ConfigError(f"{name} logs in with a password, which has no end; there is nothing to renew")
        authority = self._authority()
        made: list[Path] = []
        for name in names:
            if name == BROKER:
                pair = authority.broker(self._hosts(), days)
                made.append(self._write_pair(self.path / "broker", pair, for_broker=True)[0])
            else:
                self._add_certificate(name, days)
                made.append(self.path / "clients" / f"{name}.crt")
        return made

    def passwords(self) -> set[str]:
        """Return the names of the clients that have a password."""
        return {line.partition(":")[0] for line in read_file(self._file("passwords")).decode().splitlines()}

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
            raise self._unknown(name, acl)
        write_file(self._file("acl"), without_section(acl, name).encode(), for_broker=True)
        passwords = read_file(self._file("passwords")).decode()
        write_file(self._file("passwords"), without_password(passwords, name).encode(), for_broker=True)
        if is_name(name):  # one that was put into the rules by hand may be anything
            self._password_file(name).unlink(missing_ok=True)
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
        """Return the register, with certificates that the authority has signed and that are not in it."""
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
        self._write_register(self._enlisted(authority, [stem.with_name(f"{name}.crt")]))
        cert_file, key_file = self._write_pair(stem, authority.client(name, days))
        self._write_register(self._enlisted(authority, [cert_file]))
        self._write_list(authority)
        return Login(name, self._file("ca.crt"), cert_file, key_file)

    def _add_password(self, name: str) -> Login:
        password = new_password()
        text = put_password(read_file(self._file("passwords")).decode(), check_name("client", name), password)
        write_file(self._file("passwords"), text.encode(), for_broker=True)
        write_file(self._password_file(name), f"{password}\n".encode())
        return Login(name, self._file("ca.crt"), password=password, password_file=self._password_file(name))

    def _password_file(self, name: str) -> Path:
        return self.path / "clients" / f"{name}.password"

    @staticmethod
    def _unknown(name: str, acl: str) -> ConfigError:
        return ConfigError(f"there is no client {name!r}; there are: {', '.join(sections(acl)) or 'none'}")

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


def _with_client(acl: str, role: Role, name: str, rules: list[str]) -> str:
    """Return an access file's text with a client, whose names nobody else may have.

    Raises:
        ConfigError: The name has another role, or it or a sub-name of it is another client's.
    """
    other = role_of(acl, name)
    if other not in {None, role}:
        raise ConfigError(f"{name!r} is a {other} already; remove it first, or choose another name")
    used = names_of(acl)
    for own in names_of(put_section("", role, name, rules)):
        if used.get(own, name) != name:
            raise ConfigError(f"client {used[own]!r} may use the name {own!r}; choose another name, such as {name}-2")
    return put_section(acl, role, name, rules)


def _own_name() -> list[str]:
    """Return the machine's name, if a certificate can hold it."""
    try:
        return [check_host(socket.gethostname())]
    except ConfigError:
        return []
