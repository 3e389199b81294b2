"""What freed payloads cost: page faults, counted in a process of its own, since the settings are a process's."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

from mqinfer.broker.malloc import KEEP_FREED, keep_freed_memory

FAULTS = """
import resource, sys
from mqinfer.broker.malloc import keep_freed_memory
if sys.argv[1] == "keep":
    keep_freed_memory()
faults = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    bytes(bytearray(4_000_000))
before = faults()
for _ in range(10):
    bytearray(4_000_000)[::4096] = b"x" * 977
print(faults() - before)
"""


def faults(how: str, **settings: str) -> int:
    """Count the page faults of ten payloads of 4 MB, one after the other: a thousand each where it is new memory."""
    environment = {name: value for name, value in os.environ.items() if name not in KEEP_FREED} | settings
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how], env=environment, capture_output=True, text=True, check=True
    )
    return int(done.stdout)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_memory_of_payloads_is_used_again() -> None:
    """Kept memory costs no page faults; what the environment sets counts more."""
    assert faults("keep") < 1000
    assert faults("keep", MALLOC_MMAP_THRESHOLD_="100000") > 9000


def test_another_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `mallopt` nothing happens."""
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    keep_freed_memory()


RETURNED = """
from pathlib import Path
from mqinfer.broker.malloc import keep_freed_memory, return_freed_memory
keep_freed_memory()
resident = lambda: int(Path("/proc/self/statm").read_text().split()[1]) * 4096
blocks = [bytearray(b"x" * 4_000_000) for _ in range(30)]
full = resident()
del blocks[:-1]
return_freed_memory()
print(full - resident())
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library has no malloc_trim")
def test_memory_of_payloads_is_returned() -> None:
    """Also what lies below a block in use: of 120 MB, of which the last 4 stay, at least 80 are the system's again."""
    done = subprocess.run([sys.executable, "-c", RETURNED], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 80_000_000
