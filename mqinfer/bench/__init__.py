"""Measurements that anyone can repeat: the path from caller to model and back, and batching."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from mqinfer.bench.batching import BatchingMeasurement, BatchingOptions, measure_batching
from mqinfer.bench.batching_report import print_batching, write_batching
from mqinfer.bench.calls import Passage, calls_grid, count_frames, count_requests
from mqinfer.bench.contestants import Route
from mqinfer.bench.grid import print_grid
from mqinfer.bench.path import PathOptions, measure_path
from mqinfer.bench.report import print_report, write_report
from mqinfer.bench.results import Measurement
from mqinfer.bench.workloads import WORKLOADS, load_workloads
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.edge_agent.sinks.factory import DEFAULT_SINKS
from mqinfer.lab.report_files import write_files
from mqinfer.lab.zoo import build

__all__ = ["BatchingOptions", "PathOptions", "run", "run_batching", "run_calls"]

_DEFAULTS = PathOptions()
_BATCHING_DEFAULTS = BatchingOptions()


def run(
    options: PathOptions = _DEFAULTS,
    workloads: Sequence[str] = tuple(WORKLOADS),
    *,
    output: Path | None = None,
    repository: Path | None = None,
    console: Console | None = None,
) -> Measurement:
    """Measure the path, print the tables and write the files.

    Args:
        options: How long and how often.
        workloads: Keys of `WORKLOADS`.
        output: Folder for `bench.json` and `bench.md`; None writes nothing.
        repository: Model repository that holds the workloads' models; None builds them in a temporary one.
        console: Where to print.

    Raises:
        MqinferError: A model can't be built, a contestant fails, or a file can't be written.
    """
    console = console or Console()
    with TemporaryDirectory(prefix="mqinfer-bench-") as temporary:
        if repository is None:
            repository = Path(temporary)
            build(repository, [WORKLOADS[name] for name in workloads])
        measurement = measure_path(
            load_workloads(repository, workloads), options, lambda line: console.print(line, style="dim")
        )
    print_report(measurement, console)
    if output is not None:
        for path in write_report(measurement, output):
            console.print(f"wrote {path}")
    return measurement


def run_batching(
    options: BatchingOptions = _BATCHING_DEFAULTS, *, output: Path | None = None, console: Console | None = None
) -> BatchingMeasurement:
    """Measure batching, print the tables and write the files.

    Args:
        options: How long and how often.
        output: Folder for `batching.json` and `batching.md`; None writes nothing.
        console: Where to print.

    Raises:
        MqinferError: A worker fails, or a file can't be written.
    """
    console = console or Console()
    measurement = measure_batching(options, lambda line: console.print(line, style="dim"))
    print_batching(measurement, console)
    if output is not None:
        for path in write_batching(measurement, output):
            console.print(f"wrote {path}")
    return measurement


def run_calls(
    *, output: Path | None = None, repository: Path | None = None, console: Console | None = None
) -> list[Passage]:
    """Count what a small request and a replayed frame pass through, print the table and write the files.

    Args:
        output: Folder for `calls.json`, which lists files, classes, functions and threads; None writes nothing.
        repository: Model repository that holds the models; None builds them in a temporary one.
        console: Where to print.

    Raises:
        MqinferError: A process fails, or a file can't be written.
    """
    console = console or Console()
    with TemporaryDirectory(prefix="mqinfer-bench-") as temporary:
        if repository is None:
            repository = Path(temporary)
            build(repository, [WORKLOADS[name] for name in ("small", "frame")])
        small, frame = load_workloads(repository, ("small", "frame"))
        with MosquittoServer() as broker:
            passages = count_requests(small, Route.to(broker))
        passages += count_frames(frame, [(), DEFAULT_SINKS])
    print_grid(calls_grid(passages), console)
    if output is not None:
        text = json.dumps([asdict(passage) for passage in passages], indent=2, default=sorted) + "\n"
        for path in write_files(output, {"calls.json": text}):
            console.print(f"wrote {path}")
    return passages
