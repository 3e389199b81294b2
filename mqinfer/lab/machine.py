"""The machine that a measurement runs on."""

from __future__ import annotations

import os
import platform
import sysconfig
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

ENGINES = ("tensorflow-cpu", "onnxruntime", "openvino", "nncf")
_PATH = ("mqinfer", "numpy", "onnxruntime", "grpcio", "paho-mqtt")
_FLAGS = ("amx_bf16", "amx_int8", "avx512_bf16", "avx512_vnni")


def describe_machine(packages: Sequence[str] = _PATH) -> dict[str, str]:
    """Return the processor, its low-precision units, usable cores, memory, load before the run, and versions.

    Args:
        packages: Those whose versions matter.
    """
    lines = _processor()
    flags = lines.get("flags", "").split()
    return {
        "processor": lines.get("model name", platform.machine()),
        "units": " ".join(flag for flag in _FLAGS if flag in flags) or "none for low precision",
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.1f} GiB",
        "load before the run": f"{os.getloadavg()[0]:.2f}",
        "system": f"{platform.system()} {platform.release()}",
        "python": describe_interpreter(),
        **{package: _version(package) for package in packages},
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
