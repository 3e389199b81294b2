"""A Mosquitto with a certificate authority of its own, for the contestants over TLS, with certificates for gRPC too."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from mqinfer.bench.contestants.over_mqtt import BrokerAccess
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.mosquitto import BrokerFolder, Login, Ports, Role
from mqinfer.broker.mosquitto.serving import secured


class SecureBroker:
    """Both sides show certificates, and access rules are on, as `mqinfer broker init` sets it up; a context manager.

    Raises:
        MissingExtra: `cryptography` is not installed.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:
            place = Path(self._stack.enter_context(TemporaryDirectory(prefix="mqinfer-bench-tls-")))
            place.chmod(0o755)  # Mosquitto, started by root, reads as a user of its own; private files stay private
            self._folder = BrokerFolder(place / "broker")
            self._folder.init(ports=Ports(bind="127.0.0.1"))
            self.login = self._folder.add(Role.VEHICLE, "bench")
            self._worker = self._folder.add(Role.WORKER, f"bench-{os.getpid()}")
            self._server = self._stack.enter_context(secured(self._folder, 0))
            self._stack = self._stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def route(self) -> BrokerAccess:
        """How client and worker reach the broker."""
        return BrokerAccess(
            self._address(self.login),
            self._address(self._worker),
            self._server.pid,
            client_name=self.login.name,
            worker_name=f"{self._worker.name}.0",  # as the first process of a worker is called
        )

    @property
    def server_login(self) -> Login:
        """The broker's own certificate, which the gRPC server shows too."""
        folder = self._folder.path
        return Login("server", folder / "ca.crt", folder / "broker.crt", folder / "broker.key")

    def _address(self, login: Login) -> BrokerAddress:
        return BrokerAddress.parse(
            self._server.url, ca_file=login.ca_file, cert_file=login.cert_file, key_file=login.key_file
        )
