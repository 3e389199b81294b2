"""Measures the path: mqinfer, a bare gRPC server and no path at all, in turns, in one run on one machine."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, fields

import numpy as np

from mqinfer.bench.contestants import BareGrpc, Contestant, Direct, Drive, OverMqtt
from mqinfer.bench.cpu import CpuMeter
from mqinfer.bench.machine import describe_machine
from mqinfer.bench.results import Measurement, Round, Series
from mqinfer.bench.workloads import Workload
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.protocol.errors import ConfigError, ModelFailed
from mqinfer.protocol.types import Timings

__all__ = ["PathOptions", "measure_path"]

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class PathOptions:
    """How the path is measured.

    Attributes:
        rounds: Turns of each contestant; figures are medians over them.
        seconds: Of each turn with many callers, and of each with one.
        callers: How many "many" are.
        warm_up_seconds: Before the first round.
    """

    rounds: int = 5
    seconds: float = 1.5
    callers: int = 8
    warm_up_seconds: float = 0.5

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.seconds <= 0 or self.callers < 2:
            raise ConfigError(
                f"{self.rounds} rounds of {self.seconds} s with {self.callers} callers measure nothing; "
                "give at least 1 round, a time above 0 and 2 callers"
            )


def measure_path(workloads: Sequence[Workload], options: PathOptions, say: Say) -> Measurement:
    """Measure all contestants with all workloads.

    Args:
        workloads: What to ask.
        options: How.
        say: Told what is going on.

    Raises:
        MqinferError: A contestant does not start, fails a request or gives another output than the model.
    """
    machine = describe_machine()
    series: list[Series] = []
    with MosquittoServer() as broker:
        for workload in workloads:
            say(f"{workload.name}: {options.rounds} rounds")
            contestants: list[Contestant] = [
                Direct(workload),
                BareGrpc(workload),
                OverMqtt(workload, broker.url, broker.pid),
            ]
            series += _measure(workload, contestants, options, say)
    return Measurement(
        tuple(series), machine, {field.name: str(getattr(options, field.name)) for field in fields(options)}
    )


def _measure(workload: Workload, contestants: Sequence[Contestant], options: PathOptions, say: Say) -> list[Series]:
    rounds: dict[str, list[Round]] = {contestant.name: [] for contestant in contestants}
    with ExitStack() as stack:
        for contestant in contestants:
            stack.callback(contestant.close)
            contestant.start()
            _check(workload, contestant)
            contestant.drive(options.callers, options.warm_up_seconds)
        for number in range(options.rounds):
            for contestant in contestants:
                turn = _turn(contestant, options)
                rounds[contestant.name].append(turn)
                say(f"  {number + 1}. {contestant.name}: {turn.rate:.0f}/s, p50 {turn.latency_ms:.3f} ms")
    return [Series(workload.name, name, tuple(turns)) for name, turns in rounds.items()]


def _check(workload: Workload, contestant: Contestant) -> None:
    """Nobody may win by answering something else."""
    output = contestant.infer()[workload.output]
    if not np.allclose(output, workload.expected, rtol=1e-4, atol=1e-4):
        raise ModelFailed(f"{contestant.name} gives another output than the model for {workload.name}")


def _turn(contestant: Contestant, options: PathOptions) -> Round:
    gc.collect()
    meter = CpuMeter(contestant.pids())
    busy = contestant.drive(options.callers, options.seconds)
    spent = meter.spent()
    alone = contestant.drive(1, options.seconds)
    return Round(
        rate=busy.rate,
        latency_ms=float(np.median(alone.latencies_ns)) / 1e6,
        cpu_s={role: seconds / len(busy.latencies_ns) * 1000 for role, seconds in spent.items()},
        stages_ms=_stages(alone),
        busy_stages_ms=_stages(busy),
    )


def _stages(drive: Drive) -> Mapping[str, float]:
    """Give the mean of each stage, which, unlike medians, add up to the mean of the whole."""
    if not drive.timings:
        return {}
    count = len(drive.timings)
    return {
        stage.name: sum(getattr(timings, stage.name) for timings in drive.timings) / count / 1e6
        for stage in fields(Timings)
    }
