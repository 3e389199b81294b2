"""Programs in node that use the JavaScript client, compiled into a folder of their own, and workers as processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.clients.pages import ROOT
from tests.programs import find_program

_TSC = ROOT / "node_modules" / ".bin" / "tsc"
_CLIENT = ROOT / "clients" / "js"
_TIMEOUT_S = 300


@contextmanager
def compiled() -> Iterator[Path]:
    """Compile the client and its programs."""
    (_CLIENT / "dist").mkdir(exist_ok=True)  # node finds the packages from here, and git ignores it
    with TemporaryDirectory(dir=_CLIENT / "dist", prefix="live-") as folder:
        command = [find_program("node"), str(_TSC), "-p", str(_CLIENT), "--outDir", folder]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
        assert done.returncode == 0, done.stdout[-4000:]
        yield Path(folder)


def example(folder: Path, name: str) -> Path:
    """Return an example as a program that uses the compiled client instead of an installed one."""
    return program(folder, name, (_CLIENT / "examples" / name).read_text(encoding="utf-8"))


def program(folder: Path, name: str, source: str) -> Path:
    """Write a program that uses the compiled client instead of an installed one."""
    written = folder / name
    written.write_text(source.replace('"mqinfer-client"', '"./src/index.js"'), encoding="utf-8")
    return written


@contextmanager
def node(path: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program, whose output the test reads; it is ended with the test, whatever it does."""
    command = [find_program("node"), str(path), *arguments]
    pipe = subprocess.PIPE
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def output(path: Path, *arguments: str) -> str:
    """Return what a program prints; fail with its errors where it fails."""
    with node(path, *arguments) as process:
        out, errors = process.communicate(timeout=_TIMEOUT_S)
        assert process.returncode == 0, errors[-4000:]
        assert errors == ""
        return out


class WorkerProcess:
    """`mqinfer worker`, with its processes, as a group that can be killed."""

    def __init__(self, url: str, root: str, repository: Path, name: str, log: Path) -> None:
        arguments = {"broker": url, "root": root, "repository": repository, "name": name}
        options = [text for option, value in arguments.items() for text in (f"--{option}", str(value))]
        self._command: Sequence[str] = [sys.executable, "-m", "mqinfer", "worker", *options]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; the clients wait until it serves."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def kill(self) -> None:
        """Kill it and its processes at once, if it runs."""
        process, self._process = self._process, None
        if process is not None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def stop(self) -> None:
        """End it as an operator does, if it runs."""
        if self._process is not None:
            self._process.send_signal(signal.SIGTERM)
            self._process.wait(60)
            self._process = None


@contextmanager
def worker(url: str, root: str, repository: Path, name: str, log: Path) -> Iterator[WorkerProcess]:
    """Run a worker; it may be killed and started again meanwhile."""
    process = WorkerProcess(url, root, repository, name, log)
    process.start()
    try:
        yield process
        process.stop()
    finally:
        process.kill()
