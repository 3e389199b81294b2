"""Memory and use of the machine's NVIDIA GPUs, and of each process there, by the driver's library, where there is one.

https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from mqinfer.metrics.samples import Samples

_LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES = 96
_TOO_SMALL = 7
"""`NVML_ERROR_INSUFFICIENT_SIZE`, the reply to a question for the number of entries."""
_MORE = 16
_UNKNOWN = 2**64 - 1
"""`NVML_VALUE_NOT_AVAILABLE`."""
_RECENT_S = 2.0


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


class _Process(ctypes.Structure):
    """`nvmlProcessInfo_t` of the functions that end in `_v3`."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("used", ctypes.c_ulonglong),
        ("gpu_instance", ctypes.c_uint),
        ("compute_instance", ctypes.c_uint),
    )


class _Use(ctypes.Structure):
    """`nvmlProcessUtilizationSample_t`."""

    _fields_ = (
        ("pid", ctypes.c_uint),
        ("at", ctypes.c_ulonglong),
        ("sm", ctypes.c_uint),
        ("memory", ctypes.c_uint),
        ("encoder", ctypes.c_uint),
        ("decoder", ctypes.c_uint),
    )


class GpuUse(NamedTuple):
    """What a process uses of all GPUs together: memory in bytes, and the share of the time, of one GPU."""

    memory_bytes: int = 0
    ratio: float = 0.0


def gpu_use() -> dict[int, GpuUse]:
    """Return what each process uses of the GPUs, by its id; in a container the driver may state those of the host."""
    library = _library()
    found: dict[int, GpuUse] = {}
    for handle, _ in _devices(library) if library else ():
        for each in _listed(library.nvmlDeviceGetComputeRunningProcesses_v3, handle, _Process):
            before = found.get(each.pid, GpuUse())
            used = 0 if each.used == _UNKNOWN else each.used
            found[each.pid] = before._replace(memory_bytes=before.memory_bytes + used)
        newest = {each.pid: each for each in sorted(_uses(library, handle), key=lambda each: int(each.at))}
        for pid in newest.keys() & found.keys():
            found[pid] = found[pid]._replace(ratio=found[pid].ratio + newest[pid].sm / 100)
    return found


def _uses(library: Any, handle: ctypes.c_void_p) -> list[Any]:
    """Return the driver's samples of the last seconds."""
    since = int((time.time() - _RECENT_S) * 1e6)

    def ask(of: ctypes.c_void_p, count: Any, into: Any) -> int:
        return int(library.nvmlDeviceGetProcessUtilization(of, into, count, ctypes.c_ulonglong(since)))

    return _listed(ask, handle, _Use)


def _listed(ask: Callable[..., int], handle: ctypes.c_void_p, kind: type[ctypes.Structure]) -> list[Any]:
    """Return what the driver lists: it is asked for the number first; nothing where it can't tell."""
    count = ctypes.c_uint(0)
    if ask(handle, ctypes.byref(count), None) != _TOO_SMALL:
        return []
    count.value += _MORE  # that have come meanwhile
    entries = (kind * count.value)()
    return [] if ask(handle, ctypes.byref(count), entries) else list(entries[: count.value])


def add_gpus(samples: Samples) -> None:
    """Add memory and use of each GPU; what the driver does not tell is left out."""
    library = _library()
    if library is None:
        return
    for handle, uuid in _devices(library):
        memory, use = _Memory(), _Utilization()
        if not library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory)):
            samples.gauge("gpu_memory_total_bytes", "Memory of the GPU.", memory.total, gpu_uuid=uuid)
            samples.gauge("gpu_memory_used_bytes", "Memory of the GPU in use.", memory.used, gpu_uuid=uuid)
        if not library.nvmlDeviceGetUtilizationRates(handle, ctypes.byref(use)):
            text = "Share of the time in which the GPU ran something."
            samples.gauge("gpu_utilization_ratio", text, use.gpu / 100, gpu_uuid=uuid)


@cache
def _library() -> Any:
    """Return the library, once it is initialised; None where it is not there, or knows no GPU."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        return None if library.nvmlInit_v2() else library
    except (OSError, AttributeError):
        return None


def _devices(library: Any) -> list[tuple[ctypes.c_void_p, str]]:
    count = ctypes.c_uint()
    if library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    found = []
    for index in range(count.value):
        handle, uuid = ctypes.c_void_p(), ctypes.create_string_buffer(_UUID_BYTES)
        if not library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)):
            known = not library.nvmlDeviceGetUUID(handle, uuid, _UUID_BYTES)
            found.append((handle, uuid.value.decode() if known else str(index)))
    return found
