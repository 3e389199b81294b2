"""Document 004's Figure 4: a cascade on one machine, with its reference elsewhere, and the reference on each frame.

The client is `mqinfer replay --cascade`, held to one core; each worker of the reference has one thread. More workers
than this machine has cores run in simulated time, with the processor time that a frame took in those that ran.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from mqinfer.bench.processes import CpuMeter, worker_processes, worker_specs
from mqinfer.bench.seeds.experiment import Bench
from mqinfer.bench.seeds.formulas import closed_loop_s
from mqinfer.bench.seeds.noscope.preparing import REFERENCE, SMALL, prepare
from mqinfer.bench.seeds.rows import Measured, of_rounds
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.private import PrivateBroker
from mqinfer.judging.settings import CascadeSettings, RunsAt, write_settings
from mqinfer.lab.profiling.memory import peak_bytes
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import ModelFailed
from mqinfer.protocol.types import Stage

_FRAMES = 500
_SIDE, _FULL_SIDE = 320, 608
_AGREEMENT = 0.99
"""On the frames that choose the thresholds; on the frames behind them it is measured, and 0.98 is expected."""
_PUBLISHED_SERVERS = 4
_TIMEOUT_S = 1800
_SAMPLE_S = 0.1
_CORE = 0
"""Place of the client's core among those that this process may use."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One way to run the cascade.

    Attributes:
        name: In the table.
        cascade: Its stages, thresholds and placement.
        references: Workers of the reference model; 0 runs it in the client.
        smalls: Workers of the small model; 0 runs it in the client, if there is one.
        window: Requests in flight at most.
    """

    name: str
    cascade: CascadeSettings
    references: int = 0
    smalls: int = 0
    window: int = 1


@dataclass(frozen=True, slots=True)
class Component:
    """What the processes of one part took.

    Attributes:
        name: `client`, `broker`, `reference` or `small`.
        cpu_s: Processor time of all of them, in seconds; the client's with its start.
        memory_mb: Largest resident memory of all of them together, in megabytes.
    """

    name: str
    cpu_s: float
    memory_mb: float


@dataclass(frozen=True, slots=True)
class SettingResult:
    """What one setting did.

    Attributes:
        setting: It.
        seconds: From the first frame's reading to the last one's result.
        answers: Of each frame, whether the target is there.
        stages: Of each frame, what answered it.
        spent_s: Seconds of all frames by stage of the way, such as `edge_small` and `inference`.
        components: What ran.
    """

    setting: Setting
    seconds: float
    answers: tuple[bool, ...]
    stages: tuple[Stage, ...]
    spent_s: Mapping[str, float]
    components: tuple[Component, ...]


def figure_4(bench: Bench) -> Iterator[Measured]:
    """Measure Figure 4, and what parts and placements of the cascade contribute."""
    side = bench.count(_SIDE, _FULL_SIDE)
    with TemporaryDirectory(prefix="mqinfer-bench-") as temporary:
        folder = Path(temporary)
        cascade, repository, frames, labels = prepare(bench, folder, _FRAMES, side, _AGREEMENT)
        cores = len(os.sched_getaffinity(0))
        counts = [each for each in bench.replicas if each <= cores]
        results: dict[str, SettingResult] = {}
        for setting in settings_of(cascade, counts):
            found = _measure(setting, repository, frames, folder / f"run-{len(results)}")
            results[setting.name] = found
            bench.progress(f"  {setting.name}: {found.seconds:.1f} s, {found.stages.count(Stage.WORKER)} asked")
        yield from rows_of(results, counts, bench.replicas, f"YOLOv2 at {side}x{side}, one thread a worker")
        if labels is not None:
            yield from _by_labels(labels, results)


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
    for name, stage in _PARTS.items():
        yield row(f"one machine: {name}", alone.spent_s.get(stage, 0.0), "s")
    for result in results.values():
        agreement = f"accuracy {_agreement(result.answers, every.answers):.3f} against the reference"
        parts = [f"{each.name} {each.cpu_s:.1f} CPU s, {each.memory_mb:.0f} MB" for each in result.components]
        yield row(result.setting.name, result.seconds, "s", f"{agreement}; {', '.join(parts)}")
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
_PARTS: Mapping[str, str] = {
    "detector": "edge_compare",
    "specialised network": "edge_small",
    "reference": "inference",
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


def _by_labels(labels: frozenset[int], results: Mapping[str, SettingResult]) -> Iterator[Measured]:
    for result in results.values():
        truth = [number in labels for number in range(len(result.answers))]
        figure = 100 * _agreement(result.answers, truth)
        yield of_rounds("004.F4", f"{result.setting.name}: accuracy by labels", [figure], samples=len(truth), unit="%")


def _measure(setting: Setting, repository: Path, frames: Path, folder: Path) -> SettingResult:
    """Run one setting with the models of a repository and a folder of pictures; it writes into a folder of its own."""
    folder.mkdir(parents=True)
    write_settings(folder / "cascade.toml", setting.cascade)
    command = [
        *(sys.executable, "-m", "mqinfer", "replay", str(frames), "--cascade", str(folder / "cascade.toml")),
        *("--output", str(folder), "--sink", "jsonl", "--summary", str(folder / "summary.json")),
        *("--window", str(setting.window), "--timeout", str(_TIMEOUT_S), "--log-level", "warning"),
    ]
    if not setting.references:
        return _turn(setting, folder, run_pinned([*command, "--local", "--repository", str(repository)], folder), ())
    with PrivateBroker() as broker, _serving(setting, repository, broker.url) as pids:
        meter = CpuMeter({"broker": [broker.pid], **pids})
        client = run_pinned([*command, "--broker", broker.url], folder)
        peaks = meter.peaks()
        others = tuple(Component(role, cpu_s, peaks[role] / 1e6) for role, cpu_s in meter.spent().items())
    return _turn(setting, folder, client, others)


@contextmanager
def _serving(setting: Setting, repository: Path, url: str) -> Iterator[Mapping[str, list[int]]]:
    """Run the workers of a setting; yield their process ids by model."""
    counts = {REFERENCE: setting.references, SMALL: setting.smalls}
    wanted = {model: count for model, count in counts.items() if count}
    models, broker = Repository(repository), BrokerAddress.parse(url)
    specs = [spec for model, count in wanted.items() for spec in worker_specs(models.find(model), broker, count)]
    with worker_processes(specs) as supervisor:
        pids = supervisor.pids
        yield {model: [pid for name, pid in pids.items() if f"-{model}" in name] for model in wanted}


def run_pinned(command: Sequence[str], folder: Path) -> Component:
    """Run a command on one core to its end; return what it took.

    Raises:
        ModelFailed: It failed; the message ends with its own.
    """
    core = sorted(os.sched_getaffinity(0))[_CORE]
    # The affinity is inherited: set before the program starts, it holds for all its threads.
    pinned = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])}); os.execv(sys.argv[2], sys.argv[2:])"
    with (folder / "stderr.txt").open("w", encoding="utf-8") as messages:
        process = subprocess.Popen(  # noqa: S603 - our own command
            [sys.executable, "-c", pinned, str(core), *command], stdout=subprocess.DEVNULL, stderr=messages
        )
    peak_mb, ended = 0.0, 0
    while not ended:
        time.sleep(_SAMPLE_S)
        peak_mb = max(peak_mb, peak_bytes(process.pid) / 1e6)
        ended, status, usage = os.wait4(process.pid, os.WNOHANG)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        message = (folder / "stderr.txt").read_text(encoding="utf-8", errors="replace")[-2000:]
        raise ModelFailed(f"the client of the bench ended with {process.returncode}: {message}")
    return Component("client", usage.ru_utime + usage.ru_stime, peak_mb)


def _turn(setting: Setting, folder: Path, client: Component, others: tuple[Component, ...]) -> SettingResult:
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    lines = [json.loads(line) for line in (folder / "results.jsonl").read_text(encoding="utf-8").splitlines()]
    failed = [line for line in lines if line["outcome"] != "ok"]
    if failed:
        raise ModelFailed(f"{setting.name}: {len(failed)} of {len(lines)} frames failed: {failed[0]['error']}")
    answers = tuple(bool(line["outputs"]["present"]["values"][0]) for line in lines)
    spent: Counter[str] = Counter()
    for line in (folder / "times.jsonl").read_text(encoding="utf-8").splitlines():
        spent.update(json.loads(line)["times"]["stages"])
    in_seconds = {stage: nanoseconds / 1e9 for stage, nanoseconds in spent.items()}
    stages = tuple(Stage(line["stage"]) for line in lines)
    return SettingResult(setting, summary["seconds"], answers, stages, in_seconds, (client, *others))
