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
from mqinfer.broker.mosquitto.access import GUARD, rules_of
from mqinfer.broker.mosquitto.certificates import make_guard
from mqinfer.broker.mosquitto.files import read_file
from mqinfer.broker.mosquitto.folder import BrokerFolder
from mqinfer.broker.mosquitto.register import parse_register
from mqinfer.broker.nats.configuration import Security
from mqinfer.broker.nats.server import NatsServers
from mqinfer.logs import log_once
from mqinfer.protocol.errors import MqinferError

_log = logging.getLogger("mqinfer.broker")

_LOOK_S = 0.5


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
        ConfigError: The folder lacks something.
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
    return Security(
        certificate=path / "broker.crt",
        fingerprint=sha256(read_file(path / "broker.crt")).hexdigest(),
        key=path / "broker.key",
        authority=authorities,
        pinned=[pinned, *(each.key for each in issued if each.key and not each.revoked)],
        rules=rules_of(read_file(path / "acl").decode()),
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
