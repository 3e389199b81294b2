"""What a measurement ran on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["describe_machine"]

_PACKAGES = ("mqinfer", "numpy", "onnxruntime", "grpcio", "paho-mqtt")


def describe_machine() -> dict[str, str]:
    """Name the processor, its cores, the load before the run, and the versions that matter."""
    load = os.getloadavg()[0]
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load before the run": f"{load:.2f}",
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        **{package: _version(package) for package in _PACKAGES},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
