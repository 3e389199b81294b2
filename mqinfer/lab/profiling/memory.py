"""How much memory this process holds, and the most that it ever held.

Linux counts what is in main memory (proc_pid_status(5)), the driver what is on GPUs.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

__all__ = ["forget_peak", "gpu_bytes", "peak_bytes", "resident_bytes"]

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


def resident_bytes() -> int:
    """Count what is in memory now; 0 where the system does not tell."""
    return _field("VmRSS:")


def peak_bytes() -> int:
    """Count the most that was ever in memory, or since `forget_peak`; 0 where the system does not tell."""
    return _field("VmHWM:")


def forget_peak() -> None:
    """Begin to watch the peak anew; where the system does not allow that, the peak stays that of the whole life."""
    with contextlib.suppress(OSError):
        _CLEAR.write_text("5")  # proc_pid_clear_refs(5): the peak becomes what is resident now


def gpu_bytes() -> int:
    """Count what this process holds on GPUs; 0 where the driver does not tell, as within many containers."""
    query = ["nvidia-smi", "--query-compute-apps=pid,used_gpu_memory", "--format=csv,noheader,nounits"]
    try:
        told = subprocess.run(query, capture_output=True, text=True, timeout=10, check=True).stdout  # noqa: S603 - fixed
    except (OSError, subprocess.SubprocessError):
        return 0
    rows = [[cell.strip() for cell in line.split(",")] for line in told.splitlines()]
    return sum(int(used) << 20 for pid, used in rows if pid == str(os.getpid()) and used.isdecimal())


def _field(name: str) -> int:
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    sizes = (line.split()[1] for line in lines if line.startswith(name))
    return int(next(sizes, "0")) * 1024
