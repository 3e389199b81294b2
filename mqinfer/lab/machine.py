"""Describes the machine that a report's figures were measured on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["describe_machine"]

_PACKAGES = ("tensorflow-cpu", "onnxruntime", "openvino", "nncf")
_FLAGS = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni")


def describe_machine() -> dict[str, str]:
    """Return processor, its low-precision units, usable cores, and the versions of the engines."""
    lines = _processor()
    flags = lines.get("flags", "").split()
    return {
        "processor": lines.get("model name", platform.machine()),
        "units": " ".join(flag for flag in _FLAGS if flag in flags) or "none for low precision",
        "cores": str(len(os.sched_getaffinity(0))),
        **{package: _version(package) for package in _PACKAGES},
    }


def _processor() -> dict[str, str]:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        return {}
    pairs = (line.partition(":") for line in text.splitlines())
    return {key.strip(): value.strip() for key, _, value in pairs}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
