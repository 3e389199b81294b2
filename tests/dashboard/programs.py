"""Runs mqinfer's own commands as processes around one Mosquitto."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Self
from urllib.error import URLError
from urllib.request import urlopen

from tests.ports import free_port

__all__ = ["Program", "Programs"]

_PATIENCE_S = 120.0


class Program:
    """One command, whose messages go to a file."""

    def __init__(self, name: str, log: Path, command: list[str], env: dict[str, str]) -> None:
        """Start it.

        Args:
            name: For messages.
            log: File of what it prints.
            command: Its words.
            env: Variables beside those of this process.
        """
        self.name = name
        self._log = log
        with log.open("wb") as file:
            # Of a session of its own, so that its processes end with it, also when it is killed.
            self.process = subprocess.Popen(
                command, stdout=file, stderr=subprocess.STDOUT, env=os.environ | env, start_new_session=True
            )

    def log(self) -> str:
        """Return what it has printed."""
        return self._log.read_text(errors="replace")

    def kill(self) -> None:
        """End it and its processes as a crash of the machine would."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self) -> None:
        """End it as Ctrl-C would, and what is left of it after a while."""
        if self.process.poll() is None:
            self.process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.kill()

    def check(self) -> None:
        """Assert that it still runs."""
        assert self.process.poll() is None, f"{self.name} ended with {self.process.returncode}:\n{self.log()[-4000:]}"


class Programs:
    """Starts commands that use one broker, and ends them all."""

    def __init__(self, folder: Path, broker: str) -> None:
        """Remember where.

        Args:
            folder: For their files.
            broker: URL of the broker that each gets unless it names one.
        """
        self.folder, self.broker = folder, broker
        self._stack = ExitStack()
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def start(self, command: str, *words: str | Path, broker: str | None = None, **env: str) -> Program:
        """Start `mqinfer COMMAND WORDS… --broker BROKER`.

        Args:
            command: The subcommand.
            *words: Its arguments and options.
            broker: Another broker's URL.
            **env: Variables of its environment.
        """
        self._count += 1
        whole = [sys.executable, "-m", "mqinfer", command, *map(str, words), "--broker", broker or self.broker]
        program = Program(f"mqinfer {command}", self.folder / f"{self._count}-{command}.log", whole, env)
        self._stack.callback(program.stop)
        return program

    def dashboard(
        self, *words: str | Path, scheme: str = "http", broker: str | None = None, **env: str
    ) -> tuple[str, Program]:
        """Start a dashboard, and return its address when it answers.

        Args:
            *words: Further options.
            scheme: `https` where the options have a certificate.
            broker: Another broker's URL.
            **env: Variables of its environment.
        """
        port = free_port()
        program = self.start("dashboard", "--port", str(port), *words, broker=broker, **env)
        url = f"{scheme}://127.0.0.1:{port}/"
        end = time.monotonic() + _PATIENCE_S
        while True:
            program.check()
            with suppress(URLError, ConnectionError), urlopen(f"{url}healthz", timeout=_PATIENCE_S):  # noqa: S310
                return url, program
            assert time.monotonic() < end, program.log()
            time.sleep(0.05)
