"""The servers of the contestants for one workload, each started when a contestant first needs it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Self, TypeVar

from msgspec.structs import replace

from mqinfer.bench.contestants import script, servers
from mqinfer.bench.contestants.triton import find_packages, triton_server
from mqinfer.bench.contestants.ways import Target
from mqinfer.bench.processes import Program, worker_processes, worker_specs
from mqinfer.bench.workloads import Workload
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.mosquitto import BrokerFolder, Ports, Role
from mqinfer.broker.mosquitto.serving import secured
from mqinfer.broker.private import PrivateBroker
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import ConfigError

_T = TypeVar("_T")
Pids = Mapping[str, Sequence[int]]
"""Processes beside the client's by their role: `broker`, `gateway`, `worker`."""


class Site:
    """Use it as a context manager, which stops what was started.

    Args:
        workload: Whose model is served.
        workers: How many of mqinfer's workers serve it.
        vehicles: Of the largest turn.
        triton: Environment with nvidia-pytriton; None for the usual one.
    """

    def __init__(self, workload: Workload, workers: int = 1, vehicles: int = 1, triton: Path | None = None) -> None:
        self.workload = workload
        self._workers, self._vehicles, self._triton = workers, vehicles, triton
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.folder = Path(self._stack.enter_context(TemporaryDirectory(prefix="mqinfer-bench-")))
        self.workload.save(self.folder)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def use(self, started: AbstractContextManager[_T]) -> _T:
        """Start something that ends with the site."""
        return self._stack.enter_context(started)

    def serve(self, workload: Workload, broker: BrokerAddress, **options: Any) -> Sequence[int]:
        """Start the workers of a workload's model, with these options; return their processes."""
        name = f"bench-{os.getpid()}"  # that of the certificate
        if workload is not self.workload:
            name += f"-{workload.model}"
        version = Repository(workload.path.parents[2]).find(workload.model)
        specs = worker_specs(version, broker, self._workers, WorkerOptions(name, **options), "cpu")
        return list(self.use(worker_processes(specs)).pids.values())

    @cached_property
    def mqtt(self) -> tuple[Target, Pids]:
        """A Mosquitto, with workers behind it."""
        workers = self.serve(self.workload, BrokerAddress.parse(self.broker.url))
        return Target("mqtt", self.broker.port), {"broker": [self.broker.pid], "worker": workers}

    @cached_property
    def secure(self) -> tuple[Target, Pids]:
        """The same over TLS, as `mqinfer broker init` sets it up: both sides show certificates, access rules are on."""
        place = Path(self.use(TemporaryDirectory(prefix="mqinfer-bench-tls-")))
        place.chmod(0o755)  # Mosquitto, started by root, reads as a user of its own; private files stay private
        folder = BrokerFolder(place / "broker")
        folder.init(ports=Ports(bind="127.0.0.1"))
        cars = [folder.add(Role.VEHICLE, f"bench-{each}") for each in range(self._vehicles + 1)]
        worker = folder.add(Role.WORKER, f"bench-{os.getpid()}")
        logins = tuple((car.name, str(car.ca_file), str(car.cert_file), str(car.key_file)) for car in cars)
        server = self.use(secured(folder, 0))
        address = BrokerAddress.parse(
            server.url, ca_file=worker.ca_file, cert_file=worker.cert_file, key_file=worker.key_file
        )
        pids = {"broker": [server.pid], "worker": self.serve(self.workload, address)}
        return Target("mqtt", server.port, logins=logins), pids

    @cached_property
    def gateway(self) -> tuple[Mapping[str, int], Pids]:
        """Ports of a gateway's fronts, before the same workers."""
        _, pids = self.mqtt
        program = self.use(closing(Program(servers.serve_gateway, self.broker.url)))
        return json.loads(program.first_line), {"gateway": [program.pid], **pids}

    @cached_property
    def bare(self) -> tuple[Target, Pids]:
        """The bare server."""
        program = self.use(closing(Program(servers.serve_bare, self.folder)))
        return Target("bare", int(program.first_line)), {"worker": [program.pid]}

    @cached_property
    def script(self) -> tuple[Target, Pids]:
        """The same Mosquitto, with the script's worker behind it."""
        program = self.use(closing(Program(script.serve, self.broker.port, self.folder)))
        return Target("script", self.broker.port), {"broker": [self.broker.pid], "worker": [program.pid]}

    @cached_property
    def triton(self) -> tuple[Target, Pids]:
        """Triton."""
        packages = find_packages(self._triton)
        port, pids = self.use(triton_server(packages, self.workload, self.folder))
        return Target("triton", port, packages=str(packages)), {"worker": pids}

    @cached_property
    def broker(self) -> PrivateBroker:
        """A Mosquitto."""
        return self.use(PrivateBroker())


@dataclass(frozen=True, slots=True)
class Contestant:
    """A way to a model.

    Attributes:
        name: On the command line and in the tables.
        enter: Returns what its client asks at a site, and the processes that take part, which it starts.
        shares: Whether more of mqinfer's workers are more of its own.
        picture: Whether it only carries pictures.
    """

    name: str
    enter: Callable[[Site], tuple[Target, Pids]]
    shares: bool = False
    picture: bool = False


def _encoded(encoding: str) -> Callable[[Site], tuple[Target, Pids]]:
    return lambda site: (replace(site.mqtt[0], encoding=encoding), site.mqtt[1])


def _front(kind: str, port: str) -> Callable[[Site], tuple[Target, Pids]]:
    return lambda site: (Target(kind, site.gateway[0][port]), site.gateway[1])


_LISTED = (
    Contestant("bare-grpc", lambda site: site.bare),
    Contestant("in-process", lambda _: (Target("in-process"), {})),
    Contestant("mqtt", lambda site: site.mqtt, shares=True),
    Contestant("mqtt-lz4", _encoded("lz4"), shares=True),
    Contestant("mqtt-jpeg", _encoded("jpeg:90"), shares=True, picture=True),
    Contestant("mqtt-h264", _encoded("h264"), shares=True, picture=True),
    Contestant("mqtt-tls", lambda site: site.secure, shares=True),
    Contestant("grpc", _front("grpc", "grpc"), shares=True),
    Contestant("rest-binary", _front("rest-binary", "rest"), shares=True),
    Contestant("rest-json", _front("rest-json", "rest"), shares=True),
    Contestant("tfs-grpc", _front("tfs-grpc", "tfs-grpc"), shares=True),
    Contestant("tfs-rest", _front("tfs-rest", "tfs-rest"), shares=True),
    Contestant("script", lambda site: site.script),
    Contestant("triton", lambda site: site.triton),
)
CONTESTANTS: Mapping[str, Contestant] = {each.name: each for each in _LISTED}


def chosen(names: Sequence[str]) -> list[Contestant]:
    """Return contestants by name; all where there are no names.

    Raises:
        ConfigError: There is no such contestant.
    """
    if unknown := [name for name in names if name not in CONTESTANTS]:
        raise ConfigError(
            f"no contestant is called {', '.join(map(repr, unknown))}; there are {', '.join(CONTESTANTS)}"
        )
    return [CONTESTANTS[name] for name in dict.fromkeys(names)] or list(CONTESTANTS.values())
