"""Observes a scenario: threads beside it, and the open files of processes (Linux)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


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
