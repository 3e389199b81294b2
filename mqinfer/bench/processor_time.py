"""The processor time of this and other processes, as Linux counts it."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

from mqinfer.protocol.errors import ConfigError

_TICKS = os.sysconf("SC_CLK_TCK")


def seconds_of(pid: int) -> float:
    """Return the user and system time of all threads of a process, in seconds, to a hundredth of a second.

    Fields 14 and 15 of /proc/PID/stat (proc_pid_stat(5)); the name before them may hold spaces and brackets.

    Raises:
        ConfigError: There is no such process, or this system has no /proc.
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(
            f"the processor time of process {pid} can't be read: {error.strerror or error}; the bench needs Linux, "
            "and processes that outlive it"
        ) from error
    fields = line.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class CpuMeter:
    """Measures how much processor time a stretch of work took, by role; this process is the `client`.

    Args:
        pids: The other processes, by role.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = dict(self._read())

    def spent(self) -> dict[str, float]:
        """Return the seconds since the meter was made, by role."""
        return {role: seconds - self._before[role] for role, seconds in self._read()}

    def _read(self) -> Iterable[tuple[str, float]]:
        yield "client", time.process_time()
        for role, pid in self._pids.items():
            yield role, seconds_of(pid)
