"""Measurements that anyone can repeat: the path from caller to model and back, and batching."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from mqinfer.bench.batching import BatchingMeasurement, BatchingOptions, measure_batching
from mqinfer.bench.batching_report import print_batching, write_batching
from mqinfer.bench.path import PathOptions, measure_path
from mqinfer.bench.report import print_report, write_report
from mqinfer.bench.results import Measurement
from mqinfer.bench.workloads import WORKLOADS, load_workloads
from mqinfer.lab.zoo import build

__all__ = ["BatchingOptions", "PathOptions", "run", "run_batching"]

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
    """Measure, print the tables and write the files.

    Args:
        options: How long and how often.
        workloads: Keys of `WORKLOADS`.
        output: Folder for `bench.json` and `bench.md`; None writes nothing.
        repository: Model repository that holds the workloads' models; None builds them in a temporary one.
        console: Where to print.

    Raises:
        MqinferError: A model, a contestant or a file does not do what it should.
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
        options: How.
        output: Folder for `batching.json` and `batching.md`; None writes nothing.
        console: Where to print.

    Raises:
        MqinferError: A worker or a file does not do what it should.
    """
    console = console or Console()
    measurement = measure_batching(options, lambda line: console.print(line, style="dim"))
    print_batching(measurement, console)
    if output is not None:
        for path in write_batching(measurement, output):
            console.print(f"wrote {path}")
    return measurement
