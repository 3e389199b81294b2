"""Measures one's own model on one's own site under load: throughput, latency, failures, and where the time goes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import numpy as np

from mqinfer.bench.contestants.driving import DrivenTurn, Load, drive, warm_up
from mqinfer.client.aio import AsyncClient
from mqinfer.client.request import Input
from mqinfer.lab.machine import describe_machine
from mqinfer.lab.profiling.inputs import RandomInputs
from mqinfer.lab.report_files import Panel, Report
from mqinfer.lab.reports import Cell, grid_of, machine_sentence
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError

if TYPE_CHECKING:
    import typer

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
_ANY = 1 << 30
"""Requests at a time where a rate is due: each starts, whatever becomes of those before."""


@dataclass(frozen=True, slots=True)
class SiteLoad:
    """How a model is loaded; each field is an option of `bench load`, beside those of its loads."""

    seconds: Annotated[float, typer.Option(help="Length of each load, in seconds.", min=0.1)] = 5.0
    version: Annotated[
        str | None, typer.Option(help="Model version, or a label such as canary; the default version if omitted.")
    ] = None
    encoding: Annotated[str, typer.Option(help="Encoding of arrays, as for mqinfer infer.")] = "raw"
    output_encoding: Annotated[str | None, typer.Option(help="Encoding of the outputs, such as mask.")] = None
    timeout: Annotated[float, typer.Option(help="Seconds after which a request fails.", min=0.001, max=1e6)] = 10.0

    def loads(self, callers: Sequence[int], rates: Sequence[float]) -> list[Load]:
        """Return the loads of these numbers of requests at a time, and behind them those of requests a second."""
        at_a_time = [Load(each, self.seconds) for each in callers]
        return at_a_time + [Load(_ANY, self.seconds, rate=each) for each in rates]


@dataclass(frozen=True, slots=True)
class LoadTurn:
    """What one load came to.

    Attributes:
        load: Callers, or the rate at which requests were due.
        turn: What came of it.
        spent: Nanoseconds of all results by part, as `_PARTS` has them.
    """

    load: Load
    turn: DrivenTurn
    spent: Mapping[str, int]

    def __str__(self) -> str:
        load = f"{self.load.rate:g} requests/s" if self.load.rate else f"{self.load.callers} at a time"
        failed = ", ".join(f"{count} x {code}" for code, count in self.turn.failures.items())
        return f"{load}: {self.turn.rate:.1f} results/s{', failed: ' if failed else ''}{failed}"

    def row(self, reasons: Sequence[str] = ()) -> dict[str, Cell]:
        """Return the figures by heading, None where there is none, and the failures for each of these reasons."""
        times, failures, count = self.turn.times, self.turn.failures, self.turn.results
        return {
            "callers": None if self.load.rate else self.load.callers,
            "requests/s due": self.load.rate or None,
            "results/s": self.turn.rate,
            "failed": sum(failures.values()),
            **{f"p{each} ms": 1e3 * float(np.percentile(times, each)) if times else None for each in _PERCENTILES},
            **{heading: self.spent[heading] / count / 1e6 if count else None for heading in _PARTS},
            **{f"failed: {code}": failures.get(code, 0) for code in reasons},
        }


async def measure_load(
    client: AsyncClient, card: ModelCard, inputs: Mapping[str, Input], options: SiteLoad, loads: Sequence[Load]
) -> AsyncIterator[LoadTurn]:
    """Send the same request again and again at each load, one load after the other.

    Args:
        client: Connected; its window must have room for the largest number of callers.
        card: Of the model.
        inputs: Of each request.
        options: How.
        loads: Each lasts for a turn.

    Raises:
        MqinferError: The first request fails; failures of later ones are counted.
    """
    spent = Counter[str]()

    async def ask(_: int) -> None:
        result = await client.infer(
            card.name,
            inputs,
            timeout=options.timeout,
            version=options.version,
            encoding=options.encoding,
            output_encoding=options.output_encoding,
        )
        for heading, parts in _PARTS.items():
            spent[heading] += sum(getattr(result.timings, part) for part in parts)

    await ask(0)
    for load in loads:
        await drive([ask], warm_up(load))
        spent.clear()
        yield LoadTurn(load, await drive([ask], load), spent.copy())


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
    reasons = sorted({code for turn in turns for code in turn.turn.failures})
    rows = [turn.row(reasons) for turn in turns]
    loads = [heading for heading in ("callers", "requests/s due") if any(row[heading] for row in rows)]
    grid = grid_of(title, rows, words=len(loads))
    machine = describe_machine()
    about = f"Turns of {options.seconds:g} s. {machine_sentence(machine)}"
    whole = {"title": title, "machine": machine, "options": options, "turns": rows}
    return Report(grid, _panels(loads), about, whole)


def _panels(loads: Sequence[str]) -> list[Panel]:
    """Return latency and throughput over each kind of load, and where the time goes."""
    slow = [f"p{each} ms" for each in _PERCENTILES]
    over = [(Panel("latency, ms", slow, over=each), Panel("results/s", ["results/s"], over=each)) for each in loads]
    return [*(panel for pair in over for panel in pair), Panel("mean time of a result, ms", list(_PARTS))]
