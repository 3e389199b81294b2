"""How much memory this process holds, and the most that it ever held, as Linux counts it (proc_pid_status(5))."""

from __future__ import annotations

import contextlib
from pathlib import Path

__all__ = ["forget_peak", "peak_bytes", "resident_bytes"]

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


def _field(name: str) -> int:
    try:
        lines = _STATUS.read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    sizes = (line.split()[1] for line in lines if line.startswith(name))
    return int(next(sizes, "0")) * 1024
