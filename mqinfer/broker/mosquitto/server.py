"""A private Mosquitto: started on a free port, watched through its log, and gone when its owner is done."""

from __future__ import annotations

import logging
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Self

from mqinfer.broker.malloc import KEEP_FREED
from mqinfer.broker.mosquitto.configuration import render
from mqinfer.protocol.errors import BrokerUnreachable, ConfigError, MissingExtra

_log = logging.getLogger("mqinfer.broker")

_ATTEMPTS = 20
_LOG_LINES = 10_000
_TERMINATIONS = 5  # Mosquitto 2.0 can miss a SIGTERM that comes just before it sleeps: it is sent again each second
_READY = " running"
_LOOPBACK = {"127.0.0.1", "::1", "localhost"}
_WARDEN = "read -r _; kill $0; sleep 2; kill -9 $0"
"""Ends Mosquitto when this process has ended, however it did: its standard input closes then.

A signal at the parent's end (PR_SET_PDEATHSIG) comes when a thread ends, and is forgotten by a Mosquitto that becomes
another user.
"""
_OPENED = re.compile(r"Opening \S+ listen socket on port ([0-9]+)")
_PORT_IN_USE = re.compile(r"Address already in use|Unable to create websockets listener")
_ENDS_THE_LIVING = "mosquitto version 2.0.21 "  # its first line of log
_MEMORY_LIMIT = re.compile(r"^([ \t]*memory_limit[ \t]+)0*([1-9][0-9]*)", re.MULTILINE)
_MAX_KEEPALIVE = re.compile(r"^[ \t]*max_keepalive[ \t]+0*[1-9]", re.MULTILINE)


def find_mosquitto() -> str:
    """Return the path of the `mosquitto` program.

    Raises:
        MissingExtra: It is not installed.
    """
    found = shutil.which(
        "mosquitto", path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"])
    )
    if found is None:
        raise MissingExtra(
            "Mosquitto is not installed; run: apt-get install mosquitto (or use --local, which needs no broker)"
        )
    return found


def keepalive_warning(log: str, configuration: str) -> str | None:
    """Return a warning where a configuration makes this Mosquitto end connections that are alive.

    Source: https://github.com/eclipse-mosquitto/mosquitto/issues/3226, of 2.0.21 alone.

    Args:
        log: What it logged when it started.
        configuration: The text that it was started with.
    """
    if _ENDS_THE_LIVING not in log or not _MAX_KEEPALIVE.search(configuration):
        return None
    return (
        "Mosquitto 2.0.21 ends connections at random whose keep-alive is equal to max_keepalive, and with 60 new ones "
        "too; remove max_keepalive from its configuration, or install 2.0.22 or later"
    )


