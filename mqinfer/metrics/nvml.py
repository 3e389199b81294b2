"""Memory and use of the machine's NVIDIA GPUs, by the driver's own library; nothing where there is none.

https://docs.nvidia.com/deploy/nvml-api/
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from mqinfer.metrics.samples import Samples

_LIBRARY = "libnvidia-ml.so.1"
_UUID_BYTES = 96


class _Memory(ctypes.Structure):
    """`nvmlMemory_t`."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _Utilization(ctypes.Structure):
    """`nvmlUtilization_t`."""

    _fields_ = (("gpu", ctypes.c_uint), ("memory", ctypes.c_uint))


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
