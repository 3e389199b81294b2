"""The address of a broker and of its standbys, which take over where it fails, read from one URL."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from mqinfer.broker.certificate import OwnCertificate, ending
from mqinfer.protocol.errors import ConfigError
from mqinfer.protocol.topics import is_name
from mqinfer.toml_files import read_text

Transport = Literal["tcp", "websockets", "nats", "memory"]

# Scheme: transport, whether it is TLS, default port (registered ones of MQTT and NATS, and HTTP's for websockets).
_SCHEMES: Final[dict[str, tuple[Transport, bool, int]]] = {
    "mqtt": ("tcp", False, 1883),
    "mqtts": ("tcp", True, 8883),
    "ws": ("websockets", False, 80),
    "wss": ("websockets", True, 443),
    "nats": ("nats", False, 4222),
    "tls": ("nats", True, 4222),
    "memory": ("memory", False, 0),
}
_HINT = "it should look like mqtt://host:1883, mqtts://user:password@host, ws://host:9001/mqtt or memory://name"
_MOST_STANDBYS = 8


@dataclass(frozen=True, slots=True)
class TlsOptions:
    """Certificates of a TLS connection.

    Attributes:
        ca_file: Certificates to trust, PEM; None for the system's.
        cert_file: The client's own certificate, PEM.
        key_file: Its key, PEM; None where it stands in `cert_file`.
    """

    ca_file: Path | str | None = None
    cert_file: Path | str | None = None
    key_file: Path | str | None = None


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker's address; its text form leaves the password out.

    Attributes:
        host: Name or address, IPv6 without brackets; of a `memory` broker its name.
        port: 1 to 65535; 0 with `memory`.
        username: Of the login, if any.
        password: Of the login; never shown.
        tls: Set where the connection is encrypted.
        transport: `tcp`, `websockets`, `nats`, or `memory` for a broker within this process.
        path: The HTTP path of a websockets broker.
        standbys: Host and port of each broker that is tried, in this order, where the first one does not answer. Login,
            TLS, transport and path are the same.
    """

    host: str
    port: int = 1883
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: TlsOptions | None = None
    transport: Transport = "tcp"
    path: str = "/mqtt"
    standbys: tuple[tuple[str, int], ...] = ()

    @property
    def each(self) -> tuple[BrokerAddress, ...]:
        """The address of each broker alone, in the order in which they are tried."""
        return tuple(replace(self, host=host, port=port, standbys=()) for host, port in self._places)

    @property
    def _places(self) -> tuple[tuple[str, int], ...]:
        return ((self.host, self.port), *self.standbys)

    @property
    def login_name(self) -> str | None:
        """The name that the login states: the certificate's common name, else the user name; None without either.

        A name that topics can't hold counts as none.

        Raises:
            ConfigError: The certificate can't be read.
        """
        own = self._own_certificate()
        name = self.username if own is None else own.name
        return name if name and is_name(name) else None

    def expiry_warning(self) -> str | None:
        """Return a warning where the client's own certificate ends within 30 days, else None."""
        own = self._own_certificate()
        if own is None or not (when := ending(own.end, datetime.now(UTC))):
            return None
        who = own.name or "this client"
        return f"the certificate of {who} {when}; make another one with: mqinfer broker renew DIR NAME"

    def _own_certificate(self) -> OwnCertificate | None:
        file = self.tls.cert_file if self.tls else None
        return OwnCertificate.read(Path(file)) if file else None

    def __str__(self) -> str:
        if self.transport == "memory":
            return f"memory://{self.host}"
        encrypted = {"tcp": "mqtts", "websockets": "wss", "nats": "tls"}
        scheme = (encrypted if self.tls else {"tcp": "mqtt", "websockets": "ws", "nats": "nats"})[self.transport]
        hosts = ",".join(f"{f'[{host}]' if ':' in host else host}:{port}" for host, port in self._places)
        return f"{scheme}://{hosts}" + (self.path if self.transport == "websockets" else "")

    @classmethod
    def parse(
        cls,
        url: str,
        *,
        ca_file: Path | str | None = None,
        cert_file: Path | str | None = None,
        key_file: Path | str | None = None,
        password_file: Path | str | None = None,
    ) -> BrokerAddress:
        """Read a URL: `mqtt://`, `mqtts://`, `ws://`, `wss://`, `nats://`, `tls://` (NATS) or `memory://name`.

        Args:
            url: With `user@` or `user:password@` if need be, both percent-encoded. For a user without a password that
                of `password_file` counts, else that of the environment variable `MQINFER_PASSWORD`. Standbys follow
                the first host behind commas: `mqtts://user@a:8883,b:8883`.
            ca_file: Certificates to trust, for the encrypted schemes.
            cert_file: The client's certificate, for the encrypted schemes.
            key_file: Its key.
            password_file: File with the user's password in its first line; other programs see a URL's.

        Raises:
            ConfigError: The URL has a fault; the message names it, without the password.
        """
        parts, *standbys = _split_each(url)
        if parts.scheme not in _SCHEMES:
            raise ConfigError(f"broker URL: unknown scheme {parts.scheme!r}; {_HINT}")
        transport, encrypted, default_port = _SCHEMES[parts.scheme]
        tls = TlsOptions(_path(ca_file), _path(cert_file), _path(key_file))
        if not encrypted and tls != TlsOptions():
            raise ConfigError(
                f"broker URL: {parts.scheme}:// is not encrypted, so certificates do nothing; use "
                + ("tls://" if transport == "nats" else "mqtts://")
            )
        _check_shape(parts, transport)
        user, password = _decode(parts.username), _decode(parts.password)
        return cls(
            host=_host(parts),
            port=_port(parts, default_port),
            username=user,
            password=_password(user, password, _path(password_file)),
            tls=tls if encrypted else None,
            transport=transport,
            path=(transport == "websockets" and parts.path) or "/mqtt",
            standbys=tuple((_host(each), _port(each, default_port)) for each in standbys),
        )


