"""Current and peak memory of processes.

Main memory comes from Linux (proc_pid_status(5)), GPU memory from the driver.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from mqinfer.metrics.nvml import GpuUse, gpu_use


def resident_bytes(pid: int | None = None) -> int:
    """Return the resident memory of a process in bytes; 0 where it is gone, and on systems without /proc.

    Args:
        pid: The process; None for this one.
    """
    return _field("VmRSS:", pid)


def peak_bytes(pid: int | None = None) -> int:
    """Return the peak memory in bytes, of a process since `reset_peak`; 0 as `resident_bytes`.

    Args:
        pid: The process; None for this one.
    """
    return _field("VmHWM:", pid)


def reset_peak(pid: int | None = None) -> None:
    """Reset the peak to the current memory; no effect where the system does not allow it.

    Args:
        pid: The process; None for this one.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid or 'self'}/clear_refs").write_text("5", encoding="ascii")  # proc_pid_clear_refs(5)


def gpu_bytes() -> int:
    """Return the GPU memory of this process in bytes; 0 where the driver does not report it, as in many containers."""
    return gpu_use().get(os.getpid(), GpuUse()).memory_bytes


def _field(name: str, pid: int | None) -> int:
    try:
        lines = Path(f"/proc/{pid or 'self'}/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return 0
    sizes = (line.split()[1] for line in lines if line.startswith(name))
    return int(next(sizes, "0")) * 1024
