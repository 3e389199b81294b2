"""A cluster over machines: each nats-server in a network namespace of its own, with a small disk of its own."""

from __future__ import annotations

import os
import subprocess
from contextlib import ExitStack, closing, suppress
from itertools import count
from pathlib import Path
from tempfile import mkdtemp
from typing import Self

import pytest

from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.mosquitto.server import ServerRun
from mqinfer.broker.nats.configuration import Node, render
from mqinfer.broker.nats.link import NatsLink
from mqinfer.broker.nats.server import find_nats_server
from mqinfer.protocol.errors import BrokerUnreachable
from tests.patience import wait_until

__all__ = ["Machines"]

_COUNT, _PORT, _CLUSTER_PORT, _DISK = 3, 18_850, 18_860, 16 << 20
_READY_S = 60.0
_turns = count()


def _run(*words: str, check: bool = True) -> None:
    subprocess.run(words, check=check, capture_output=True)


class Machines:
    """Three servers with the product's configuration, which find each other by the network; a context manager.

    The test's own processes are a machine of the same network. Skips the test where that can't be had.
    """

    def __init__(self) -> None:
        self._stack = ExitStack()
        turn = next(_turns)  # a namespace that ends takes its devices with it some time later
        number = f"{os.getpid() % 10_000}-{turn}"
        self._bridge = f"mqbr{number}"
        self._spaces = [f"mqinfer-{number}-{each}" for each in range(_COUNT)]
        self._devices = [f"mqn{number}-{each}" for each in range(_COUNT)]
        self._network = f"10.{232 + turn % 20}.{os.getpid() % 250}"
        self._folder = Path()
        self.runs: list[ServerRun] = []

    def address(self, number: int) -> str:
        """Return where a server listens."""
        return f"{self._network}.{number + 1}:{_PORT + number}"

    def url(self, *order: int) -> str:
        """Return the URL of the servers, in an order."""
        return "nats://" + ",".join(map(self.address, order or range(_COUNT)))

    def separate(self, number: int, *, ends: bool = False) -> None:
        """Have a server and the others no longer reach each other, while clients reach all, or end that."""
        for other in {*range(_COUNT)} - {number}:
            place = f"{self._network}.{other + 1}/32"
            _run("ip", "-n", self._spaces[number], "route", "del" if ends else "add", "blackhole", place)

    def unplug(self, number: int, *, ends: bool = False) -> None:
        """Take a server off the network without a FIN, or end that."""
        _run("ip", "link", "set", self._devices[number], "up" if ends else "down")

    def fill(self, number: int) -> None:
        """Leave no byte on a server's disk."""
        with suppress(OSError), (self._folder / f"node{number}" / "rest").open("wb", buffering=0) as file:
            while True:
                file.write(bytes(4096))

    def _build(self) -> None:
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        self._stack.callback(_run, "ip", "link", "del", self._bridge, check=False)
        _run("ip", "addr", "add", f"{self._network}.254/24", "dev", self._bridge)
        _run("ip", "link", "set", self._bridge, "up")
        for number, (space, device) in enumerate(zip(self._spaces, self._devices, strict=True)):
            _run("ip", "netns", "add", space)
            self._stack.callback(_run, "ip", "netns", "del", space, check=False)
            _run("ip", "link", "add", device, "type", "veth", "peer", "name", "eth0", "netns", space)
            self._stack.callback(_run, "ip", "link", "del", device, check=False)
            _run("ip", "link", "set", device, "master", self._bridge, "up")
            _run("ip", "-n", space, "addr", "add", f"{self._network}.{number + 1}/24", "dev", "eth0")
            _run("ip", "-n", space, "link", "set", "eth0", "up")
            store = self._folder / f"node{number}"
            store.mkdir()
            _run("mount", "-t", "tmpfs", "-o", f"size={_DISK}", "mqinfer-test", str(store))
            self._stack.callback(_run, "umount", "--lazy", str(store))

    def _start(self) -> None:
        hosts = [f"{self._network}.{each + 1}" for each in range(_COUNT)]
        nodes = [
            Node(f"node{each}", host, _PORT + each, self._folder / f"node{each}", _CLUSTER_PORT + each)
            for each, host in enumerate(hosts)
        ]
        for number, node in enumerate(nodes):
            text = render(node, nodes, "secret")
            for each, host in zip(nodes, hosts, strict=True):
                text = text.replace(f"127.0.0.1:{each.cluster_port}", f"{host}:{each.cluster_port}")
            program = self._folder / f"nats-server-{number}"
            program.write_text(f'#!/bin/sh\nexec ip netns exec {self._spaces[number]} {find_nats_server()} "$@"\n')
            program.chmod(0o700)
            run = ServerRun(str(program), text, "Server is ready", None)
            self._stack.callback(run.end, kill=True)
            self.runs.append(run)
        for run in self.runs:
            assert run.wait_until_ready(_READY_S), run.log()
        wait_until(self._serves)

    def _serves(self) -> bool:
        """Return whether the servers have a leader, and the stream."""
        with closing(NatsLink(BrokerAddress.parse(self.url()), client_id="start")) as link:
            try:
                link.open(_READY_S)
            except BrokerUnreachable:
                return False
        return True

    def __enter__(self) -> Self:
        self._folder = Path(mkdtemp(prefix="mqinfer-machines-"))
        self._stack.callback(_run, "rm", "-r", str(self._folder))
        try:
            try:
                self._build()
            except (OSError, subprocess.CalledProcessError) as error:
                pytest.skip(f"no machines here: {error}")
            self._start()
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()
