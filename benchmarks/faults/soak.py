"""The soak: load for a given time, a random fault every few seconds, and exactly one outcome for every request.

Three worker processes, a Mosquitto of its own, and one client behind a proxy, Python's or that of a program. Each fault
is over before the next one begins, and the load never stops.
"""

from __future__ import annotations

import os
import random
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import msgspec
import numpy as np
import typer

from benchmarks.faults.fault_proxy import PUBACK, FaultProxy
from benchmarks.faults.traffic import EchoTraffic, beside
from benchmarks.faults.workers import Workers
from mqinfer.broker.mosquitto.server import MosquittoServer
from mqinfer.lab.profiling.memory import resident_bytes
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.topics import Topics

_ROOT = "soak"
_DELAY_MS = 20.0
_WORKERS = 3
_SAMPLE_S = 1.0
_WORDS = {True: "pass", False: "**miss**", None: "stated"}
_SETTLED = 0.2
"""Memory is judged on the samples after this share of the run: before it everything is used for the first time."""


@dataclass(frozen=True, slots=True)
class SoakOptions:
    """How a soak is run; each field is an option of `python -m benchmarks soak`."""

    minutes: Annotated[float, typer.Option(help="How long to apply load, in minutes.", min=0.1)] = 60.0
    every: Annotated[float, typer.Option(help="Least time between faults, in seconds.", min=1)] = 10.0
    rate: Annotated[float, typer.Option(help="Requests a second, at most 150.", min=1)] = 60.0
    seed: Annotated[int, typer.Option(help="Seed for the random faults.")] = 0
    program: Annotated[
        Path | None, typer.Option(help="Program `live` of clients/cpp/tests, to soak its client in place of Python's.")
    ] = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        row: The fault and the load.
        what: What was counted or measured.
        figure: As text.
        target: As text; empty where the figure is only stated.
        passed: None where there is no target.
    """

    row: str
    what: str
    figure: str
    target: str = ""
    passed: bool | None = None


class _Sent(msgspec.Struct, frozen=True):
    """What became of the load.

    Attributes:
        asked: Requests.
        once: Those with exactly one outcome.
        wrong: Replies with other numbers than the request.
        outcomes: Requests by error code; `ok` without one.
        retries: Publications beyond each request's first.
        late: Replies to requests that had an outcome.
        times: Seconds within which 50, 99 and 99.99 % had one.
    """

    asked: int
    once: int
    wrong: int
    outcomes: dict[str, int]
    retries: int
    late: int
    times: tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _Stage:
    """The parts that faults are injected into."""

    broker: MosquittoServer
    workers: Workers
    proxy: FaultProxy


def soak(options: SoakOptions, report: Callable[[str], None] = lambda _: None) -> list[Figure]:
    """Run the soak.

    Args:
        options: How it is run.
        report: Called with the name of each fault.

    Returns:
        The figures.

    Raises:
        MqinferError: A request has no outcome, or two, or a wrong one.
    """
    with TemporaryDirectory(prefix="mqinfer-soak-") as folder, ExitStack() as stack:
        broker = stack.enter_context(MosquittoServer())
        workers = stack.enter_context(Workers(Path(folder), broker.url, [_DELAY_MS] * _WORKERS, Topics(_ROOT)))
        proxy = stack.enter_context(FaultProxy(broker.port, options.seed))
        pid, send = stack.enter_context(_program(options.program, proxy.url) if options.program else _own(proxy.url))
        injected: Counter[str] = Counter()
        over = threading.Event()
        samples: list[tuple[float, int, int]] = []
        stage = _Stage(broker, workers, proxy)
        with (
            beside(lambda: _inject(stage, options, over, injected, report)),
            beside(lambda: _sample(pid, over, samples)),
        ):
            try:
                sent = send(options.rate, int(options.rate * 60 * options.minutes))
            finally:
                over.set()
        if sent.wrong or sent.once != sent.asked:
            raise MqinferError(f"the outcomes do not add up: {sent}")
        return _figures(options, sent, injected, samples)


_Send = Callable[[float, int], _Sent]
"""Sends so many requests at a rate a second, and waits for their outcomes."""


@contextmanager
def _own(url: str) -> Iterator[tuple[int, _Send]]:
    """Connect Python's client; yield its process, which is this one, and what sends."""
    with EchoTraffic(url, Topics(_ROOT), keeps=False) as client:

        def send(rate: float, requests: int) -> _Sent:
            client.pace(rate, requests)
            client.wait()
            counters = client.check()
            p50, p99, p9999 = map(client.percentile, (0.5, 0.99, 0.9999))
            outcomes, asked = client.outcomes(), client.asked
            return _Sent(asked, asked, client.wrong, outcomes, counters.retries, counters.late, (p50, p99, p9999))

        yield os.getpid(), send