def _split(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError as error:  # unbalanced brackets; its message may repeat the login
        raise ConfigError(f"broker URL: the host is malformed; {_HINT}") from error.with_traceback(None)


def _split_each(url: str) -> list[SplitResult]:
    """Return the parts of a URL with its first host alone, then those with each standby alone."""
    scheme, colon, rest = url.partition("://")
    place, slash, path = rest.partition("/")
    login, at, hosts = place.rpartition("@")
    if "@" in login and "," in login:
        raise ConfigError("broker URL: one login is for all hosts and stands once, as in mqtts://user@a:8883,b:8883")
    if scheme == "memory" or "," not in hosts:
        return [_split(url)]
    if path.startswith("/"):
        raise ConfigError("broker URL: the scheme stands once, before the first host, as in mqtt://a:1883,b:1883")
    each = hosts.split(",")
    if len(each) > 1 + _MOST_STANDBYS:
        raise ConfigError(f"broker URL: {len(each)} hosts; expected {1 + _MOST_STANDBYS} at most")
    return [_split(f"{scheme}{colon}{login}{at}{host}{slash}{path}") for host in each]


def _check_shape(parts: SplitResult, transport: Transport) -> None:
    if parts.query or parts.fragment:
        raise ConfigError("broker URL: '?' and '#' have no meaning here; write them as %3F and %23 within a password")
    if transport != "websockets" and parts.path not in {"", "/"}:
        raise ConfigError(f"broker URL: the path {parts.path!r} has no meaning with {parts.scheme}://")
    if transport == "memory" and "@" in parts.netloc:
        raise ConfigError("broker URL: memory:// takes no login")


def _host(parts: SplitResult) -> str:
    host = _decode(parts.hostname)
    if not host or any(character.isspace() for character in host):
        raise ConfigError(f"broker URL: the host is missing or has a space in it; {_HINT}")
    return host


def _port(parts: SplitResult, default: int) -> int:
    try:
        port = parts.port
    except ValueError:
        raise ConfigError("broker URL: the port is no number from 1 to 65535") from None
    if port is None:
        return default
    if port == 0 or parts.scheme == "memory":
        raise ConfigError("broker URL: the port is no number from 1 to 65535, or stands after memory://")
    return port


def _password(user: str | None, in_url: str | None, file: Path | None) -> str | None:
    if file is None:
        return os.environ.get(Variable.PASSWORD) if user and in_url is None else in_url
    if in_url is not None:
        raise ConfigError("broker URL: there is a password in it and a password file too; leave out one of them")
    if not user:
        raise ConfigError("broker URL: a password file needs a user name in the URL, such as mqtts://car-1@host:8884")
    try:
        lines = read_text(file).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ConfigError(f"password file {file} can't be read: {why}") from None
    if not lines or not lines[0]:
        raise ConfigError(f"password file {file} is empty; expected the password in its first line")
    return lines[0]


def _decode(text: str | None) -> str | None:
    return None if text is None else unquote(text)


def _path(path: Path | str | None) -> Path | None:
    return None if path is None else Path(path)


class Variable(StrEnum):
    """Where a process finds its broker, and who it is there."""

    BROKER = "MQINFER_BROKER"
    NAME = "MQINFER_NAME"
    CA_FILE = "MQINFER_CA_FILE"
    CERT_FILE = "MQINFER_CERT_FILE"
    KEY_FILE = "MQINFER_KEY_FILE"
    PASSWORD = "MQINFER_PASSWORD"  # noqa: S105 - the name of a variable
    PASSWORD_FILE = "MQINFER_PASSWORD_FILE"  # noqa: S105 - the name of a variable
