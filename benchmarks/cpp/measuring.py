"""The C++ client beside the other ways to the same model; its load programs are contestants."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

from benchmarks.cpp import floor
from mqinfer.bench.contestants.site import CONTESTANTS, Contestant, Pids, Site
from mqinfer.bench.contestants.ways import Target
from mqinfer.bench.processes import Program
from mqinfer.protocol.datatypes import datatype_of
from mqinfer.protocol.errors import MissingExtra


def cpp_contestants(programs: Path) -> list[Contestant]:
    """Return the floor, both clients of mqinfer and both of Triton.

    Args:
        programs: Folder of the programs that benchmarks/cpp builds with CMake.
    """
    return [
        Contestant("floor", partial(_by, programs / "load-floor", _floor)),
        CONTESTANTS["mqtt"],
        Contestant("mqtt-cpp", partial(_by, programs / "load-mqinfer", lambda site: site.mqtt)),
        CONTESTANTS["triton"],
        Contestant("triton-cpp", partial(_by, programs / "load-triton", _triton)),
    ]


def _floor(site: Site) -> tuple[int, Pids]:
    worker = site.use(closing(Program(floor.serve, site.broker.port, site.folder)))
    return site.broker.port, {"broker": [site.broker.pid], "worker": [worker.pid]}


def _triton(site: Site) -> tuple[int, Pids]:
    target, pids = site.triton
    return target.port, pids


def _by(program: Path, start: Callable[[Site], tuple[int, Pids]], site: Site) -> tuple[Target, Pids]:
    """Start what a program asks; it finds the arrays in the site's folder.

    Raises:
        MissingExtra: The program isn't built.
    """
    if not program.is_file():
        raise MissingExtra(f"there is no {program.name} in {program.parent}; benchmarks/cpp/CMakeLists.txt builds it")
    asked = site.workload
    asked.array.tofile(site.folder / "array")
    asked.expected.tofile(site.folder / "expected")
    shape = ",".join(map(str, asked.array.shape))
    words = (asked.model, asked.input, str(datatype_of(asked.array.dtype)), shape, asked.output)
    port, pids = start(site)
    return Target("program", port, command=(str(program.absolute()), *words)), pids
