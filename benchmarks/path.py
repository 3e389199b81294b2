"""Measures the path: mqinfer, its gateway, a bare gRPC server, the socket floor and no path at all, in turns."""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, fields

import numpy as np
from msgspec import structs

from benchmarks.calls import CountedCalls, count_requests
from benchmarks.results import Measurement, Round, Rounds
from mqinfer.bench.contestants import (
    BareGrpc,
    Contestant,
    Direct,
    Gateway,
    SecureBroker,
    SocketFloor,
)
from mqinfer.bench.contestants.over_mqtt import BrokerAccess, OverMqtt
from mqinfer.bench.processor_time import CpuMeter
from mqinfer.bench.workloads import Workload
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.lab.load import Drive
from mqinfer.lab.machine import describe_machine
from mqinfer.protocol.errors import ConfigError, ModelFailed
from mqinfer.protocol.types import Timings

__all__ = ["OVER_TLS", "PathOptions", "measure_path"]

OVER_TLS = ", TLS"
"""Behind the names of contestants over TLS."""


@dataclass(frozen=True, slots=True)
class PathOptions:
    """How the path is measured.

    Attributes:
        rounds: Turns of each contestant; figures are medians over them.
        seconds: Of each turn with many callers, and of each with one.
        callers: How many "many" are.
        warm_up_seconds: Before the first round.
        tls: Whether gRPC and mqinfer also run over TLS, with certificates on both sides.
        calls: Whether calls are counted, in a run of their own before the rounds.
    """

    rounds: int = 5
    seconds: float = 1.5
    callers: int = 8
    warm_up_seconds: float = 0.5
    tls: bool = False
    calls: bool = True

    def __post_init__(self) -> None:
        if self.rounds < 1 or self.seconds <= 0 or self.callers < 2:
            raise ConfigError(
                f"{self.rounds} rounds of {self.seconds} s with {self.callers} callers measure nothing; "
                "expected at least 1 round, a time above 0 and 2 callers"
            )


def measure_path(workloads: Sequence[Workload], options: PathOptions, report: Callable[[str], None]) -> Measurement:
    """Measure all contestants with all workloads.

    Args:
        workloads: What to ask.
        options: How.
        report: Called with a line about each step.

    Raises:
        MqinferError: A contestant does not start, fails a request or returns another output than the model.
    """
    machine = describe_machine()
    series: list[Rounds] = []
    calls: list[CountedCalls] = []
    with ExitStack() as stack:
        broker = stack.enter_context(MosquittoServer())
        secure = stack.enter_context(SecureBroker()) if options.tls else None
        for workload in workloads:
            if options.calls:
                report(f"{workload.name}: counting calls")
                calls += count_requests(workload, BrokerAccess.to(broker), (1, options.callers))
            report(f"{workload.name}: {options.rounds} rounds")
            series += _measure(workload, _contestants(workload, broker, secure), options, report)
    settings = {field.name: str(getattr(options, field.name)) for field in fields(options)}
    return Measurement(tuple(series), machine, settings, tuple(calls))


def _contestants(
    workload: Workload, broker: MosquittoServer, secure: SecureBroker | None
) -> list[Callable[[], Contestant]]:
    """Return what makes the contestants, which starts them."""
    makers: list[Callable[[], Contestant]] = [
        lambda: Direct(workload),
        lambda: BareGrpc(workload),
        lambda: OverMqtt(workload, BrokerAccess.to(broker)),
        lambda: SocketFloor(workload, broker.port, broker.pid),
        lambda: Gateway(workload),
    ]
    if secure is not None:
        logins = {"server": secure.server_login, "client": secure.login}
        makers += [
            lambda: BareGrpc(workload, BareGrpc.name + OVER_TLS, **logins),
            lambda: OverMqtt(workload, secure.route, OverMqtt.name + OVER_TLS),
        ]
    return makers


def _measure(
    workload: Workload,
    makers: Sequence[Callable[[], Contestant]],
    options: PathOptions,
    report: Callable[[str], None],
) -> list[Rounds]:
    with ExitStack() as stack:
        contestants = [stack.enter_context(closing(make())) for make in makers]
        rounds: dict[str, list[Round]] = {contestant.name: [] for contestant in contestants}
        for contestant in contestants:
            _check(workload, contestant)
            contestant.drive(options.callers, options.warm_up_seconds)
        for number in range(options.rounds):
            for contestant in contestants:
                turn = _turn(contestant, options)
                rounds[contestant.name].append(turn)
                report(f"  {number + 1}. {contestant.name}: {turn.rate:.0f}/s, p50 {turn.latency_ms:.3f} ms")
    return [Rounds(workload.name, name, tuple(turns)) for name, turns in rounds.items()]


def _check(workload: Workload, contestant: Contestant) -> None:
    """Raise where a contestant is fast because its output is another."""
    output = contestant.infer()[workload.output]
    if not np.allclose(output, workload.expected, rtol=1e-4, atol=1e-4):
        raise ModelFailed(f"{contestant.name} returned another output than the model for {workload.name}")


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
    """Return the mean of each stage; unlike medians, means add up to the mean of the whole."""
    if not drive.timings:
        return {}
    count = len(drive.timings)
    return {
        stage.name: sum(getattr(timings, stage.name) for timings in drive.timings) / count / 1e6
        for stage in structs.fields(Timings)
    }
