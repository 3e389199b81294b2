"""The client process of a contestant: its vehicles, each with a connection of its own, in one asyncio loop."""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

import msgspec
import numpy as np

from mqinfer.bench.contestants.driving import Ask, DrivenTurn, Load, drive
from mqinfer.bench.contestants.ways import WAYS, Connection, Target
from mqinfer.bench.processes import Program, say
from mqinfer.bench.workloads import Workload
from mqinfer.lab.profiling.memory import peak_bytes, reset_peak
from mqinfer.protocol.errors import ModelFailed, MqinferError

_ERROR = "error: "
_COUNTED = 8
"""Requests over a link that counts bytes."""


class _Job(msgspec.Struct, frozen=True, omit_defaults=True):
    """A line to the process: a turn; or to connect over another port; or to send requests there, and to leave it."""

    load: Load | None = None
    port: int = 0


_JOBS = msgspec.json.Decoder(_Job)
_TURNS = msgspec.json.Decoder(DrivenTurn)


class Clients(Program):
    """Vehicles in a process of their own.

    Args:
        target: What they ask, and how.
        folder: Of the saved workload.
        vehicles: How many.

    Raises:
        ModelFailed: The first request fails, or returns another output than the model.
        ModelNotLoadable: The process ended.
    """

    def __init__(self, target: Target, folder: Path, vehicles: int) -> None:
        super().__init__(main, msgspec.json.encode(target).decode(), folder, vehicles)
        self._check(self.first_line)

    def drive(self, load: Load) -> DrivenTurn:
        """Take a turn.

        Raises:
            ModelNotLoadable: The process ended.
        """
        return _TURNS.decode(self._do(_Job(load)))

    def connect(self, port: int) -> None:
        """Open one more connection, over another port, and send the first request.

        Raises:
            ModelFailed: It fails.
        """
        self._do(_Job(port=port))

    def count(self) -> int:
        """Send some requests over that connection, close it, and return how many.

        Raises:
            ModelFailed: One fails.
        """
        return int(self._do(_Job()))

    def _do(self, job: _Job) -> str:
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
    async with AsyncExitStack() as counted:
        over_link: list[Connection] = []
        while line := await asyncio.to_thread(sys.stdin.readline):
            job = _JOBS.decode(line)
            try:
                if job.load:
                    say(msgspec.json.encode(await _turn(asks, job.load)).decode())
                elif job.port:
                    other = msgspec.structs.replace(target, port=job.port)
                    over_link.append(await counted.enter_async_context(WAYS[target.kind](other, workload, -1)))
                    await over_link[-1](0)
                    say("connected")
                else:
                    for number in range(_COUNTED):
                        await over_link[-1](number)
                    say(str(_COUNTED))
            except (MqinferError, OSError) as error:
                say(_ERROR + " ".join(str(error).split()))


async def _turn(asks: list[Connection], load: Load) -> DrivenTurn:
    gc.collect()
    reset_peak()
    spent = time.process_time()
    turn = await drive(list[Ask](asks), load)
    return msgspec.structs.replace(turn, cpu_s=time.process_time() - spent, peak_bytes=peak_bytes())


def _check(workload: Workload, target: Target, output: object) -> None:
    """Raise where a contestant is fast because its output is another."""
    found, expected = np.asarray(output), workload.expected
    is_same = found.shape == expected.shape and np.allclose(found, expected, rtol=1e-3, atol=1e-3)
    if not (is_same or (target.is_lossy and found.shape == expected.shape)):
        raise ModelFailed(f"it returned another output than {workload.model!r} does in process")
