"""What a measurement ran on, and the processor time of this and other processes, as Linux counts it."""

from __future__ import annotations

import os
import platform
import sysconfig
import time
from collections.abc import Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from mqinfer.protocol.errors import ConfigError

__all__ = ["CpuMeter", "describe_interpreter", "describe_machine", "seconds_of"]

_PACKAGES = ("mqinfer", "numpy", "onnxruntime", "grpcio", "paho-mqtt")
_TICKS = os.sysconf("SC_CLK_TCK")


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


def seconds_of(pid: int) -> float:
    """Return the user and system time of all threads of a process, in seconds, to a hundredth of a second.

    Fields 14 and 15 of /proc/PID/stat (proc_pid_stat(5)); the name before them may hold spaces and brackets.

    Raises:
        ConfigError: There is no such process, or this system has no /proc.
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ConfigError(
            f"the processor time of process {pid} can't be read: {error.strerror or error}; the bench needs Linux, "
            "and processes that outlive it"
        ) from error
    fields = line.rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


class CpuMeter:
    """Measures how much processor time a stretch of work took, by role; this process is the `client`.

    Args:
        pids: The other processes, by role.
    """

    def __init__(self, pids: Mapping[str, int]) -> None:
        self._pids = dict(pids)
        self._before = dict(self._read())

    def spent(self) -> dict[str, float]:
        """Return the seconds since the meter was made, by role."""
        return {role: seconds - self._before[role] for role, seconds in self._read()}

    def _read(self) -> Iterable[tuple[str, float]]:
        yield "client", time.process_time()
        for role, pid in self._pids.items():
            yield role, seconds_of(pid)
