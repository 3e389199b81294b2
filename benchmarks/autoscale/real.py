"""`mqinfer worker --autoscale` beside the simulation: the same frames, by the clock on the wall, through a broker.

An hour of a pattern is played in four minutes: times divided by 15, and one frame of 15 sent, so that rates stay.
The model sleeps for the time of a run, which needs no processor. The simulation gets the start-up time as measured.
"""

from __future__ import annotations

import asyncio
import math
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory

import numpy as np

from benchmarks.autoscale.patterns import Frame, frames_of
from benchmarks.autoscale.simulation import SiteOptions, follow
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.client import AsyncClient, ClientOptions
from mqinfer.lab.reports import Grid
from mqinfer.metrics.scaling import Scaler
from mqinfer.protocol.errors import MqinferError

_PLAYED = ("shift change", "convoy", "diurnal")
_FASTER = 15
_SECONDS = 3600.0 / _FASTER
_MODEL = "m"
_PATIENCE_S = 600.0
_CHANGE = re.compile(r"m: ([0-9]+) processes instead of [0-9]+")
_READY = re.compile(r"\.[0-9]+ ready: m ")


@dataclass(slots=True)
class Played:
    """What the scaler made of a pattern, and what the simulation makes of it.

    Attributes:
        pattern: Its name.
        frames: How many were sent.
        late: Frames without an answer in time.
        real_s: Seconds of the processes that were ordered.
        simulated_s: The same in the simulation.
        start_s: Mean seconds from an order to a process that serves.
    """

    pattern: str
    frames: int
    late: int
    real_s: float
    simulated_s: float
    start_s: float


@dataclass(slots=True)
class _Log:
    """What the worker's log said, and when, in seconds since the pattern began."""

    began: float = math.inf
    curve: list[tuple[float, int]] = field(default_factory=list)
    ready: list[float] = field(default_factory=list)
    is_ready: threading.Event = field(default_factory=threading.Event)

    def read(self, line: str) -> None:
        now = time.monotonic() - self.began
        if (found := _CHANGE.search(line)) and now > 0:
            self.curve.append((now, int(found[1])))
        if _READY.search(line):
            self.is_ready.set()
            self.ready += [now] * (now > 0)

    def start_times(self) -> Iterator[float]:
        """Yield for each process that was ready the seconds since its order."""
        ordered, before = list[float](), 1
        for at, count in self.curve:
            ordered += [at] * max(0, count - before)
            before = count
        for at, ready in zip(ordered, self.ready, strict=False):
            yield ready - at


def play_real() -> Iterator[Played]:
    """Play three patterns, one after the other, and yield what became of each."""
    for pattern in _PLAYED:
        frames = [(at / _FASTER, vehicle, within) for at, vehicle, within in frames_of(pattern)[::_FASTER]]
        with _worker() as (url, log):
            log.began = time.monotonic()
            late = asyncio.run(_drive(url, frames, log.began))
        start_s = mean([*log.start_times()] or [1.0])
        found = follow(frames, Scaler(), SiteOptions(start_s=start_s, seconds=_SECONDS))
        real_s, simulated_s = (_seconds(curve) for curve in (log.curve, found.curve))
        yield Played(pattern, len(frames), late, real_s, simulated_s, start_s)


@contextmanager
def _worker() -> Iterator[tuple[str, _Log]]:
    """Run a broker and a worker that scales its model."""
    with MosquittoServer() as server, TemporaryDirectory(prefix="mqinfer-scaling-") as folder:
        path = Path(folder) / _MODEL / "1" / "model.echo"
        path.parent.mkdir(parents=True)
        path.write_text(
            'delay_ms = 1000\n[[input]]\nname = "x"\ndatatype = "TYPE_FP32"\nshape = [4]\n', encoding="utf-8"
        )
        command = [sys.executable, "-m", "mqinfer", "worker", "--repository", folder, "--autoscale", "1..8"]
        command += ["--name", "scaled", "--broker", server.url]
        log = _Log()
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)  # noqa: S603  our own command

        def read() -> None:
            for line in process.stderr or ():
                log.read(line)

        reader = threading.Thread(target=read, name="worker-log")
        reader.start()
        try:
            if not log.is_ready.wait(_PATIENCE_S):
                raise MqinferError(f"the worker is not ready within {_PATIENCE_S:g} s")
            yield server.url, log
        finally:
            process.terminate()
            process.wait()
            reader.join()


async def _drive(url: str, frames: Sequence[Frame], began: float) -> int:
    """Send frames at their times; return how many got no answer in time."""
    async with AsyncExitStack() as stack:
        clients = {}
        for vehicle in sorted({vehicle for _, vehicle, _ in frames}):
            client = AsyncClient(
                url, name=f"car-{vehicle}", options=ClientOptions(max_pending=4096), announce="pattern"
            )
            clients[vehicle] = await stack.enter_async_context(client)

        async def send(at: float, vehicle: int, within: float) -> bool:
            await asyncio.sleep(max(0.0, began + at - time.monotonic()))
            result = await clients[vehicle].infer(_MODEL, {"x": np.zeros(4, np.float32)}, timeout=within)
            return result.outcome == "ok"

        outcomes = await asyncio.gather(*(send(*frame) for frame in frames), return_exceptions=True)
        await asyncio.sleep(max(0.0, began + _SECONDS - time.monotonic()))
    return sum(outcome is not True for outcome in outcomes)


def _seconds(curve: Sequence[tuple[float, int]]) -> float:
    """Return the area below a curve, from one worker at the start to the end of the pattern."""
    changes = [(0.0, 1), *(each for each in curve if 0 < each[0] < _SECONDS), (_SECONDS, 0)]
    return sum((end - begin) * count for (begin, count), (end, _) in pairwise(changes))


def real_grid(found: Sequence[Played]) -> Grid:
    """Return a row for each pattern."""
    rows = [
        (
            each.pattern,
            str(each.frames),
            str(each.late),
            f"{each.start_s:.1f}",
            f"{each.real_s:.0f}",
            f"{each.simulated_s:.0f}",
            f"{each.real_s / each.simulated_s - 1:+.0%}",
        )
        for each in found
    ]
    headings = ("pattern", "frames", "late", "start-up, s", "worker seconds", "simulated", "difference")
    return Grid("mqinfer worker --autoscale 1..8 beside the simulation", headings, rows, 1)
