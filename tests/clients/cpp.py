"""The C++ client and its programs, built with CMake once for a machine: the folder is kept outside the tree."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import gettempdir

import pytest

from tests.clients.pages import ROOT

CLIENT = ROOT / "clients" / "cpp"
_NEEDED = {
    "libmosquitto": "libmosquitto-dev",
    "nlohmann_json": "nlohmann-json3-dev",
    "liblz4": "liblz4-dev",
    "libxxhash": "libxxhash-dev",
}
_PROGRAMS = {"cmake": "cmake", "c++": "g++", "pkg-config": "pkg-config", "make": "make"}
_QUICK = ("-DCMAKE_CXX_FLAGS=-O0", "-DCMAKE_UNITY_BUILD=ON")
"""Sources are joined, so that templates are compiled once. benchmarks/cpp builds each by itself, as a user does."""
_TIMEOUT_S = 900
"""Of a build: a busy machine needs minutes for what takes an idle one 20 s."""


def missing() -> list[str]:
    """Return the system's packages that a build needs and does not find."""
    found = [package for program, package in _PROGRAMS.items() if shutil.which(program) is None]
    if "pkg-config" in found:
        return found
    exists = [("pkg-config", "--exists", module) for module in _NEEDED]
    return found + [_NEEDED[each[2]] for each in exists if subprocess.run(each, check=False).returncode]


def run(*command: str | Path) -> str:
    """Run a step of a build; fail with what it printed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return done.stdout


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keep other processes of the tests from a folder."""
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def built(sanitizers: str, *targets: str) -> Path:
    """Build the client with its tests, and return the folder of the programs.

    Args:
        sanitizers: For the compiler's `-fsanitize`.
        targets: What to build.
    """
    if lacking := missing():
        pytest.skip(f"the C++ client needs {' '.join(lacking)}: apt-get install {' '.join(lacking)}")
    of_this_tree = hashlib.sha256(f"{ROOT}{sanitizers}{os.getuid()}".encode()).hexdigest()[:12]
    folder = Path(gettempdir()) / f"mqinfer-cpp-{of_this_tree}"
    with locked(folder):
        run("cmake", "-S", CLIENT, "-B", folder, "-DMQINFER_TESTS=ON", f"-DMQINFER_SANITIZE={sanitizers}", *_QUICK)
        run("cmake", "--build", folder, "--parallel", "2", "--target", *targets)
    return folder / "tests"


def counters(line: str) -> dict[str, int]:
    """Return the numbers of a line such as `ok=3 error=0`."""
    return {name: int(value) for name, _, value in (each.partition("=") for each in line.split())}
