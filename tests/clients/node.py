"""Programs in node that use the JavaScript client, compiled into a folder of their own."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
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


def node(path: Path, *arguments: str) -> list[str]:
    """Return the command that runs a program."""
    return [find_program("node"), str(path), *arguments]
