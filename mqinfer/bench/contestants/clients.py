"""The client processes of a contestant: its vehicles, each with a connection of its own, in an asyncio loop."""

from __future__ import annotations

import asyncio
import gc
import sys
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import AsyncExitStack, ExitStack
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np

from mqinfer.bench.contestants.driving import Ask, DrivenTurn, Load, drive, merged
from mqinfer.bench.contestants.ways import WAYS, Connection, Target
from mqinfer.bench.processes import Program, say
from mqinfer.bench.workloads import Workload
from mqinfer.codecs import traits_of
from mqinfer.protocol.errors import ModelFailed, MqinferError

_ERROR = "error: "
_EACH = 100
"""Vehicles of one process: each has a timer's thread, and with many more they keep each other from running."""
_AT_ONCE = 16
"""Processes that start at the same time."""
_LOOK_S = 1.0
"""Longest wait without a look at signals: a Ctrl-C that comes just before a wait without an end is not seen."""


class _Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line to the process: a turn; or to send requests over a connection to another port."""

    load: Load | None = None
    port: int = 0
    requests: int = 0


_JOBS = msgspec.json.Decoder(_Job)
_TURNS = msgspec.json.Decoder(DrivenTurn)


class Clients:
    """Vehicles in processes of their own.

    Args:
        target: What they ask, and how.
        folder: Of the saved workload.
        vehicles: How many.

    Raises:
        ModelFailed: The first request fails, or returns another output than the model.
        ModelNotLoadable: A process ended.
    """

    def __init__(self, target: Target, folder: Path, vehicles: int) -> None:
        with ExitStack() as stack:
            self._threads = stack.enter_context(ThreadPoolExecutor(_AT_ONCE, "mqinfer-bench-clients"))

            def start(first: int) -> _Process:
                own = msgspec.structs.replace(target, first=first)
                process = _Process(own, folder, min(_EACH, vehicles - first))
                stack.callback(process.close)
                return process

            self._processes = list(self._threads.map(start, range(0, vehicles, _EACH)))
            self._stack = stack.pop_all()
        self.pids = [each.pid for each in self._processes]

    def drive(self, load: Load) -> DrivenTurn:
        """Take a turn.

        Raises:
            ModelNotLoadable: A process ended.
        """
        job = _Job(replace(load, samples=-(-load.samples // len(self._processes))))
        asked = [self._threads.submit(each.do, job) for each in self._processes]
        while wait(asked, _LOOK_S).not_done:
            pass
        return merged([_TURNS.decode(each.result()) for each in asked])

    def send(self, port: int, requests: int) -> None:
        """Open one more connection, over another port, send requests there one after the other, and close it.

        Raises:
            ModelFailed: One fails.
        """
        self._processes[0].do(_Job(port=port, requests=requests))

    def close(self) -> None:
        """End the processes."""
        self._stack.close()


class _Process(Program):
    def __init__(self, target: Target, folder: Path, vehicles: int) -> None:
        super().__init__(target.command or main, msgspec.json.encode(target).decode(), folder, vehicles)
        self._check(self.first_line)

    def do(self, job: _Job) -> str:
        """Have it do a job; return its answer."""
        return self._check(self.ask(msgspec.json.encode(job).decode()))

    def _check(self, line: str) -> str:
        if line.startswith(_ERROR):
            self.close()
            raise ModelFailed(line.removeprefix(_ERROR))
        return line


def main(target: str, folder: str, vehicles: str) -> None:
    """Connect the vehicles, write a line, and do what each line of standard input says."""
    asyncio.run(_run(msgspec.json.decode(target, type=Target), Workload.load(Path(folder)), int(vehicles)))


async def _run(target: Target, workload: Workload, vehicles: int) -> None:
    connect = WAYS[target.kind]
    async with AsyncExitStack() as stack:
        try:
            asks = [await stack.enter_async_context(connect(target, workload, each)) for each in range(vehicles)]
            for ask in asks:
                _check(workload, target, await ask(0))
        except (MqinferError, OSError) as error:
            say(_ERROR + " ".join(str(error).split()))
            return
        say("ready")
        await _obey(target, workload, asks)


async def _obey(target: Target, workload: Workload, asks: list[Connection]) -> None:
    while line := await asyncio.to_thread(sys.stdin.readline):
        job = _JOBS.decode(line)
        try:
            if job.load:
                gc.collect()
                say(msgspec.json.encode(await drive(list[Ask](asks), job.load)).decode())
            else:
                other = msgspec.structs.replace(target, port=job.port)
                async with WAYS[target.kind](other, workload, -1) as ask:
                    for number in range(job.requests):
                        await ask(number)
                say("sent")
        except (MqinferError, OSError) as error:
            say(_ERROR + " ".join(str(error).split()))


def _check(workload: Workload, target: Target, output: object) -> None:
    """Raise where a contestant is fast because its output is another."""
    found, expected = np.asarray(output), workload.expected
    is_lossy = traits_of(target.encoding).is_lossy  # the model gets another picture
    if found.shape != expected.shape or not (is_lossy or np.allclose(found, expected, rtol=1e-3, atol=1e-3)):
        raise ModelFailed(f"it returned another output than {workload.model!r} does in process")
