"""Measures batching: one classifier with several settings, each its own worker, in turns in one run through a broker.

The settings are those that a user would try by hand, and the adaptive one, which needs none.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np

from mqinfer.bench.contestants.clients import Clients
from mqinfer.bench.contestants.driving import Load, rotated
from mqinfer.bench.contestants.site import Site
from mqinfer.bench.contestants.ways import Target
from mqinfer.bench.workloads import WORKLOADS, Workload, load_workloads
from mqinfer.lab.machine import describe_machine
from mqinfer.lab.report_files import Panel, Report
from mqinfer.lab.reports import Cell, Grid, machine_sentence
from mqinfer.lab.zoo import build
from mqinfer.protocol.errors import ConfigError

__all__ = [
    "ADAPTIVE",
    "ALONE",
    "BatchingMeasurement",
    "BatchingOptions",
    "BatchingTurn",
    "measure_batching",
    "report_batching",
]

ADAPTIVE = "adaptive"
ALONE = "max 1"


@dataclass(frozen=True, slots=True)
class BatchingOptions:
    """How batching is measured.

    Attributes:
        workload: Key of `WORKLOADS`; its model must have a batch axis.
        rounds: Turns of each setting at each load; figures are medians over them.
        seconds: Of each turn.
        warm_up_seconds: Before the first round of each load, for each setting.
        callers: Loads: requests at a time.
        sizes: Fixed batch sizes.
        delay_us: Their `max_queue_delay_microseconds`.
    """

    workload: str = "classifier"
    rounds: int = 5
    seconds: float = 1.5
    warm_up_seconds: float = 1.5
    callers: tuple[int, ...] = (1, 4, 8, 16)
    sizes: tuple[int, ...] = (4, 8, 16)
    delay_us: int = 2000

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.seconds <= 0 or min(self.callers, default=0) < 1 or min(self.sizes, default=0) < 2:
            raise ConfigError(
                f"{self.rounds} rounds of {self.seconds} s with {list(self.callers)} callers and sizes "
                f"{list(self.sizes)} measure nothing; expected at least 1 round, a time above 0, 1 caller and size 2"
            )


@dataclass(frozen=True, slots=True)
class BatchingTurn:
    """One turn of one setting at one load.

    Attributes:
        rate: Requests a second.
        p50_ms: Median latency, in milliseconds.
        p99_ms: Latency that 99 % of the requests keep.
    """

    rate: float
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class BatchingMeasurement:
    """A whole run.

    Attributes:
        turns: By callers and setting, in order of the rounds.
        machine: What it ran on, by name.
        options: How it was measured.
    """

    turns: Mapping[tuple[int, str], tuple[BatchingTurn, ...]]
    machine: Mapping[str, str]
    options: BatchingOptions

    @property
    def settings(self) -> tuple[str, ...]:
        """Names of the settings, in their order."""
        return tuple(dict.fromkeys(setting for _, setting in self.turns))

    def median(self, callers: int, setting: str, pick: Callable[[BatchingTurn], float]) -> float:
        """Return the median of a figure over the rounds."""
        return median(pick(turn) for turn in self.turns[callers, setting])

    def ratio(self, callers: int, setting: str, base: str) -> float:
        """Return the median of the rounds' ratios of two settings' rates."""
        pairs = zip(self.turns[callers, setting], self.turns[callers, base], strict=True)
        return median(one.rate / other.rate for one, other in pairs)


def measure_batching(options: BatchingOptions, report: Callable[[str], None]) -> BatchingMeasurement:
    """Measure all settings at all loads.

    Args:
        options: How.
        report: Called with a line about each step.

    Raises:
        MqinferError: A worker does not start, or fails a request.
    """
    machine = describe_machine()
    with TemporaryDirectory(prefix="mqinfer-bench-") as folder, ExitStack() as stack:
        contestants: dict[str, Clients] = {}
        for setting, workload in _prepare(Path(folder), options).items():
            site = stack.enter_context(Site(workload))
            clients = Clients(Target("mqtt", site.mqtt[0]), site.folder, 1)
            contestants[setting] = stack.enter_context(closing(clients))
            report(f"{setting} serves")
        turns = _measure(contestants, options, report)
    return BatchingMeasurement(turns, machine, options)


def _prepare(repository: Path, options: BatchingOptions) -> dict[str, Workload]:
    """Put the model into the repository once for each setting, and return the workloads by setting."""
    model = WORKLOADS[options.workload]
    build(repository, [model])
    (workload,) = load_workloads(repository, [options.workload])
    return {
        setting: _with_config(workload, f"{model}-{number}", config)
        for number, (setting, config) in enumerate(_configs(options).items())
    }


def _configs(options: BatchingOptions) -> dict[str, str]:
    delay = f"dynamic_batching = {{ max_queue_delay_microseconds = {options.delay_us} }}\n"
    fixed = {f"fixed {size}": f"max_batch_size = {size}\n{delay}" for size in options.sizes}
    return {ALONE: "max_batch_size = 1\n", **fixed, ADAPTIVE: f"max_batch_size = {max(options.sizes)}\n"}


def _with_config(workload: Workload, name: str, config: str) -> Workload:
    path = workload.path.parents[2] / name / "1" / workload.path.name
    path.parent.mkdir(parents=True)
    shutil.copy(workload.path, path)
    (path.parents[1] / "model.toml").write_text(config, encoding="utf-8")
    return replace(workload, model=name, path=path)


def _measure(
    contestants: Mapping[str, Clients], options: BatchingOptions, report: Callable[[str], None]
) -> dict[tuple[int, str], tuple[BatchingTurn, ...]]:
    turns: dict[tuple[int, str], list[BatchingTurn]] = {}
    for callers in options.callers:
        for contestant in contestants.values():
            contestant.drive(Load(callers, options.warm_up_seconds))
        for number in range(options.rounds):
            for setting, contestant in rotated(list(contestants.items()), number):
                turn = _turn(contestant, callers, options.seconds)
                turns.setdefault((callers, setting), []).append(turn)
                report(f"  {callers} callers, {number + 1}. {setting}: {turn.rate:.0f}/s, p99 {turn.p99_ms:.1f} ms")
    return {key: tuple(each) for key, each in turns.items()}


def _turn(contestant: Clients, callers: int, seconds: float) -> BatchingTurn:
    turn = contestant.drive(Load(callers, seconds))
    p50, p99 = 1000 * np.percentile(turn.times, [50, 99])
    return BatchingTurn(turn.rate, float(p50), float(p99))


_HEADINGS = ("callers", "setting", "req/s", "least", "most", "against max 1", "p50 ms", "p99 ms")


def report_batching(measurement: BatchingMeasurement) -> Report:
    """Return the report: rates and latencies by load and setting; every round is in its JSON."""
    options = measurement.options
    rows = [
        [callers, setting, *_figures(measurement, callers, setting)]
        for callers in options.callers
        for setting in measurement.settings
    ]
    title = f"Batching the {options.workload}: {len(measurement.settings)} settings in turns"
    about = (
        f"Medians of {options.rounds} rounds of {options.seconds:g} s; all settings took turns within each round, and "
        f"ratios are medians of the rounds' ratios. Fixed settings wait for {options.delay_us} us at most. Client, "
        f"broker and workers shared the machine. {machine_sentence(measurement.machine)}"
    )
    turns = [
        {"callers": callers, "setting": setting, "rounds": each}
        for (callers, setting), each in measurement.turns.items()
    ]
    panels = (
        Panel("requests a second", ["req/s"], over="callers", by="setting"),
        Panel("latency, p99 in ms", ["p99 ms"], over="callers", by="setting"),
    )
    whole = {"machine": measurement.machine, "options": options, "turns": turns}
    return Report(Grid(title, _HEADINGS, rows, words=2), panels, about, whole)


def _figures(measurement: BatchingMeasurement, callers: int, setting: str) -> Sequence[Cell]:
    rates = [turn.rate for turn in measurement.turns[callers, setting]]
    return (
        measurement.median(callers, setting, lambda turn: turn.rate),
        min(rates),
        max(rates),
        measurement.ratio(callers, setting, ALONE),
        measurement.median(callers, setting, lambda turn: turn.p50_ms),
        measurement.median(callers, setting, lambda turn: turn.p99_ms),
    )
