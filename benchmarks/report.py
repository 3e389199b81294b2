"""Reports what was measured of the path: tables on the terminal, JSON for programs, Markdown for a document."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from rich.console import Console

from benchmarks.calls import calls_grid
from benchmarks.path import OVER_TLS
from benchmarks.results import Measurement, Round
from benchmarks.targets import GATEWAY_TARGETS, TARGETS, Target, judge
from mqinfer.bench.contestants import BareGrpc, Direct, Gateway, SocketFloor
from mqinfer.bench.contestants.over_mqtt import OverMqtt
from mqinfer.lab import reports
from mqinfer.lab.reports import Grid, machine_sentence, print_grid, write_files

__all__ = ["as_json", "as_markdown", "grids", "print_report", "write_report"]

_ROLES = ("client", "broker", "server", "gateway")


def grids(measurement: Measurement) -> tuple[Grid, ...]:
    """Return the tables: figures, targets, mqinfer's time by stage with one caller and with many, and calls."""
    callers = measurement.settings.get("callers", "8")
    secure = [each for each in measurement.series if each.contestant.endswith(OVER_TLS)]
    found = [_figures(measurement, callers), _targets(measurement)]
    found += [_targets(measurement, OVER_TLS)] if secure else []
    if any(each.contestant == Gateway.name for each in measurement.series):
        found.append(_targets(measurement, contestant=Gateway.name, targets=GATEWAY_TARGETS))
    found += [
        _stages(measurement, "one caller", lambda each: each.stages_ms),
        _stages(measurement, f"{callers} callers", lambda each: each.busy_stages_ms),
    ]
    found += [calls_grid(measurement.calls)] if measurement.calls else []
    return tuple(found)


def print_report(measurement: Measurement, console: Console) -> None:
    """Print the tables."""
    for grid in grids(measurement):
        print_grid(grid, console)


def write_report(measurement: Measurement, directory: Path) -> tuple[Path, ...]:
    """Write `bench.json` (every round) and `bench.md` (the tables).

    Raises:
        ConfigError: The directory can't be written.
    """
    return write_files(directory, {"bench.json": as_json(measurement), "bench.md": as_markdown(measurement)})


def as_json(measurement: Measurement) -> str:
    """Return everything that was measured, round by round, and the verdicts."""
    verdicts = [
        {
            "what": verdict.target.what,
            "workload": verdict.target.workload,
            "bound": verdict.target.bound,
            "later": verdict.target.later,
            "smaller_is_better": verdict.target.smaller_is_better,
            "ratio": verdict.ratio,
            "of_floor": verdict.of_floor,
            "passed": verdict.passed,
        }
        for verdict in judge(measurement, OverMqtt.name, BareGrpc.name, SocketFloor.name)
    ]
    return reports.as_json({**asdict(measurement), "targets": verdicts})


def as_markdown(measurement: Measurement) -> str:
    """Return the tables and the circumstances as Markdown."""
    parts = ["# The path, measured", _sentences(measurement)]
    parts += map(reports.as_markdown, grids(measurement))
    return "\n\n".join(parts) + "\n"


def _sentences(measurement: Measurement) -> str:
    settings = dict(measurement.settings)
    rounds, seconds = settings.get("rounds", "?"), settings.get("seconds", "?")
    return (
        f"Medians of {rounds} rounds of {seconds} s for each figure; the contestants took turns within each round, and "
        "ratios are medians of the rounds' ratios. CPU time is for one request, with many callers. Client, broker and "
        "server shared the machine.\n\n"
        f"{machine_sentence(measurement.machine)}"
    )


def _figures(measurement: Measurement, callers: str) -> Grid:
    headings = ["workload", "contestant", f"req/s, {callers} callers", "of direct", "p50 ms, one caller"]
    headings += [f"{role} CPU us" for role in _ROLES]
    rows = []
    for series in measurement.series:
        share = measurement.ratio(series.workload, series.contestant, Direct.name, lambda each: each.rate)
        cpu = series.median_of(lambda each: each.cpu_s)
        figures = [f"{series.rate:,.0f}", _share(share), f"{series.latency_ms:.3f}"]
        figures += [f"{cpu[role] * 1000:.0f}" if role in cpu else "" for role in _ROLES]
        rows.append([series.workload, series.contestant, *figures])
    return Grid("Throughput, latency and processor time", headings, rows, words=2)


def _targets(
    measurement: Measurement, suffix: str = "", contestant: str = OverMqtt.name, targets: Sequence[Target] = TARGETS
) -> Grid:
    contestant, base = contestant + suffix, BareGrpc.name + suffix
    rows = []
    for verdict in judge(measurement, contestant, base, SocketFloor.name, targets):
        target = verdict.target
        sign = "<=" if target.smaller_is_better else ">="
        rows.append(
            [
                target.what,
                "pass" if verdict.passed else "miss",
                _ratio(verdict.ratio),
                f"{sign} {target.bound:.3g}x",
                f"{sign} {target.later:g}x" if target.later else "",
                _ratio(verdict.of_floor),
            ]
        )
    headings = ["what", "verdict", "ratio", "target", "later", "of the socket floor"]
    return Grid(f"{contestant} against {base}", headings, rows, words=2)


def _stages(measurement: Measurement, callers: str, pick: Callable[[Round], Mapping[str, float]]) -> Grid:
    """Return mqinfer's time: one line a stage, one column a workload."""
    columns = {each.workload: each.median_of(pick) for each in measurement.series if each.contestant == OverMqtt.name}
    stages = next(iter(columns.values()), {})
    rows = [[stage.replace("_", " "), *(f"{means[stage]:.3f}" for means in columns.values())] for stage in stages]
    rows.append(["together", *(f"{sum(means.values()):.3f}" for means in columns.values())])
    return Grid(f"{OverMqtt.name}, mean time by stage in ms, {callers}", ["stage", *columns], rows, words=1)


def _share(share: float | None) -> str:
    return "" if share is None else f"{share:.0%}"


def _ratio(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"
