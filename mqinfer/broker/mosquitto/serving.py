"""Runs a Mosquitto with its guard, and reloads a secured one when a client was added or removed."""

from __future__ import annotations

import logging
import os
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple, Self

from mqinfer.broker.mosquitto.access import guarded_filters, guarded_rules, most_connections
from mqinfer.broker.mosquitto.certificates import make_guard
from mqinfer.broker.mosquitto.configuration import guard_listener, with_place, with_port
from mqinfer.broker.mosquitto.connection import Door
from mqinfer.broker.mosquitto.copies import Copies
from mqinfer.broker.mosquitto.expiry import warnings
from mqinfer.broker.mosquitto.files import read_file, write_file
from mqinfer.broker.mosquitto.folder import BrokerFolder
from mqinfer.broker.mosquitto.guard import Guard, GuardedBroker, OpenSite
from mqinfer.broker.mosquitto.server import MosquittoServer, free_port
from mqinfer.logs import log_once
from mqinfer.protocol.errors import ConfigError, MissingExtra, MqinferError

_log = logging.getLogger("mqinfer.broker")

_LOOK_S = 0.5
_WARNED_EVERY = timedelta(days=1)
_LOOPBACK = "127.0.0.1"


def secured(
    folder: BrokerFolder,
    port: int | None = None,
    *,
    adapt: Callable[[str], str] = str,
    on_line: Callable[[str], None] | None = None,
    before_reload: Callable[[], bool] = lambda: True,
) -> MosquittoServer:
    """Return the Mosquitto of a folder, which still has to be started.

    Args:
        folder: As `BrokerFolder.init` has made it.
        port: Where it listens for certificates, in place of the configuration's port; 0 for a free one.
        adapt: Returns the configuration to use in place of the folder's.
        on_line: Called with each line of its log.
        before_reload: Called before it reads its files again; returns whether there is anything new.

    Raises:
        ConfigError: The folder has no configuration.
    """
    ports = folder.ports()
    return MosquittoServer(
        ports.certificates if port is None else port or None,
        bind=ports.bind or "0.0.0.0",  # noqa: S104 - that is what no address means, and every client needs a login
        configuration=lambda chosen: adapt(with_port(with_place(folder.configuration(), folder.path), chosen)),
        secure=True,
        on_line=on_line,
        before_reload=before_reload,
    )


@contextmanager
def guarded(
    folder: BrokerFolder, port: int | None = None, on_line: Callable[[str], None] | None = None
) -> Iterator[MosquittoServer]:
    """Run the Mosquitto of a folder with a guard, which has a listener and an authority of its own.

    Args:
        folder: As `BrokerFolder.init` has made it.
        port: As for `secured`.
        on_line: Called with each line of its log.

    Raises:
        ConfigError: The folder has no configuration or no access rules.
    """
    with TemporaryDirectory(prefix="mqinfer-guard-") as place:
        rules = _Rules(folder, Path(place))
        try:
            setup = _GuardSetup.make(folder, Path(place))
        except MissingExtra as missing:
            _log.warning("the broker runs without a guard: %s", missing)
            with secured(folder, port, adapt=rules.adapt, on_line=on_line, before_reload=rules.write) as server:
                yield server
            return
        guard = Guard(lambda: setup.door, rules, lambda more: server.extend_memory(more))  # noqa: PLW0108 - made below

        def observe(line: str) -> None:
            guard.observe(line)
            if on_line is not None:
                on_line(line)

        server = secured(
            folder,
            port,
            adapt=lambda text: rules.adapt(text + setup.listener),
            on_line=observe,
            before_reload=rules.write,
        )
        rules.apply = server.reload
        with server, guard:
            yield server


@contextmanager
def guarded_open(server: MosquittoServer) -> Iterator[MosquittoServer]:
    """Run a Mosquitto without logins, with a guard that removes what nobody may retain, and does no more."""
    with server, Guard(lambda: Door(server.host, server.port), OpenSite(), server.extend_memory):
        yield server


class _GuardSetup(NamedTuple):
    """How the guard gets in: a listener that admits the certificates of a new authority alone, and one of those."""

    door: Door
    listener: str

    @classmethod
    def make(cls, folder: BrokerFolder, place: Path) -> Self:
        authority, login, _ = make_guard(place)
        tls = ssl.create_default_context(cadata=read_file(folder.path / "ca.crt").decode())
        tls.load_cert_chain(login)
        login.unlink()
        port = free_port(_LOOPBACK)
        return cls(Door(_LOOPBACK, port, tls), guard_listener(folder.path, port, authority))


class _Rules:
    """The access rules that Mosquitto reads: those of the folder, with the guard's, without those who are suspended.

    A `GuardedSite`. It is a copy, as of all files, so the folder holds nothing but what its owner has written.
    """

    def __init__(self, folder: BrokerFolder, place: Path) -> None:
        self._source, self._copy, self._copies = folder.path.resolve() / "acl", place / "acl", Copies(place)
        self._suspended: frozenset[str] = frozenset()
        self._written: tuple[bytes, frozenset[str]] | None = None  # the rules, and who was left out
        self._lock = threading.Lock()
        self.apply: Callable[[], object] = self.write
        if os.geteuid() == 0:  # Mosquitto becomes another user
            place.chmod(0o755)
        read_file(self._source)
        self.write()

    def adapt(self, configuration: str) -> str:
        """Return a configuration that names the copies."""
        with self._lock:
            adapted = self._copies.adapt(configuration, {self._source: self._copy})
        if f"acl_file {self._copy}\n" not in adapted:
            _log.warning(
                "the configuration has no line acl_file %s, so the broker's guard can do nothing", self._source
            )
        return adapted

    def write(self) -> bool:
        """Write the copies anew of what has changed; returns whether anything has."""
        with self._lock:
            is_new = self._copies.take()
            wanted = self._copies.add("acl_file", self._source), self._suspended
            if wanted == self._written:
                return is_new
            text = wanted[0].decode(errors="surrogateescape")
            copy = guarded_rules(text, self._suspended).encode(errors="surrogateescape")
            try:
                write_file(self._copy, copy, for_broker=True)
            except MqinferError as error:
                if not self._written:
                    raise
                log_once(_log, logging.ERROR, "the access rules stay as they were: %s", error)
                return is_new
            self._written, self._site = wanted, GuardedBroker(guarded_filters(text), most_connections(text))
            return True

    def read(self) -> GuardedBroker:
        """Return what holds now; what held before, while the rules are not whole."""
        self.apply()
        return self._site

    def suspend(self, users: frozenset[str]) -> None:
        """Take the rights of these users away, and give all others theirs."""
        self._suspended = users
        self.apply()


def keep_current(
    server: MosquittoServer,
    folder: BrokerFolder,
    stop: threading.Event,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
    *,
    every_s: float = _LOOK_S,
) -> None:
    """Have a Mosquitto look for changes of its rules, passwords or certificate, until `stop` is set.

    At the start and once a day it logs a warning for each certificate that has ended or will soon.
    """
    due = now()
    while not stop.wait(every_s):
        if now() >= due:
            due += _WARNED_EVERY
            _warn(folder, now())
        server.reload()


def _warn(folder: BrokerFolder, now: datetime) -> None:
    try:
        for warning in warnings(folder, now):
            _log.warning("%s", warning)
    except ConfigError as error:  # the broker runs without: a file of the folder was moved away
        _log.warning("when certificates end is not known: %s", error)
