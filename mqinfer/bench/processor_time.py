"""The processor time and the peak memory of other processes, as Linux counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mqinfer.lab.profiling.memory import peak_bytes, reset_peak
from mqinfer.metrics.process_usage import read_usage
from mqinfer.protocol.errors import ConfigError


def seconds_of(pid: int) -> float:
    """Return the user and system time of all threads of a process, in seconds, to a hundredth of a second.

    Raises:
        ConfigError: There is no such process, or this system has no /proc.
    """
    found = read_usage(pid)
    if found is None:
        raise ConfigError(
            f"the processor time of process {pid} can't be read; the bench needs Linux, and processes that outlive it"
        )
    return found.cpu_s


class CpuMeter:
    """Measures how much processor time a stretch of work took, and its peak memory, by role.

    Args:
        pids: The processes of each role.
    """

    def __init__(self, pids: Mapping[str, Sequence[int]]) -> None:
        self._pids = pids
        for pid in (pid for found in pids.values() for pid in found):
            reset_peak(pid)
        self._before = self._read()

    def spent(self) -> dict[str, float]:
        """Return the seconds since the meter was made, by role."""
        return {role: seconds - self._before[role] for role, seconds in self._read().items()}

    def peaks(self) -> dict[str, int]:
        """Return the peak memory in bytes since then, by role."""
        return {role: sum(map(peak_bytes, pids)) for role, pids in self._pids.items()}

    def _read(self) -> dict[str, float]:
        return {role: sum(map(seconds_of, pids)) for role, pids in self._pids.items()}
