"""Measures batching: one classifier with several settings, each its own worker, in turns in one run through a broker.

The settings are those that a user would try by hand, and the adaptive one, which needs none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from mqinfer.bench.comparing import CompareOptions, Comparison, report_comparison
from mqinfer.bench.contestants.driving import Load
from mqinfer.bench.contestants.site import Contestant, Pids, Site
from mqinfer.bench.contestants.ways import Target
from mqinfer.bench.workloads import WORKLOADS, Workload, check_workloads, load_workloads
from mqinfer.broker.address import BrokerAddress
from mqinfer.cli.options import numbers
from mqinfer.lab.report_files import Report
from mqinfer.lab.zoo import build

ADAPTIVE = "adaptive"
ALONE = "max 1"


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """How batching is measured; each field is an option of `python -m benchmarks batching`."""

    workload: Annotated[str, typer.Option(help="Model to batch: classifier, small or vae.")] = "classifier"
    rounds: Annotated[int, typer.Option(help="Turns of each setting at each load.", min=1)] = 5
    seconds: Annotated[float, typer.Option(help="Length of each turn, in seconds.", min=0.1)] = 1.5
    callers: Annotated[str, typer.Option(help="Numbers of requests at a time, separated by commas.")] = "1,4,8,16"
    delay_us: Annotated[int, typer.Option(help="Queue delay of fixed sizes, in microseconds.")] = 2000


def measure_batching(
    options: BatchingOptions, progress: Callable[[str], None], sizes: Sequence[int] = (4, 8, 16)
) -> Report:
    """Measure all settings at all loads; ratios are to no batches.

    Args:
        options: How.
        progress: Called with a line about each turn.
        sizes: Fixed batch sizes.

    Raises:
        ConfigError: The workload is unknown, or a number of callers is wrong.
        MqinferError: A worker does not start, or fails a request.
    """
    check_workloads([options.workload])
    callers = numbers("--callers", [options.callers], int)
    how = CompareOptions(load=Load(seconds=options.seconds), callers=callers, rounds=options.rounds)
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
        build(Path(folder), [WORKLOADS[options.workload]])
        workloads = load_workloads(Path(folder), [options.workload])
        settings = [
            Contestant(name, partial(_serve, f"setting-{number}", config))
            for number, (name, config) in enumerate(_configs(sizes, options.delay_us).items())
        ]
        comparison = Comparison(workloads, settings, how, progress)
        comparison.run()
    return report_comparison(comparison, how, f"Batching, fixed sizes wait for {options.delay_us} us at most")


def _configs(sizes: Sequence[int], delay_us: int) -> Mapping[str, str]:
    delay = f"dynamic_batching = {{ max_queue_delay_microseconds = {delay_us} }}\n"
    fixed = {f"fixed {size}": f"max_batch_size = {size}\n{delay}" for size in sizes}
    return {ALONE: "max_batch_size = 1\n", **fixed, ADAPTIVE: f"max_batch_size = {max(sizes)}\n"}


def _serve(model: str, config: str, site: Site) -> tuple[Target, Pids]:
    """Put the site's model into its repository once more, with these settings, and serve it."""
    broker, own = site.broker, _with_config(site.workload, model, config)
    workers = site.serve(own, BrokerAddress.parse(broker.url))
    return Target("mqtt", broker.port, model=model), {"broker": [broker.pid], "worker": workers}


def _with_config(workload: Workload, model: str, config: str) -> Workload:
    path = workload.path.parents[2] / model / "1" / workload.path.name
    path.parent.mkdir(parents=True)
    shutil.copy(workload.path, path)
    (path.parents[1] / "model.toml").write_text(config, encoding="utf-8")
    return replace(workload, model=model, path=path)
