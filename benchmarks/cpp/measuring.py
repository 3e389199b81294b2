"""Measures the C++ client: its load program takes turns with the other ways to the same model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from benchmarks.cpp import floor
from mqinfer.bench.comparing import CompareOptions, Comparison, report_comparison
from mqinfer.bench.contestants.driving import Load
from mqinfer.bench.contestants.site import CONTESTANTS, Contestant, Pids, Site
from mqinfer.bench.contestants.ways import Target
from mqinfer.bench.processes import Program
from mqinfer.bench.workloads import WORKLOADS, load_workloads
from mqinfer.cli.options import numbers
from mqinfer.lab.report_files import Report
from mqinfer.lab.zoo import build
from mqinfer.protocol.datatypes import datatype_of
from mqinfer.protocol.errors import MissingExtra

_ASKED = ("small", "frame")


@dataclass(frozen=True, slots=True)
class CppOptions:
    """How the C++ client is measured; each field is an option of `python -m benchmarks cpp`."""

    programs: Annotated[Path, typer.Option(help="Folder of the programs that benchmarks/cpp builds with CMake.")]
    triton: Annotated[
        Path | None, typer.Option(help="Environment with nvidia-pytriton; .venv-peers/triton by default.")
    ] = None
    rounds: Annotated[int, typer.Option(help="Turns of each contestant.", min=1)] = 5
    seconds: Annotated[float, typer.Option(help="Length of each turn, in seconds.", min=0.1)] = 1.5
    callers: Annotated[str, typer.Option(help="Numbers of requests at a time, separated by commas.")] = "1,8"


def measure_cpp(options: CppOptions, progress: Callable[[str], None], workloads: Sequence[str] = _ASKED) -> Report:
    """Measure the floor, both clients of mqinfer and both of Triton; ratios are to the floor.

    Raises:
        ConfigError: A number of callers is wrong, or there is no program at all.
        MqinferError: A worker does not start, or fails a request.
    """
    callers = numbers("--callers", [options.callers], int)
    load = Load(seconds=options.seconds)
    how = CompareOptions(load=load, callers=callers, rounds=options.rounds, triton=options.triton)
    ways = [
        Contestant("floor", partial(_by, options.programs / "load-floor", _floor)),
        CONTESTANTS["mqtt"],
        Contestant("mqtt-cpp", partial(_by, options.programs / "load-mqinfer", lambda site: site.mqtt)),
        CONTESTANTS["triton"],
        Contestant("triton-cpp", partial(_by, options.programs / "load-triton", _triton)),
    ]
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
        build(Path(folder), [WORKLOADS[each] for each in workloads])
        comparison = Comparison(load_workloads(Path(folder), workloads), ways, how, progress)
        comparison.run()
    return report_comparison(comparison, how, "The C++ client")


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
