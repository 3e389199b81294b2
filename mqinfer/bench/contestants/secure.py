"""A Mosquitto with a certificate authority of its own, for the contestant over TLS."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from mqinfer.bench.contestants.ways import Target
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.mosquitto import BrokerFolder, Ports, Role
from mqinfer.broker.mosquitto.serving import secured


@contextmanager
def secure_broker(vehicles: int) -> Iterator[tuple[Target, int, BrokerAddress]]:
    """Run it as `mqinfer broker init` sets it up: both sides show certificates, and access rules are on.

    Yields what a client asks, the broker's process, and its address with a worker's certificate.

    Args:
        vehicles: How many have a certificate.

    Raises:
        MissingExtra: `cryptography` is not installed.
    """
    with TemporaryDirectory(prefix="mqinfer-bench-tls-") as place:
        Path(place).chmod(0o755)  # Mosquitto, started by root, reads as a user of its own; private files stay private
        folder = BrokerFolder(Path(place) / "broker")
        folder.init(ports=Ports(bind="127.0.0.1"))
        cars = [folder.add(Role.VEHICLE, f"bench-{each}") for each in range(vehicles)]
        worker = folder.add(Role.WORKER, f"bench-{os.getpid()}")
        logins = tuple((car.name, str(car.ca_file), str(car.cert_file), str(car.key_file)) for car in cars)
        with secured(folder, 0) as server:
            address = BrokerAddress.parse(
                server.url, ca_file=worker.ca_file, cert_file=worker.cert_file, key_file=worker.key_file
            )
            yield Target("mqtt", server.port, logins=logins), server.pid, address
