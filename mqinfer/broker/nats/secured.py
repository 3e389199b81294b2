"""Runs nats-server with the certificates and access rules of a broker's folder, the same that Mosquitto uses."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from mqinfer.broker.address import TlsOptions
from mqinfer.broker.mosquitto.access import GUARD, rules_of, sections
from mqinfer.broker.mosquitto.certificates import make_guard
from mqinfer.broker.mosquitto.files import read_file
from mqinfer.broker.mosquitto.folder import BrokerFolder
from mqinfer.broker.mosquitto.register import parse_register
from mqinfer.broker.nats.configuration import Security
from mqinfer.broker.nats.server import NatsServers
from mqinfer.broker.roles import Role
from mqinfer.logs import log_once
from mqinfer.protocol.errors import ConfigError, MqinferError

_log = logging.getLogger("mqinfer.broker")

_LOOK_S = 0.5
_ALONE = (Role.DASHBOARD, Role.OPERATOR)


@contextmanager
def secured(
    folder: BrokerFolder, port: int | None, nodes: int = 1, on_line: Callable[[str], None] | None = None
) -> Iterator[NatsServers]:
    """Run the servers of a folder.

    Args:
        folder: As `BrokerFolder.init` has made it.
        port: As of `NatsServers`.
        nodes: Likewise.
        on_line: Likewise.

    Raises:
        ConfigError: The folder lacks something, or has a rule that NATS can't keep.
    """
    with TemporaryDirectory(prefix="mqinfer-guard-") as place:
        authorities, login, pinned = make_guard(Path(place), read_file(folder.path / "ca.crt"))
        servers = NatsServers(
            port,
            nodes=nodes,
            bind=folder.ports().bind or "0.0.0.0",  # noqa: S104 - that is what no address means, and all need a login
            security=lambda: _security(folder.path.resolve(), authorities, pinned),
            login=TlsOptions(folder.path / "ca.crt", login),
            on_line=on_line,
        )
        with servers:
            yield servers


def _security(path: Path, authorities: Path, pinned: str) -> Security:
    issued = parse_register(read_file(path / "certificates").decode())
    if old := sorted({each.name for each in issued if not (each.key or each.revoked)}):
        log_once(_log, logging.WARNING, "NATS refuses certificates of %s; run mqinfer broker renew", ", ".join(old))
    acl = read_file(path / "acl").decode()
    rules = rules_of(acl)
    if denied := [name for name, each in rules.items() if any(rule.startswith("deny ") for rule in each)]:
        raise ConfigError(f"{path / 'acl'}: NATS can't keep `topic deny`, as of {denied[0]}; grant the rest alone")
    return Security(
        certificate=path / "broker.crt",
        fingerprint=sha256(read_file(path / "broker.crt")).hexdigest(),
        key=path / "broker.key",
        authority=authorities,
        pinned=[pinned, *(each.key for each in issued if each.key and not each.revoked)],
        rules=rules,
        alone=[name for name, role in sections(acl).items() if role in _ALONE],
        guard=GUARD,
    )


def keep_running(servers: NatsServers, stop: threading.Event, *, every_s: float = _LOOK_S) -> int | None:
    """Start servers of a cluster again that end, and have all take up changes of a folder, until `stop` is set.

    Returns:
        The status of a server that was the only one, or None.
    """
    while not stop.wait(every_s):
        if (status := servers.revive()) is not None:
            return status
        try:
            servers.reload()
        except MqinferError as error:
            log_once(_log, logging.ERROR, "the access rules stay as they were: %s", error)
    return None
