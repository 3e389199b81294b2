"""The machine that a measurement runs on."""

from __future__ import annotations

import os
import platform
import sysconfig
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

__all__ = ["describe_interpreter", "describe_machine"]

_PACKAGES = ("mqinfer", "numpy", "onnxruntime", "grpcio", "paho-mqtt")


def describe_machine() -> dict[str, str]:
    """Return the processor, its cores, the load before the run, and the versions that matter."""
    load = os.getloadavg()[0]
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0))),
        "load before the run": f"{load:.2f}",
        "system": f"{platform.system()} {platform.release()}",
        "python": describe_interpreter(),
        **{package: _version(package) for package in _PACKAGES},
    }


def describe_interpreter() -> str:
    """Return this interpreter's version, and whether it was built with profile-guided optimisation.

    Debian and Ubuntu optimise their builds by profile but leave the option out of what the build records; their
    interpreters are known by the install scheme that they add. `scripts/setup` chooses by the same rule.
    """
    flags = " ".join(str(sysconfig.get_config_var(name)) for name in ("CONFIG_ARGS", "PY_CFLAGS"))
    if "--enable-optimizations" in flags or "-fprofile-use" in flags:
        build = "optimised by profile"
    elif "deb_system" in sysconfig.get_scheme_names():
        build = "optimised by profile, as Debian builds it"
    else:
        build = "not optimised by profile"
    return f"{platform.python_version()} ({build})"


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
