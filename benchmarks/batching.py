"""Measures batching: one classifier with several settings, each its own worker, in turns in one run through a broker.

The settings are those that a user would try by hand, and the adaptive one, which needs none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from mqinfer.bench.comparing import CompareOptions, Comparison, report_comparison
from mqinfer.bench.contestants.driving import Load
from mqinfer.bench.contestants.site import Contestant, Pids, Site
from mqinfer.bench.contestants.ways import Target
from mqinfer.bench.workloads import WORKLOADS, Workload, load_workloads
from mqinfer.broker.address import BrokerAddress
from mqinfer.lab.report_files import Report
from mqinfer.lab.zoo import build
from mqinfer.protocol.errors import ConfigError

ADAPTIVE = "adaptive"
ALONE = "max 1"


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """How batching is measured.

    Attributes:
        workload: Key of `WORKLOADS`; its model must have a batch axis.
        rounds: Turns of each setting at each load; figures are medians over them.
        seconds: Of each turn.
        callers: Loads: requests at a time.
        sizes: Fixed batch sizes.
        delay_us: Their `max_queue_delay_microseconds`.
    """

    workload: str = "classifier"
    rounds: int = 5
    seconds: float = 1.5
    callers: tuple[int, ...] = (1, 4, 8, 16)
    sizes: tuple[int, ...] = (4, 8, 16)
    delay_us: int = 2000

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.seconds <= 0 or min(self.callers, default=0) < 1 or min(self.sizes, default=0) < 2:
            raise ConfigError(
                f"{self.rounds} rounds of {self.seconds} s with {list(self.callers)} callers and sizes "
                f"{list(self.sizes)} measure nothing; expected at least 1 round, a time above 0, 1 caller and size 2"
            )


def measure_batching(options: BatchingOptions, progress: Callable[[str], None]) -> Report:
    """Measure all settings at all loads; ratios are to no batches.

    Args:
        options: How.
        progress: Called with a line about each turn.

    Raises:
        MqinferError: A worker does not start, or fails a request.
    """
    how = CompareOptions(load=Load(seconds=options.seconds), callers=options.callers, rounds=options.rounds)
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder:
        build(Path(folder), [WORKLOADS[options.workload]])
        workloads = load_workloads(Path(folder), [options.workload])
        settings = [
            Contestant(name, partial(_serve, f"setting-{number}", config))
            for number, (name, config) in enumerate(_configs(options).items())
        ]
        comparison = Comparison(workloads, settings, how, progress)
        comparison.run()
    return report_comparison(comparison, how, f"Batching, fixed sizes wait for {options.delay_us} us at most")


def _configs(options: BatchingOptions) -> Mapping[str, str]:
    delay = f"dynamic_batching = {{ max_queue_delay_microseconds = {options.delay_us} }}\n"
    fixed = {f"fixed {size}": f"max_batch_size = {size}\n{delay}" for size in options.sizes}
    return {ALONE: "max_batch_size = 1\n", **fixed, ADAPTIVE: f"max_batch_size = {max(options.sizes)}\n"}


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
