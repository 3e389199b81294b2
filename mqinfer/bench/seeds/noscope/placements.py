"""Measures the cascade's placements one after another: each a client that is held to one core, and workers for it.

The client is the command `mqinfer replay --cascade` with the frames of a still camera. Baseline is the reference model
on each frame in the client's own process, on its one core.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mqinfer.bench.processes import CpuMeter, worker_processes, worker_specs
from mqinfer.broker.address import BrokerAddress
from mqinfer.broker.private import PrivateBroker
from mqinfer.judging.settings import CascadeSettings, write_settings
from mqinfer.lab.profiling.memory import peak_bytes
from mqinfer.models.repository import Repository
from mqinfer.protocol.errors import ModelFailed
from mqinfer.protocol.types import Stage

REFERENCE, SMALL = "reference", "small"
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


def measure(setting: Setting, repository: Path, frames: Path, folder: Path) -> SettingResult:
    """Run one setting.

    Args:
        setting: How.
        repository: Has the models `reference` and `small`.
        frames: Folder of pictures.
        folder: For what the run writes; must not exist.

    Raises:
        MqinferError: A process does not start, or a frame has no answer.
    """
    folder.mkdir(parents=True)
    write_settings(folder / "cascade.toml", setting.cascade)
    command = [
        *(sys.executable, "-m", "mqinfer", "replay", str(frames), "--cascade", str(folder / "cascade.toml")),
        *("--output", str(folder), "--sink", "jsonl", "--summary", str(folder / "summary.json")),
        *("--window", str(setting.window), "--timeout", str(_TIMEOUT_S), "--log-level", "warning"),
    ]
    if not setting.references:
        return _turn(setting, folder, run_pinned([*command, "--local", "--repository", str(repository)], folder), ())
    with PrivateBroker() as broker, serving(setting, repository, broker.url) as pids:
        meter = CpuMeter({"broker": [broker.pid], **pids})
        client = run_pinned([*command, "--broker", broker.url], folder)
        peaks = meter.peaks()
        others = tuple(Component(role, cpu_s, peaks[role] / 1e6) for role, cpu_s in meter.spent().items())
    return _turn(setting, folder, client, others)


@contextmanager
def serving(setting: Setting, repository: Path, url: str) -> Iterator[Mapping[str, list[int]]]:
    """Run the workers of a setting; yield their process ids by model."""
    wanted = {REFERENCE: setting.references, SMALL: setting.smalls}
    models, broker = Repository(repository), BrokerAddress.parse(url)
    specs = [
        spec for model, count in wanted.items() if count for spec in worker_specs(models.find(model), broker, count)
    ]
    with worker_processes(specs) as supervisor:
        pids = supervisor.pids
        yield {
            model: [pid for name, pid in pids.items() if f"-{model}" in name]
            for model, count in wanted.items()
            if count
        }


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
