"""Runs the Mosquitto of a secured folder, and reloads it when a client was added or removed."""

from __future__ import annotations

import threading
from pathlib import Path

from mqinfer.broker.mosquitto.configuration import with_port
from mqinfer.broker.mosquitto.folder import BrokerFolder
from mqinfer.broker.mosquitto.server import MosquittoServer

__all__ = ["keep_current", "secured"]

_LOOK_S = 0.5


def secured(folder: BrokerFolder, port: int | None = None) -> MosquittoServer:
    """Return the Mosquitto of a folder, which still has to be started.

    Args:
        folder: As `BrokerFolder.init` has made it.
        port: Where it listens for certificates, in place of the configuration's port; 0 for a free one.

    Raises:
        ConfigError: The folder has no configuration.
    """
    first = folder.listeners()[0]
    return MosquittoServer(
        first.port if port is None else port or None,
        bind=first.bind or "0.0.0.0",  # noqa: S104 - that is what no address means, and every client needs a login
        configuration=lambda chosen: with_port(folder.configuration(), chosen),
        secure=True,
    )


def keep_current(server: MosquittoServer, folder: BrokerFolder, stop: threading.Event) -> None:
    """Reload a Mosquitto whenever its rules, passwords or certificate change, until `stop` is set."""
    before: list[tuple[int, int]] = []  # so it reads them again at once: they may have changed since it started
    while not stop.wait(_LOOK_S):
        after = _stamps(folder.watched)
        if after != before:
            before = after
            server.reload()


def _stamps(paths: tuple[Path, ...]) -> list[tuple[int, int]]:
    return [(status.st_mtime_ns, status.st_ino) for status in map(Path.stat, paths)]
