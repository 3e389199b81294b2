"""What processes use of their machine: CPU time, memory, GPU; read from outside, so also of a busy one."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType

from msgspec import Struct

from mqinfer.metrics.nvml import GpuUse, gpu_use
from mqinfer.protocol.types import Count, Finite

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_USER, _SYSTEM, _RESIDENT = 11, 12, 21
"""Fields of /proc/PID/stat behind the name of the program: CPU time in ticks, memory in pages."""


class ProcessUsage(Struct, frozen=True):
    """What a process uses; models that share one have the same.

    Attributes:
        pid: Its id.
        cpu_s: CPU time since its start, in seconds.
        memory_bytes: Resident memory.
        gpu_memory_bytes: Memory on all GPUs; 0 where the driver does not tell.
        gpu_ratio: Share of the time, of one GPU, in which it ran something there.
    """

    pid: int = 0
    cpu_s: Finite = 0.0
    memory_bytes: Count = 0
    gpu_memory_bytes: Count = 0
    gpu_ratio: Finite = 0.0


def usage(pids: Mapping[str, int]) -> dict[str, ProcessUsage]:
    """Return what processes use, by their names; those that have ended are missing, and all on systems without /proc.

    Args:
        pids: Their ids, by name; several names may stand for one process.
    """
    on_gpu = gpu_use() if pids else {}
    read = {pid: found for pid in set(pids.values()) if (found := read_usage(pid, on_gpu))}
    return {name: read[pid] for name, pid in pids.items() if pid in read}


def read_usage(pid: int, on_gpu: Mapping[int, GpuUse] = MappingProxyType({})) -> ProcessUsage | None:
    """Return what a process uses; None where it has ended, and on systems without /proc.

    Args:
        pid: Its id.
        on_gpu: What each process uses of the GPUs.
    """
    with suppress(OSError, ValueError, IndexError):  # it has ended
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(") ")[2].split()
        ticks = int(fields[_USER]) + int(fields[_SYSTEM])
        gpu = on_gpu.get(pid, GpuUse())
        memory = int(fields[_RESIDENT]) * _PAGE_BYTES
        return ProcessUsage(pid, ticks / _TICKS_PER_S, memory, gpu.memory_bytes, gpu.ratio)
    return None
