"""Measures one's own model on one's own site under load: throughput, latency, failures, and where the time goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass

import numpy as np

from mqinfer.client.client import Client
from mqinfer.client.request import Input
from mqinfer.client.result import InferResult
from mqinfer.lab.load import Drive, Overlapping
from mqinfer.lab.machine import describe_machine
from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.lab.report_files import Panel, Report
from mqinfer.lab.reports import Cell, Grid, machine_sentence
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError, MqinferError

_PERCENTILES = (50, 90, 95, 99)
_PARTS: Mapping[str, Sequence[str]] = {
    "client queue ms": ("client_queue",),
    "network ms": ("transmission",),
    "worker queue ms": ("server_queue",),
    "input ms": ("decode", "preprocess"),
    "inference ms": ("inference",),
    "output ms": ("postprocess", "encode"),
}
"""Stages of a request by the heading of their mean; together they are the latency at a number of callers."""
_WARM_UP = 0.2
"""Time before each turn that is not counted, as a share of the turn."""
_MOST_REASONS = 32


@dataclass(frozen=True, slots=True)
class SiteLoad:
    """How a model is loaded.

    Attributes:
        callers: Loads of so many requests at a time.
        rates: Loads of so many requests a second, which follow.
        seconds: Of each turn.
        timeout: Of each request, in seconds.
        version: The model's version or label; the default one where None.
        encoding: Of arrays, as for `Client.infer`.
    """

    callers: tuple[int, ...] = (1, 2, 4, 8)
    rates: tuple[float, ...] = ()
    seconds: float = 5.0
    timeout: float = 10.0
    version: str | None = None
    encoding: str = "raw"

    def __post_init__(self) -> None:
        if min((*self.callers, *self.rates), default=0) <= 0:
            raise ConfigError("expected at least one load of --callers or --rate, and each above 0")


@dataclass(frozen=True, slots=True)
class LoadTurn:
    """What one load came to.

    Attributes:
        callers: Requests at a time; None at a rate.
        rate: Requests a second that were due; None with callers.
        drive: The requests with a result.
        failures: The others by the code of their error.
    """

    callers: int | None
    rate: float | None
    drive: Drive
    failures: Mapping[str, int]

    def row(self, reasons: Sequence[str] = ()) -> dict[str, Cell]:
        """Return the figures by heading, None where there is none, and the failures for each of these reasons."""
        took, count = self.drive.latencies_ns, len(self.drive.latencies_ns)

        def mean(parts: Sequence[str]) -> float | None:
            whole = sum(getattr(each, part) for each in self.drive.timings for part in parts)
            return whole / count / 1e6 if count else None

        return {
            "callers": self.callers,
            "requests/s due": self.rate,
            "results/s": self.drive.rate,
            "failed": sum(self.failures.values()),
            **{f"p{each} ms": float(np.percentile(took, each)) / 1e6 if count else None for each in _PERCENTILES},
            **{heading: mean(parts) for heading, parts in _PARTS.items()},
            **{f"failed: {code}": self.failures.get(code, 0) for code in reasons},
        }


def measure_load(
    client: Client, card: ModelCard, inputs: Mapping[str, Input], options: SiteLoad, report: Callable[[str], None]
) -> list[LoadTurn]:
    """Send the same request again and again at each load, one load after the other.

    Args:
        client: Its window must have room for the largest number of callers.
        card: Of the model.
        inputs: Of each request.
        options: How.
        report: Called with a line about each load.

    Raises:
        MqinferError: The first request fails; failures of later ones are counted.
    """
    model, timeout = card.name, options.timeout
    client.infer(model, inputs, timeout=timeout, version=options.version, encoding=options.encoding)

    def send() -> Future[InferResult]:
        return client.submit(model, inputs, timeout=timeout, version=options.version, encoding=options.encoding)

    turns = []
    for callers, rate in [*((each, None) for each in options.callers), *((None, each) for each in options.rates)]:
        _load(send, options.seconds * _WARM_UP, callers, rate)
        turn = _load(send, options.seconds, callers, rate)
        turns.append(turn)
        name = f"{callers} at a time" if callers else f"{rate:g} requests/s"
        failed = ", ".join(f"{count} x {code}" for code, count in turn.failures.items())
        report(f"{name}: {turn.drive.rate:.1f} results/s{', failed: ' if failed else ''}{failed}")
    return turns


def _load(send: Callable[[], Future[InferResult]], seconds: float, callers: int | None, rate: float | None) -> LoadTurn:
    failures: Counter[str] = Counter()

    def count(error: MqinferError) -> None:  # codes come from outside
        failures[error.code if error.code in failures or len(failures) < _MOST_REASONS else "other"] += 1

    overlapping = Overlapping(send, seconds, count)
    drive = overlapping.callers(callers) if callers else overlapping.rate(rate or 0.0)
    return LoadTurn(callers, rate, drive, failures)


def random_inputs(card: ModelCard) -> dict[str, Array]:
    """Return random inputs of one row, in the shapes of a card.

    Raises:
        ConfigError: A size other than the number of rows is not stated there.
    """
    for spec in card.inputs:
        if -1 in spec.shape[1:]:
            raise ConfigError(
                f"input {spec.name!r} of {card.name!r} has the shape {list(spec.shape)}, so random numbers do not know "
                f"their size; give one to measure with: --input {spec.name}=FILE"
            )
    return RandomInputs().make(card.inputs, 1)


def report_load(turns: Sequence[LoadTurn], title: str, options: SiteLoad) -> Report:
    """Return the report of all loads: the table, and how it is drawn.

    Args:
        turns: One for each load.
        title: What was measured.
        options: How.
    """
    reasons = sorted({code for turn in turns for code in turn.failures})
    rows = [turn.row(reasons) for turn in turns]
    loads = [heading for heading in ("callers", "requests/s due") if any(row[heading] for row in rows)]
    headings = [*loads, *list(rows[0])[2:]]
    grid = Grid(title, headings, [[row[heading] for heading in headings] for row in rows], words=len(loads))
    machine = describe_machine()
    about = f"Turns of {options.seconds:g} s. {machine_sentence(machine)}"
    whole = {"title": title, "machine": machine, "options": options, "turns": rows}
    return Report(grid, _panels(loads), about, whole)


def _panels(loads: Sequence[str]) -> list[Panel]:
    """Return latency and throughput over each kind of load, and where the time goes."""
    slow = [f"p{each} ms" for each in _PERCENTILES]
    over = [(Panel("latency, ms", slow, over=each), Panel("results/s", ["results/s"], over=each)) for each in loads]
    return [*(panel for pair in over for panel in pair), Panel("mean time of a result, ms", list(_PARTS))]
