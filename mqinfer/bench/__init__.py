"""Measurements that anyone can repeat: the path from caller to model and back, against what one would use instead."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from mqinfer.bench.models import build_models
from mqinfer.bench.path import PathOptions, measure_path
from mqinfer.bench.report import print_report, write_report
from mqinfer.bench.results import Measurement
from mqinfer.bench.workloads import WORKLOADS, load_workloads

__all__ = ["PathOptions", "run"]

_DEFAULTS = PathOptions()


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
            build_models(repository)
        measurement = measure_path(
            load_workloads(repository, workloads), options, lambda line: console.print(line, style="dim")
        )
    print_report(measurement, console)
    if output is not None:
        for path in write_report(measurement, output):
            console.print(f"wrote {path}")
    return measurement
