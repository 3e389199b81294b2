"""The configuration of a private Mosquitto, from the packaged `mosquitto.conf`: open on loopback, or secured.

The packaged file works as it is (`mosquitto -c mosquitto.conf`) and explains each of its limits; they hold for both.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from mqinfer.protocol.errors import ConfigError

_OPEN_TCP = "listener 1883 127.0.0.1\n"
_OPEN_WEBSOCKETS = "listener 9001 127.0.0.1\n"
_BROWSERS = "# --- Browsers"  # the last section: what follows it belongs to the websockets listener
_OPEN_SECTION = re.compile(r"^# --- Listeners -.*?(?=^# --- Latency)", re.MULTILINE | re.DOTALL)
_FIRST_LINES = re.compile(r"\A(#.*\n)+")
FILES = re.compile(r"^(acl_file|password_file|cafile|crlfile|certfile|keyfile) +(.+?)[ \t]*$", re.MULTILINE)
"""Finds the lines that name a file which Mosquitto reads again on SIGHUP: the option and the path."""
_LISTENER = re.compile(r"^listener ([0-9]+)(.*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Ports:
    """Where a broker listens, always with TLS.

    Attributes:
        certificates: For clients that show a certificate.
        passwords: For clients with a user name and a password, None for none.
        websockets: For browsers, also with a user name and a password, None for none.
        bind: Address of all of them; empty for every address of the machine.
    """

    certificates: int = 8883
    passwords: int | None = None
    websockets: int | None = None
    bind: str = ""


class Listener(NamedTuple):
    """A listener of a configuration.

    Attributes:
        kind: The field of `Ports` that it counts for.
        port: Where it listens.
        bind: Its address; empty for every address of the machine.
    """

    kind: str
    port: int
    bind: str


_HEAD = """\
# Mosquitto for mqinfer with TLS and access rules, written by `mqinfer broker init`, and yours to change.
# Start it with: mqinfer broker --config THIS_FOLDER
# Paths are relative, so the folder can be moved. Mosquitto takes them from where it is started, so without mqinfer:
# cd THIS_FOLDER && mosquitto -c mosquitto.conf
"""
_ACCESS = """\
# --- Who may what -------------------------------------------------------------------------------------------------

# Every client needs a certificate or a password, and has the rights that its section of the access file names.
# Mosquitto reads both files again on SIGHUP. 2.1 calls the two options deprecated, and accepts them.
allow_anonymous false
acl_file acl
password_file passwords

"""
_LISTENERS = """\
# --- Listeners ----------------------------------------------------------------------------------------------------

# TLS 1.2 with the suites under `ciphers`, or TLS 1.3. For websockets Mosquitto ignores tls_version, and these suites,
# which TLS 1.0 and 1.1 don't have, are what refuses those.

# Clients that show a certificate of the private authority; its common name is the user name, whatever CONNECT has.
listener {port}
cafile ca.crt
require_certificate true
use_identity_as_username true
crlfile revoked.pem
{tls}"""
_PASSWORDS = """
# Clients with a user name and a password.
listener {port}
{tls}"""
_WEBSOCKETS = """
# Browsers, with a user name and a password; MQTT over WebSockets.
listener {port}
protocol websockets
{tls}"""
_TLS = """\
ciphers ECDHE+AESGCM:ECDHE+CHACHA20
certfile broker.crt
keyfile broker.key
tls_version tlsv1.2
max_connections 1000
max_qos 1
max_topic_alias 0
"""
_GUARD = """
# The guard of `mqinfer broker`, on this machine alone; nobody else has a certificate of this authority.
listener {port} 127.0.0.1
cafile {authority}
require_certificate true
use_identity_as_username true
{tls}"""


def render(port: int, *, websockets_port: int | None = None, bind: str = "127.0.0.1") -> str:
    """Return the configuration of a Mosquitto without logins.

    Args:
        port: Where it listens for MQTT over TCP.
        websockets_port: Where it listens for browsers, or None.
        bind: Address of both listeners. Whoever reaches it may connect.
    """
    text = files("mqinfer.broker.mosquitto").joinpath("mosquitto.conf").read_text(encoding="utf-8")
    head, mark, browsers = text.replace(_OPEN_TCP, f"listener {port} {bind}\n").partition(_BROWSERS)
    if websockets_port is None:
        return head
    return head + mark + browsers.replace(_OPEN_WEBSOCKETS, f"listener {websockets_port} {bind}\n")


def render_secure(ports: Ports) -> str:
    """Return the configuration of a Mosquitto with TLS, logins and access rules, whose files lie beside it.

    Args:
        ports: Where it listens.
    """
    limits = _FIRST_LINES.sub("", _OPEN_SECTION.sub("", render(ports.certificates)))
    wanted = (_LISTENERS, ports.certificates), (_PASSWORDS, ports.passwords), (_WEBSOCKETS, ports.websockets)
    listeners = "".join(
        text.format(port=f"{port} {ports.bind}".rstrip(), tls=_TLS) for text, port in wanted if port is not None
    )
    # Listeners come last: what follows one belongs to it.
    return _HEAD + limits.rstrip("\n") + "\n\n" + _ACCESS + listeners


def with_place(text: str, folder: Path) -> str:
    """Return a configuration for a Mosquitto that is started anywhere: relative paths become those in a folder.

    Raises:
        ConfigError: The folder's path has control characters.
    """
    place = folder.resolve()
    if not str(place).isprintable():
        raise ConfigError(
            f"the folder {str(place)!r} has control characters, which a configuration can't hold; choose another path"
        )
    return FILES.sub(lambda found: f"{found[1]} {place / found[2]}", text)


def guard_listener(folder: Path, port: int, authority: Path) -> str:
    """Return a listener for the guard alone, to be put behind the configuration of a secured Mosquitto.

    Args:
        folder: Of the broker's certificate.
        port: Where it listens.
        authority: The certificate of the authority that has signed the guard's.
    """
    return with_place(_GUARD.format(port=port, authority=authority, tls=_TLS), folder)


def ports_of(text: str) -> Ports:
    """Return where a configuration listens: the first port of each kind.

    Raises:
        ConfigError: It listens nowhere.
    """
    found = listeners_of(text)
    first = {kind: port for kind, port, _ in reversed(found)}
    certificates = first.get("certificates", found[0].port)
    return Ports(certificates, first.get("passwords"), first.get("websockets"), found[0].bind)


def listeners_of(text: str) -> list[Listener]:
    """Return all listeners of a configuration.

    Raises:
        ConfigError: There are none.
    """
    heads = list(_LISTENER.finditer(text))
    if not heads:
        raise ConfigError("the configuration has no line such as: listener 8883")
    ends = [*(head.start() for head in heads[1:]), len(text)]
    return [
        Listener(_kind(text[head.end() : end].splitlines()), int(head[1]), head[2].strip())
        for head, end in zip(heads, ends, strict=True)
    ]


def _kind(options: list[str]) -> str:
    """Return the field of `Ports` that a listener with these options counts for."""
    if "require_certificate true" in options:
        return "certificates"
    return "websockets" if "protocol websockets" in options else "passwords"


def with_port(text: str, port: int) -> str:
    """Return a configuration with another port for certificates."""
    return re.sub(rf"^listener {ports_of(text).certificates}\b", f"listener {port}", text, count=1, flags=re.MULTILINE)
