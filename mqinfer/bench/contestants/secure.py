"""A Mosquitto with a certificate authority of its own, for the contestant over TLS."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from mqinfer.bench.contestants.ways import Target
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.mosquitto import BrokerFolder, Ports, Role
from mqinfer.broker.mosquitto.serving import secured


class SecureBroker:
    """Both sides show certificates, and access rules are on, as `mqinfer broker init` sets it up; a context manager.

    Args:
        vehicles: How many have a certificate.

    Raises:
        MissingExtra: `cryptography` is not installed.
    """

    def __init__(self, vehicles: int) -> None:
        self._vehicles = vehicles
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            place = Path(self._stack.enter_context(TemporaryDirectory(prefix="mqinfer-bench-tls-")))
            place.chmod(0o755)  # Mosquitto, started by root, reads as a user of its own; private files stay private
            self._folder = BrokerFolder(place / "broker")
            self._folder.init(ports=Ports(bind="127.0.0.1"))
            self._logins = [self._folder.add(Role.VEHICLE, f"bench-{each}") for each in range(self._vehicles)]
            self._worker = self._folder.add(Role.WORKER, f"bench-{os.getpid()}")
            self._server = self._stack.enter_context(secured(self._folder, 0))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def pid(self) -> int:
        """The broker's process."""
        return self._server.pid

    @property
    def target(self) -> Target:
        """What a client asks."""
        logins = [(each.name, str(each.ca_file), str(each.cert_file), str(each.key_file)) for each in self._logins]
        return Target("mqtt", self._server.port, logins=tuple(logins))

    @property
    def worker_address(self) -> BrokerAddress:
        """The broker's address, with a worker's certificate."""
        login = self._worker
        return BrokerAddress.parse(
            self._server.url, ca_file=login.ca_file, cert_file=login.cert_file, key_file=login.key_file
        )