class MosquittoServer:
    """A Mosquitto process, as a context manager.

    Args:
        port: Where to listen; None takes a free port.
        bind: Address to listen on. Anything but loopback opens the broker to everyone who reaches it.
        configuration: Returns the configuration for a port.
        secure: Whether that one requires TLS and logins.
        on_line: Called with each line of its log, on the thread that reads it.
        before_reload: Called before it reads its files again; returns whether there is anything new.
    """

    def __init__(  # noqa: PLR0913 - the choices that an owner has
        self,
        port: int | None = None,
        *,
        bind: str = "127.0.0.1",
        configuration: Callable[[int], str] | None = None,
        secure: bool = False,
        on_line: Callable[[str], None] | None = None,
        before_reload: Callable[[], bool] = lambda: True,
    ) -> None:
        self._secure = secure
        self._on_line = on_line
        self._before_reload = before_reload
        self._wanted_port = port
        self._bind = bind
        self._configuration = configuration or (lambda port: render(port, bind=bind))
        self._run: ServerRun | None = None
        self._port = port or 0

    @property
    def port(self) -> int:
        """The port it listens on."""
        return self._port

    @property
    def host(self) -> str:
        """The address under which clients on this machine find it."""
        return "127.0.0.1" if self._bind in {"0.0.0.0", "::"} else self._bind  # noqa: S104 - a comparison binds nothing

    @property
    def url(self) -> str:
        """Where clients on this machine find it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mqtt{'s' if self._secure else ''}://{host}:{self._port}"

    @property
    def pid(self) -> int:
        """Its process."""
        return self._running().process.pid

    def start(self, timeout: float = 10.0) -> None:
        """Start it and wait until it accepts connections; on the port it had before, if it ran before.

        Args:
            timeout: In seconds.

        Raises:
            MissingExtra: Mosquitto is not installed.
            ConfigError: The wanted port is taken.
            BrokerUnreachable: It ended, or was not ready in time; the message repeats its log.
        """
        program = find_mosquitto()
        if self._bind not in _LOOPBACK and not self._secure:
            _log.warning("Mosquitto listens on %s without passwords: anyone who reaches it may use it", self._bind)
        for _ in range(_ATTEMPTS):
            self._port = self._wanted_port or free_port(self._bind)
            configuration = self._configuration(self._port)
            run = ServerRun(program, configuration, _READY, self._on_line, is_public=True)
            if run.wait_until_ready(timeout):
                self._run, self._wanted_port = run, self._port
                if warning := keepalive_warning(run.log(), configuration):
                    _log.warning("%s", warning)
                _log.info("Mosquitto is ready at %s (pid %d)", self.url, run.process.pid)
                return
            run.end(kill=True)
            self._explain(run.log())

    def _explain(self, log: str) -> None:
        """Raise why a start failed; return where another free port may help."""
        if not _PORT_IN_USE.search(log):
            raise BrokerUnreachable(f"Mosquitto did not start on {self._bind}:{self._port}; its log:\n{log.strip()}")
        opened = _OPENED.findall(log)
        if opened and int(opened[-1]) != self._port:
            raise ConfigError(
                f"port {opened[-1]} is taken; choose another one for it (mosquitto.conf, --websockets-port)"
            )
        if self._wanted_port is not None:
            raise ConfigError(f"port {self._port} of {self._bind} is taken; choose another one with --port")

    def wait(self) -> int:
        """Wait until it ends; returns its exit status."""
        return self._running().process.wait()

    def reload(self) -> None:
        """Make it read its files again, if there is anything new in them."""
        if self._before_reload():
            self._running().process.send_signal(signal.SIGHUP)

    def extend_memory(self, more: int) -> None:
        """Allow so many bytes of memory more than its configuration states, until this is called again.

        Raises:
            OSError: The configuration can't be written.
        """
        self._running().extend_memory(more)

    def stop(self) -> None:
        """End it with SIGTERM: clients receive a DISCONNECT."""
        self._end(kill=False)

    def kill(self) -> None:
        """End it with SIGKILL, as a crash would."""
        self._end(kill=True)

    def kill_at_once(self) -> None:
        """End it with SIGKILL and wait for nothing, for a process that ends itself."""
        if self._run is not None:
            self._run.process.kill()

    def _end(self, *, kill: bool) -> None:
        if self._run is not None:
            self._run.end(kill=kill)

    def log(self) -> str:
        """Return what it has logged, its last 10,000 lines at most."""
        return self._running().log()

    def _running(self) -> ServerRun:
        if self._run is None:
            raise BrokerUnreachable("this Mosquitto was not started")
        return self._run

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class ServerRun:
    """One process of a server, its configuration's folder, and the thread that reads its log.

    Args:
        program: The server's, which is started with `-c` and the path of its configuration.
        configuration: The text of it.
        ready: What ends the line that it logs once it accepts connections.
        on_line: Called with each line of its log.
        is_public: Whether the configuration holds no secret, so that all users of the machine may read it.
    """

    def __init__(
        self,
        program: str,
        configuration: str,
        ready: str,
        on_line: Callable[[str], None] | None,
        *,
        is_public: bool = False,
    ) -> None:
        self._ready_line, self._on_line = ready, on_line
        self._folder = TemporaryDirectory(prefix=f"mqinfer-{Path(program).name}-")
        self._configuration = configuration
        self._path = path = Path(self._folder.name, "server.conf")
        path.write_text(configuration, encoding="utf-8")
        if is_public and os.geteuid() == 0:  # Mosquitto becomes another user, who has to read it again on SIGHUP
            path.parent.chmod(0o755)
        self._lines: deque[str] = deque(maxlen=_LOG_LINES)
        self._decided = threading.Event()
        self._ready = False
        with _many_files():
            self.process = subprocess.Popen(  # noqa: S603 - the program was looked up, the path is ours
                [program, "-c", str(path)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="backslashreplace",  # Mosquitto cuts long lines, also in the middle of a client's letter
                env={**{name: str(size) for name, size in KEEP_FREED.items()}, **os.environ},
            )
        self._warden = subprocess.Popen(  # noqa: S603 - all of it is ours
            ["/bin/sh", "-c", _WARDEN, str(self.process.pid)], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        self._reader = threading.Thread(
            target=self._read, args=(self.process.stderr,), name="mqinfer-broker-log", daemon=True
        )
        self._reader.start()

    def _read(self, pipe: IO[str]) -> None:
        with pipe:
            for line in pipe:
                self._lines.append(line)
                if line.rstrip().endswith(self._ready_line):
                    self._ready = True
                    self._decided.set()
                self._pass_on(line)
        self._decided.set()

    def _pass_on(self, line: str) -> None:
        if self._on_line is not None:
            try:
                self._on_line(line)
            except Exception:  # noqa: BLE001 - a thread that ends here would leave the log unread
                _log.exception("the broker's log is no longer watched, the broker goes on")
                self._on_line = None

    def extend_memory(self, more: int) -> None:
        """Allow so many bytes more than the configuration states."""
        self.configure(_MEMORY_LIMIT.sub(lambda found: f"{found[1]}{int(found[2]) + more}", self._configuration))

    def configure(self, text: str) -> None:
        """Have it read another configuration."""
        new = self._path.with_suffix(".new")
        new.write_text(text, encoding="utf-8")
        new.replace(self._path)  # it may be read at any moment
        self.process.send_signal(signal.SIGHUP)

    def wait_until_ready(self, timeout: float) -> bool:
        """Wait until it accepts connections or has ended; return whether it does."""
        self._decided.wait(timeout)
        return self._ready

    def log(self) -> str:
        """Return what it has logged, the last 10,000 lines at most."""
        return "".join(self._lines.copy())

    def _has_ended(self, timeout: float) -> bool:
        try:
            self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def end(self, *, kill: bool) -> None:
        """End it with SIGTERM, or at once, and remove its folder."""
        for _ in range(0 if kill else _TERMINATIONS):
            self.process.terminate()
            if self._has_ended(1.0):
                break
        self.process.kill()  # does nothing where it has ended
        self.process.wait()
        self._warden.kill()  # before its input closes
        self._warden.communicate()
        self._reader.join()
        self._folder.cleanup()


@contextmanager
def _many_files() -> Iterator[None]:
    """Raise the limit of open files for a process that starts meanwhile, so that `max_connections` counts."""
    usual, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (usual, most))


def free_port(bind: str) -> int:
    """Return a port that is free now; it may be taken a moment later, which the caller finds in Mosquitto's log."""
    family = socket.AF_INET6 if ":" in bind else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((bind, 0))
        port: int = probe.getsockname()[1]
        return port
