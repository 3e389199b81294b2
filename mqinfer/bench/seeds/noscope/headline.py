"""Document 004's Figure 4: a cascade on one machine, with its reference elsewhere, and the reference on each frame.

The client is `mqinfer replay --cascade`, held to one core; each worker of the reference has one thread. More workers
than this machine has cores run in simulated time, with the processor time that a frame took in those that ran.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.formulas import closed_loop_s
from mqinfer.bench.seeds.noscope.placements import REFERENCE, Setting, SettingResult, measure
from mqinfer.bench.seeds.noscope.preparing import PreparedCascade, prepare
from mqinfer.bench.seeds.rows import Measured, of_rounds
from mqinfer.judging.settings import CascadeSettings, RunsAt
from mqinfer.protocol.types import Stage

_FRAMES = 500
_SIDE, _FULL_SIDE = 320, 608
_AGREEMENT = 0.99
"""On the frames that choose the thresholds; on the frames behind them it is measured, and 0.98 is expected."""
_PUBLISHED_SERVERS = 4


def figure_4(bench: Bench) -> Iterator[Measured]:
    """Measure Figure 4, and what parts and placements of the cascade contribute."""
    side = bench.count(_SIDE, _FULL_SIDE)
    with TemporaryDirectory(prefix="mqinfer-bench-") as temporary:
        folder = Path(temporary)
        prepared = prepare(bench, folder, _FRAMES, side, _AGREEMENT)
        cores = len(os.sched_getaffinity(0))
        counts = [each for each in bench.replicas if each <= cores]
        results: dict[str, SettingResult] = {}
        for setting in settings_of(prepared.cascade, counts):
            found = measure(setting, prepared.repository, prepared.frames, folder / f"run-{len(results)}")
            results[setting.name] = found
            bench.progress(f"  {setting.name}: {found.seconds:.1f} s, {found.stages.count(Stage.WORKER)} asked")
        yield from rows_of(results, counts, bench.replicas, f"YOLOv2 at {side}x{side}, one thread a worker")
        yield from _by_labels(prepared, results)


def settings_of(cascade: CascadeSettings, counts: Sequence[int]) -> list[Setting]:
    """Return what is measured: the reference on each frame, the cascade in one process and spread, and less of it."""
    bare, most = replace(cascade, difference=None, small=None), max(counts, default=1)
    small = cascade.small and replace(cascade.small, placement=RunsAt.CLOUD)
    return [
        Setting(EVERY, bare),
        Setting(ALONE, cascade),
        *(Setting(_spread(count), cascade, count, window=2 * count) for count in counts),
        Setting(IN_CLOUD, replace(cascade, small=small), most, 1, window=2 * most),
        Setting(NO_DIFFERENCE, replace(cascade, difference=None), most, window=2 * most),
        Setting(ONE_AT_A_TIME, cascade, most),
        Setting(EIGHT, cascade, most, window=8),
    ]


EVERY, ALONE, IN_CLOUD = "reference on each frame", "one machine", "small model in the cloud"
NO_DIFFERENCE, ONE_AT_A_TIME, EIGHT = "without the difference detector", "window 1", "window 8"


def _spread(count: int) -> str:
    return f"distributed, N_S={count}"


def rows_of(
    results: Mapping[str, SettingResult], counts: Sequence[int], replicas: Sequence[int], setting: str
) -> Iterator[Measured]:
    """Yield the rows of the figure.

    Args:
        results: By name of the setting.
        counts: Numbers of servers that were measured.
        replicas: Numbers of servers that are asked for.
        setting: What ran.
    """
    every, alone = results[EVERY], results[ALONE]
    row = partial(_row, len(alone.answers), setting)
    others = f"{alone.stages.count(Stage.EDGE)} by the small model, {alone.stages.count(Stage.REUSE)} reused"
    yield row("N_R", alone.stages.count(Stage.WORKER), "count", others)
    for name, stages in _PARTS.items():
        yield row(f"one machine: {name}", sum(alone.spent_s.get(each, 0.0) for each in stages), "s")
    for result in results.values():
        agreement = f"accuracy {_agreement(result.answers, every.answers):.3f} against the reference"
        yield row(result.setting.name, result.seconds, "s", f"{agreement}; {_components(result)}")
    for count in replicas:
        seconds, how = _simulated_s(results, counts, count), "simulated from processor times: fewer cores here"
        if count in counts:
            ratio, seconds, how = seconds / results[_spread(count)].seconds, results[_spread(count)].seconds, "measured"
            yield row(f"simulated / measured, N_S={count}", ratio, "x")
        else:
            yield row(_spread(count), seconds, "s", how)
        yield row(f"speed-up, N_S={count}", alone.seconds / seconds, "x", how)
        yield row(f"against the reference on each frame, N_S={count}", every.seconds / seconds, "x", how)
        if count == _PUBLISHED_SERVERS:
            yield row("distributed", seconds, "s", how)
            yield row("speed-up", alone.seconds / seconds, "x", how)
    yield from _open_questions(results, results[_spread(max(counts))] if counts else alone, row)


def _row(samples: int, setting: str, row: str, figure: float, unit: str, comment: str = "") -> Measured:  # noqa: PLR0913, PLR0917 - what a row has
    table = "004.D" if row in _OPEN else "004.F4"
    return of_rounds(table, row, [figure], samples=samples, comment=comment, setting=setting, unit=unit)


def _open_questions(
    results: Mapping[str, SettingResult], most: SettingResult, row: Callable[[str, float, str], Measured]
) -> Iterator[Measured]:
    """Yield what the document leaves open: placement, the window, and the accuracy."""
    by_window, by_place, by_detector, accuracy = _OPEN
    yield row(by_window, results[EIGHT].seconds / results[ONE_AT_A_TIME].seconds, "x")
    yield row(by_place, most.seconds / results[IN_CLOUD].seconds, "x")
    yield row(by_detector, most.seconds / results[NO_DIFFERENCE].seconds, "x")
    yield row(accuracy, 100 * _agreement(most.answers, results[EVERY].answers), "%")


_OPEN = (
    "window 8 against 1: time",
    "small model on the edge against the cloud: time",
    "with the difference detector against without: time",
    "accuracy against the reference",
)
_PARTS: Mapping[str, tuple[str, ...]] = {
    "detector": ("edge_compare",),
    "specialised network": ("edge_small",),
    "reference": ("inference",),
}


def _simulated_s(results: Mapping[str, SettingResult], counts: Sequence[int], servers: int) -> float:
    """Return the seconds with a core for each server, from processor times.

    A request takes the reference's time in the run with most workers; the client's time a frame is what the cascade on
    one machine took beside the reference.
    """
    alone = results[ALONE]
    source = results[_spread(max(counts))] if counts else alone
    asked = [stage is Stage.WORKER for stage in source.stages]
    workers = [each.cpu_s for each in source.components if each.name == REFERENCE]
    service_s = (workers[0] if workers else alone.spent_s["inference"]) / max(sum(asked), 1)
    client_s = max(alone.seconds - alone.spent_s["inference"], 0.0) / len(asked)
    return closed_loop_s([service_s * each for each in asked], servers, 2 * servers, client_s=client_s)


def _agreement(answers: Sequence[bool], others: Sequence[bool]) -> float:
    return sum(one == other for one, other in zip(answers, others, strict=True)) / len(answers)


def _components(result: SettingResult) -> str:
    return ", ".join(f"{each.name} {each.cpu_s:.1f} CPU s, {each.memory_mb:.0f} MB" for each in result.components)


def _by_labels(prepared: PreparedCascade, results: Mapping[str, SettingResult]) -> Iterator[Measured]:
    """Yield the accuracy by the labels, where the user has them."""
    if prepared.labels is None:
        return
    for result in results.values():
        truth = [number in prepared.labels for number in range(len(result.answers))]
        figure = 100 * _agreement(result.answers, truth)
        yield of_rounds("004.F4", f"{result.setting.name}: accuracy by labels", [figure], samples=len(truth), unit="%")
