"""Figures of GPUs, read from a small library with the functions of the driver's own."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mqinfer.metrics import nvml
from mqinfer.metrics.samples import Samples

LIBRARY = r"""
#include <stdio.h>
#include <string.h>
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned int gpu, memory; } Utilization;
typedef struct { unsigned int pid; unsigned long long used; unsigned int instance, compute; } Process;
typedef struct { unsigned int pid; unsigned long long at; unsigned int sm, memory, encoder, decoder; } Use;
static int devices[3];
int nvmlInit_v2(void) { return INIT; }
int nvmlDeviceGetCount_v2(unsigned int *count) { *count = 3; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned int index, void **device) { *device = &devices[index]; return index == 1; }
int nvmlDeviceGetUUID(void *device, char *uuid, unsigned int length) {
    if (device != &devices[0]) return 3;
    snprintf(uuid, length, "GPU-%d-of-%u", 0, length);
    return 0;
}
int nvmlDeviceGetMemoryInfo(void *device, Memory *memory) {
    memory->total = 80ULL << 30; memory->free = 79ULL << 30; memory->used = 1ULL << 30;
    return 0;
}
int nvmlDeviceGetUtilizationRates(void *device, Utilization *use) {
    use->gpu = 37; use->memory = 5;
    return device != &devices[0];
}
int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned int *count, Process *found) {
    unsigned int given = *count;
    *count = device == &devices[0] ? 2 : 1;
    if (given < *count) return 7;
    for (unsigned int each = 0; each < *count; each++) {
        found[each].pid = 40 + each;
        found[each].used = each ? ~0ULL : 1ULL << 30;
    }
    return 0;
}
int nvmlDeviceGetProcessUtilization(void *device, Use *found, unsigned int *count, unsigned long long since) {
    if (device != &devices[0]) return 3;
    unsigned int given = *count;
    *count = 3;
    if (given < 3) return 7;
    for (unsigned int each = 0; each < 3; each++) {
        found[each].pid = each < 2 ? 40 : 99;
        found[each].at = 9 - each;
        found[each].sm = 62 - each;
    }
    return since == 0;
}
"""


@pytest.fixture
def build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Build the library and put it in the driver's place: `build(0)`, or `build(9)` for one that finds no driver."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler (cc) on this machine")

    def make(status: int) -> None:
        (tmp_path / "nvml.c").write_text(LIBRARY)
        library = tmp_path / "libnvidia-ml.so.1"
        subprocess.run(
            [compiler, f"-DINIT={status}", "-shared", "-fPIC", "-o", library, tmp_path / "nvml.c"], check=True
        )
        monkeypatch.setattr(nvml, "_LIBRARY", str(library))

    nvml._library.cache_clear()
    yield make
    nvml._library.cache_clear()


def read() -> dict[tuple[str, str], float]:
    """Return each sample by name and GPU."""
    samples = Samples()
    nvml.add_gpus(samples)
    return {
        (each.name, each.labels["gpu_uuid"]): each.value for family in samples.families() for each in family.samples
    }


def test_each_process_has_its_memory_and_its_use(build: Callable[[int], None]) -> None:
    """Memory is that of all GPUs, and its use that of the newest sample; what the driver does not tell is nothing."""
    build(0)
    assert nvml.gpu_use() == {40: nvml.GpuUse(2 << 30, 0.62), 41: nvml.GpuUse(0, 0.0)}


def test_each_gpu_has_its_memory_and_its_use(build: Callable[[int], None]) -> None:
    """A GPU without UUID goes by its number; one that can't be opened, and what is not supported, is left out."""
    build(0)
    assert read() == {
        ("mqinfer_gpu_memory_total_bytes", "GPU-0-of-96"): 80 << 30,
        ("mqinfer_gpu_memory_used_bytes", "GPU-0-of-96"): 1 << 30,
        ("mqinfer_gpu_utilization_ratio", "GPU-0-of-96"): 0.37,
        ("mqinfer_gpu_memory_total_bytes", "2"): 80 << 30,
        ("mqinfer_gpu_memory_used_bytes", "2"): 1 << 30,
    }


def test_a_library_without_a_driver_adds_nothing(build: Callable[[int], None]) -> None:
    """It is there, and fails to initialise."""
    build(9)
    assert read() == {}


def test_no_library_adds_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """As on most machines."""
    monkeypatch.setattr(nvml, "_LIBRARY", str(tmp_path / "missing.so"))
    nvml._library.cache_clear()
    assert read() == {}
    nvml._library.cache_clear()