@contextmanager
def _program(path: Path, url: str) -> Iterator[tuple[int, _Send]]:
    """Start a program that sends what a line asks for; yield its process, and what sends."""
    pipe = subprocess.PIPE
    process = subprocess.Popen([path, "paced", url, _ROOT], stdin=pipe, stdout=pipe, text=True)  # noqa: S603 - what the user named

    def send(rate: float, requests: int) -> _Sent:
        printed, _ = process.communicate(f"{rate} {requests}\n")
        if process.returncode:
            raise MqinferError(f"{path} ended with exit code {process.returncode}; its error is printed above")
        return msgspec.json.decode(printed, type=_Sent)

    try:
        yield process.pid, send
    finally:
        process.kill()
        process.communicate()


def _inject(
    stage: _Stage, options: SoakOptions, over: threading.Event, injected: Counter[str], report: Callable[[str], None]
) -> None:
    chance = random.Random(options.seed)  # noqa: S311 - which fault comes next is no secret
    while not over.wait(options.every):
        fault = chance.choice(_FAULTS)
        name = fault.__name__.lstrip("_").replace("_", " ")
        injected[name] += 1
        report(name)
        fault(stage, chance.randrange(_WORKERS))


def _kill_a_worker(stage: _Stage, number: int) -> None:
    stage.workers.kill(number)


def _halt_a_worker(stage: _Stage, number: int) -> None:
    stage.workers.halt(number)
    time.sleep(3)
    stage.workers.resume(number)


def _restart_a_worker(stage: _Stage, number: int) -> None:
    stage.workers.drain(number)


def _kill_the_broker(stage: _Stage, _: int) -> None:
    stage.broker.kill()
    time.sleep(2)
    stage.broker.start()


def _restart_the_broker(stage: _Stage, _: int) -> None:
    stage.broker.stop()
    stage.broker.start()


def _cut_the_client(stage: _Stage, number: int) -> None:
    stage.proxy.cut(reset=number % 2 == 0)


def _hang_the_connection(stage: _Stage, _: int) -> None:
    stage.proxy.both(swallow=True)
    time.sleep(3)
    stage.proxy.cut()
    stage.proxy.both()


def _drop_acknowledgements(stage: _Stage, _: int) -> None:
    stage.proxy.down(without=frozenset({PUBACK}))
    time.sleep(1)
    stage.proxy.cut()
    stage.proxy.both()


def _slow_the_network_down(stage: _Stage, _: int) -> None:
    stage.proxy.both(delay_s=0.2)
    time.sleep(3)
    stage.proxy.both()


_FAULTS: Sequence[Callable[[_Stage, int], None]] = (
    _kill_a_worker,
    _halt_a_worker,
    _restart_a_worker,
    _kill_the_broker,
    _restart_the_broker,
    _cut_the_client,
    _hang_the_connection,
    _drop_acknowledgements,
    _slow_the_network_down,
)


def _sample(pid: int, over: threading.Event, samples: list[tuple[float, int, int]]) -> None:
    """Sample time, memory and open files of the edge."""
    while not over.wait(_SAMPLE_S):
        samples.append((time.monotonic(), resident_bytes(pid), _open_files(pid)))


def _open_files(pid: int) -> int:
    try:
        return len(list(Path(f"/proc/{pid}/fd").iterdir()))
    except OSError:  # it is gone
        return 0


def _figures(
    options: SoakOptions, sent: _Sent, injected: Counter[str], samples: Sequence[tuple[float, int, int]]
) -> list[Figure]:
    row = f"soak of {options.minutes:g} min, {options.rate:g}/s, a fault every {options.every:g} s or more"
    ok, asked = sent.outcomes.get("ok", 0), sent.asked
    settled = samples[int(_SETTLED * len(samples)) :]
    minutes, sizes = [at / 60 for at, _, _ in settled], [size / 2**20 for _, size, _ in settled]
    slope = np.polyfit(minutes, sizes, 1)[0] if len(settled) > 2 else 0.0
    files = [files for _, _, files in settled] or [0]
    times = "; ".join(f"{seconds * 1e3:.0f} ms" for seconds in sent.times)
    faults = ", ".join(f"{name} {times}" for name, times in sorted(injected.items()))
    publishes = (asked + sent.retries) / max(1, asked)
    return [
        Figure(row, f"faults ({injected.total()})", faults),
        Figure(row, "ok, each once and with its own numbers", f"{ok}/{asked}", "all", ok == asked),
        Figure(row, "other outcomes", str({name: n for name, n in sent.outcomes.items() if name != "ok"})),
        Figure(row, "publishes a request; late or double replies", f"{publishes:.4f}; {sent.late}"),
        Figure(row, "p50; p99; p99.99", times),
        Figure(row, "growth of the edge's memory", f"{slope:.2f} MB/min", "< 1 MB/min", slope < 1),
        Figure(row, "open files of the edge", f"{min(files)} to {max(files)}", "flat", max(files) - min(files) <= 20),
    ]


def as_markdown(figures: Sequence[Figure]) -> str:
    """Return the figures as a table, with each fault's name once."""
    lines = ["| fault and load | what | figure | target | |", "|---|---|---|---|---|"]
    last = ""
    for each in figures:
        row = "" if each.row == last else each.row
        lines.append(f"| {row} | {each.what} | {each.figure} | {each.target} | {_WORDS[each.passed]} |")
        last = each.row
    return "\n".join(lines) + "\n"
