"""Observes a scenario: threads beside it, and the peak memory and open files of processes (Linux)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

from mqinfer.lab.profiling.memory import resident_bytes

__all__ = ["Peak", "beside", "open_files"]

_EVERY_S = 0.05


@contextmanager
def beside(work: Callable[[], object]) -> Iterator[threading.Thread]:
    """Run a function on a thread while the body runs; wait for both."""
    thread = threading.Thread(target=work, name="beside", daemon=True)
    thread.start()
    try:
        yield thread
    finally:
        thread.join()


def open_files(pid: int) -> int:
    """Return the number of open files of a process; 0 where it is gone."""
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:
        return 0


class Peak:
    """The peak of the resident memory of processes while the body runs; a context manager.

    Args:
        pids: Of the processes.
    """

    def __init__(self, pids: Iterable[int]) -> None:
        self._peaks = {pid: resident_bytes(pid) for pid in pids}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="peak", daemon=True)

    def __getitem__(self, pid: int) -> int:
        """Return a process's peak in bytes."""
        return self._peaks[pid]

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(_EVERY_S):
            for pid, most in self._peaks.items():
                self._peaks[pid] = max(most, resident_bytes(pid))
