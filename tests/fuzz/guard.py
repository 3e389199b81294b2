"""What must hold for every input: no error but a typed one, no second of work, no memory beyond the target's bound.

Work is CPU time, so that a loaded machine makes no findings. Memory is what the process's peak rises by while the input
is read; and since the address space ends not far above what is there (`bound_address_space`), a claim of gigabytes that
are never touched is a MemoryError, and so a finding too.
"""

from __future__ import annotations

import resource
import time
import traceback
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

from mqinfer.protocol.errors import MqinferError

__all__ = ["Guard", "bound_address_space"]

_MOST_SECONDS = 1.0
_ROOM = 1 << 30


def bound_address_space() -> None:
    """Limit this process to 1 GiB of memory more than it has mapped."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + _ROOM
    resource.setrlimit(resource.RLIMIT_AS, (most, most))


class Guard:
    """Runs one target on inputs and keeps what breaks the rules: one input for each place in the code."""

    def __init__(self, run: Callable[[bytes], object], memory: int, findings: Path) -> None:
        """Prepare.

        Args:
            run: The target.
            memory: Bytes by which the peak of the process may rise within one input.
            findings: Folder for inputs; made when there is one.
        """
        self._run = run
        self._memory = memory
        self._findings = findings
        self._known: set[str] = set()

    def __call__(self, data: bytes) -> None:
        """Run the target once."""
        before, started = _peak(), time.thread_time()
        try:
            self._run(data)
        except MqinferError:
            pass
        except Exception as error:  # noqa: BLE001  that is what is looked for
            self._keep(data, type(error).__name__, "".join(traceback.format_exception(error, limit=-8)))
        spent, more = time.thread_time() - started, _peak() - before
        if spent > _MOST_SECONDS:
            self._keep(data, "Slow", f"took {spent:.2f} s of CPU time")
        if more > self._memory:
            self._keep(data, "Memory", f"raised the peak by {more >> 20} MiB; {self._memory >> 20} are allowed")

    def _keep(self, data: bytes, kind: str, story: str) -> None:
        place = "\n".join(line for line in story.splitlines() if line.lstrip().startswith("File"))
        if (kind + place) in self._known:
            return
        self._known.add(kind + place)
        self._findings.mkdir(parents=True, exist_ok=True)
        path = self._findings / f"{kind}-{sha256(data).hexdigest()[:12]}"
        path.write_bytes(data)
        path.with_suffix(".txt").write_text(story, "utf-8", errors="backslashreplace")


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
