"""What an operator sets about a dashboard, and which of it is refused."""

from __future__ import annotations

import re
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import urlsplit

import typer

from mqinfer.broker.address import BrokerAddress
from mqinfer.metrics.endpoint import LOOPBACK
from mqinfer.protocol.errors import ConfigError
from mqinfer.web.tls import TlsFiles

LoginMode = Literal["mqtt", "relay"]

_DIRECT = re.compile(r"wss?://(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?(?:/[A-Za-z0-9._~/-]*)?")
"""What may follow `--direct`: nothing in it ends a directive of a Content-Security-Policy."""
_HOST = re.compile(r"(?:[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?")


MOST_OF_LOGIN = 16
"""Browsers of a relay with a login: the guard of `mqinfer broker` ends further connections of one login."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PageOptions:
    """How the page is served; each field is an option of `mqinfer dashboard`, with its help, here alone."""

    port: Annotated[int, typer.Option(help="Port of the page; 0 chooses a free one.", min=0, max=65535)] = 8080
    bind: Annotated[
        str, typer.Option(help="Address to listen on. Any other than loopback needs --tls-cert and a login.")
    ] = "127.0.0.1"
    keys: Annotated[
        Path | None,
        typer.Option(
            help="TOML file of those who may open the page, with their keys and the right watch; it is read again "
            "when changed."
        ),
    ] = None
    direct: Annotated[
        str | None,
        typer.Option(
            help="Address of the broker's own websockets, such as wss://broker.example.org/mqtt, to which browsers "
            "then connect without the relay."
        ),
    ] = None
    max_connections_per_address: Annotated[
        int,
        typer.Option(
            help="Browsers of one address that are connected at a time; loopback, where a proxy may be, has no bound.",
            min=1,
        ),
    ] = 32


@dataclass(frozen=True, slots=True)
class DashboardSettings(PageOptions):
    """How a dashboard serves. Times in seconds.

    Attributes:
        address: Of the broker.
        root: Prefix of all topics.
        tls: What the page is encrypted with; None: it is not.
        hosts: Names under which the page is reached, with a port unless it is the usual one; empty for loopback's
            names where it listens there, and for any elsewhere.
        max_connections: Browsers that the relay connects at a time.
        metrics_port: Where Prometheus reads the lag of the site; None: nowhere.
        metrics_bind: Address of that port.
        first_packet: Time in which a browser has to send the first packet after the WebSocket is open.
        broker_patience: Time in which the broker has to accept a connection.
        heartbeat: Interval of the pings to a browser; one that answers none for half of it is disconnected.
        session: How long a login by key lasts.
    """

    address: BrokerAddress
    root: str = "mqinfer/v1"
    tls: TlsFiles | None = None
    hosts: tuple[str, ...] = ()
    max_connections: int = 256
    metrics_port: int | None = None
    metrics_bind: str = LOOPBACK
    first_packet: float = 10.0
    broker_patience: float = 10.0
    heartbeat: float = 60.0
    session: float = 12 * 3600.0

    @property
    def login(self) -> LoginMode:
        """Who logs in to the broker: the browser with its own CONNECT, or the relay with this program's login."""
        own = self.address.tls.cert_file if self.address.tls else None
        return "relay" if self.address.username is not None or own else "mqtt"

    @property
    def is_open(self) -> bool:
        """Whether other machines can reach it."""
        return not is_loopback(self.bind)


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    if host.lower() == "localhost":
        return True
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def check_settings(settings: DashboardSettings) -> None:
    """Check that settings fit together, and that nothing is open to a network that should not be.

    Raises:
        ConfigError: They don't; the message says what to do.
    """
    for host in settings.hosts:
        if not _HOST.fullmatch(host):
            raise ConfigError(
                f"--host {host!r}: expected a name with or without a port, such as fleet.example.org:8443"
            )
    _check_broker(settings)
    if not settings.is_open:
        return
    if settings.tls is None:
        raise ConfigError(
            f"--bind {settings.bind} opens the page to other machines, where logins and pictures would travel "
            "unencrypted; add --tls-cert and --tls-key, or keep --bind 127.0.0.1 behind a proxy or an SSH tunnel"
        )
    if settings.login == "relay" and settings.direct is None and settings.keys is None:
        raise ConfigError(
            f"--bind {settings.bind} opens the page to other machines, and the relay logs everybody in with this "
            "command's own login; add --keys FILE, or leave the login out of --broker and the certificate files, so "
            "that each browser logs in itself"
        )


def _check_broker(settings: DashboardSettings) -> None:
    address = settings.address
    if settings.direct is not None:
        _check_direct(settings, settings.direct)
    elif address.transport not in {"tcp", "websockets"}:
        raise ConfigError(f"--broker {address}: no browser can reach that broker; use mqtt:// or mqtts://")
    elif address.transport != "tcp":
        raise ConfigError(
            f"--broker {address}: the relay connects over TCP; use mqtt:// or mqtts://, or --direct {address} to let "
            "browsers connect there themselves"
        )


def _check_direct(settings: DashboardSettings, direct: str) -> None:
    if not _DIRECT.fullmatch(direct):
        raise ConfigError(
            f"--direct {direct!r}: expected wss://HOST[:PORT][/PATH], such as wss://broker.example.org/mqtt"
        )
    parts = urlsplit(direct)
    if settings.login == "relay":
        raise ConfigError(
            "--direct lets browsers connect themselves, so the login of this command is of no use; leave the user out "
            "of --broker, and --cert-file and --key-file too"
        )
    if parts.scheme == "ws" and (settings.tls is not None or not is_loopback(parts.hostname or "")):
        raise ConfigError(f"--direct {direct}: logins would travel unencrypted; use wss://")
