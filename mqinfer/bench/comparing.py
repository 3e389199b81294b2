"""Ways to a model side by side: their turns are interleaved, and ratios are those within a round."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated

import numpy as np
from msgspec import structs

from mqinfer.bench.contestants.clients import Clients
from mqinfer.bench.contestants.driving import DrivenTurn, Load, rotated, warm_up
from mqinfer.bench.contestants.site import Contestant, Pids, Site
from mqinfer.bench.processes import CpuMeter, Program
from mqinfer.bench.thin_link import serve_link
from mqinfer.bench.workloads import Workload
from mqinfer.lab.machine import describe_machine
from mqinfer.lab.report_files import Panel, Report
from mqinfer.lab.reports import Cell, grid_of, machine_sentence
from mqinfer.protocol.errors import ConfigError, MqinferError

if TYPE_CHECKING:
    import typer

ROLES = ("client", "broker", "gateway", "worker")
_PERCENTILES = (50, 95, 99)
_COUNTED = 8
"""Requests whose bytes are counted."""
_SETTING = ("workload", "contestant", "workers", "vehicles", "callers")


@dataclass(frozen=True, slots=True)
class LinkOptions:
    """The link between clients and what they ask; each field is an option of `bench compare`."""

    mbit: Annotated[
        float, typer.Option("--link-mbit", help="Bandwidth of the link each way, in Mbit/s; 0 for any.", min=0)
    ] = 0
    delay_ms: Annotated[
        float, typer.Option("--link-delay", help="Delay of the link each way, in milliseconds.", min=0)
    ] = 0
    loss: Annotated[
        float, typer.Option("--link-loss", help="Share of its packets that are lost, in percent.", min=0, max=50)
    ] = 0.0

    @property
    def is_shaped(self) -> bool:
        """Whether it limits anything."""
        return bool(self.mbit or self.delay_ms or self.loss)

    def __str__(self) -> str:
        limits = {"Mbit/s": self.mbit, "ms": self.delay_ms, "% lost": self.loss}
        return ", link of " * self.is_shaped + ", ".join(f"{each:g} {unit}" for unit, each in limits.items() if each)


@dataclass(frozen=True, slots=True)
class CompareOptions:
    """How contestants are compared.

    Attributes:
        vehicles: Numbers of clients.
        workers: Numbers of mqinfer's workers.
        load: Of each turn, its `callers` left out.
        callers: Numbers of requests at a time of each vehicle.
        rounds: Turns of each contestant.
        link: Between the clients and what they ask.
        triton: Environment with nvidia-pytriton.
    """

    vehicles: tuple[int, ...] = (1,)
    workers: tuple[int, ...] = (1,)
    load: Load = field(default_factory=Load)
    callers: tuple[int, ...] = (1, 8)
    rounds: int = 3
    link: LinkOptions = field(default_factory=LinkOptions)
    triton: Path | None = None


@dataclass(slots=True)
class ComparedSeries:
    """All rounds of a contestant in a setting.

    Attributes:
        workload: Its name.
        contestant: Its name.
        workers: Of mqinfer.
        vehicles: Clients.
        callers: Requests at a time of each.
        rounds: Those that were measured.
        traffic: Bytes of a request and of its reply on their way; None where none is.
        reason: Why it was not measured.
    """

    workload: str
    contestant: str
    workers: int
    vehicles: int
    callers: int
    rounds: list[DrivenTurn] = field(default_factory=list)
    traffic: tuple[float, float] | None = None
    reason: str = "interrupted"

    @property
    def setting(self) -> tuple[str, int, int, int]:
        """What it shares with those that it took turns with."""
        return self.workload, self.workers, self.vehicles, self.callers

    def ratio(self, base: ComparedSeries) -> float | None:
        """Return the median of the rounds' ratios of its rate to another's: what slows a round down slows both."""
        pairs = zip(self.rounds, base.rounds, strict=False)  # the last round may have been interrupted
        ratios = [one.rate / other.rate for one, other in pairs if other.results]
        return median(ratios) if ratios else None


@dataclass(frozen=True, slots=True)
class _Entrant:
    """A contestant whose clients are connected, with its series by number of callers."""

    clients: Clients
    pids: Pids
    series: Mapping[int, ComparedSeries]

    def take_turn(self, load: Load) -> DrivenTurn:
        meter = CpuMeter({"client": self.clients.pids, **self.pids})
        turn = replace(self.clients.drive(load), cpu_s=meter.spent(), peaks=meter.peaks())
        series = self.series[load.callers]
        series.rounds.append(turn)
        series.reason = ""
        return turn


class Comparison:
    """Measures contestants, and keeps what was measured where it is interrupted.

    Args:
        workloads: What they ask.
        contestants: In the order of the table; ratios are to the first that was measured.
        options: How.
        report: Called with a line about each turn.
    """

    def __init__(
        self,
        workloads: Sequence[Workload],
        contestants: Sequence[Contestant],
        options: CompareOptions,
        report: Callable[[str], None],
    ) -> None:
        self._workloads, self._contestants, self._options = workloads, contestants, options
        self._report, self._spent = report, 0.0
        grid = len(workloads) * len(options.workers) * len(options.vehicles) * len(options.callers)
        self._turns, self._taken = grid * options.rounds * len(contestants), 0
        self.machine = describe_machine()
        self.found: list[ComparedSeries] = []

    def run(self) -> None:
        """Measure all settings, one after the other.

        Raises:
            KeyboardInterrupt: It was interrupted; `found` has what was measured.
            ConfigError: No contestant can serve a workload.
        """
        options = self._options
        for workload, workers in product(self._workloads, options.workers):
            with Site(workload, workers, max(options.vehicles), options.triton) as site:
                for vehicles in options.vehicles:
                    self._measure(site, workload, workers, vehicles)
        if not any(each.rounds for each in self.found):
            reasons = "; ".join(dict.fromkeys(f"{each.contestant}: {each.reason}" for each in self.found))
            raise ConfigError(f"no contestant was measured: {reasons}")

    def _measure(self, site: Site, workload: Workload, workers: int, vehicles: int) -> None:
        options, entrants = self._options, list[_Entrant]()
        settings = list(product(options.callers, self._contestants))
        series = [ComparedSeries(workload.name, each.name, workers, vehicles, callers) for callers, each in settings]
        self.found += series
        with ExitStack() as stack:
            for each in self._contestants:
                own = {one.callers: one for one in series if one.contestant == each.name}
                try:
                    _check(each, workload, is_first=workers == options.workers[0])
                    entrants.append(self._enter(stack, site, each, own))
                except (MqinferError, OSError) as error:
                    reason = " ".join(str(error).split())
                    for one in own.values():
                        one.reason = reason
                    self._turns -= options.rounds * len(own)
                    self._report(f"{each.name}: {reason}")
            self._rounds(entrants)

    def _enter(
        self, stack: ExitStack, site: Site, contestant: Contestant, series: Mapping[int, ComparedSeries]
    ) -> _Entrant:
        """Start what a contestant needs; count the bytes of its requests on the way."""
        (target, pids), link, program = contestant.enter(site), self._options.link, None
        if target.port:
            program = Program(serve_link, target.port, link.mbit, link.delay_ms, link.loss / 100)
            stack.enter_context(closing(program))
        between = int(program.first_line) if program else 0
        reached = structs.replace(target, port=between) if link.is_shaped else target
        vehicles = next(each.vehicles for each in series.values())
        clients = stack.enter_context(closing(Clients(reached, site.folder, vehicles)))
        if program:
            sizes = [json.loads(program.ask("passed"))]
            for requests in (1, 1 + _COUNTED):  # the one that comes with a connection is left out
                clients.send(between, requests)
                sizes.append(json.loads(program.ask("passed")))
            up, down = ((many - 2 * one + none) / _COUNTED for none, one, many in zip(*sizes, strict=True))
            for each in series.values():
                each.traffic = up, down
        return _Entrant(clients, pids, series)

    def _rounds(self, entrants: Sequence[_Entrant]) -> None:
        options = self._options
        for callers in options.callers:
            load = replace(options.load, callers=callers)
            for each in entrants:
                each.clients.drive(warm_up(load))
            for number in range(options.rounds):
                for each in rotated(entrants, number):
                    began = time.monotonic()
                    found = each.take_turn(load)
                    self._spent += time.monotonic() - began
                    self._taken += 1
                    self._report(
                        f"{each.series[callers].contestant}, {callers} at a time, round {number + 1}: "
                        f"{found.rate:,.1f} results/s; {self._time_left()}"
                    )

    def _time_left(self) -> str:
        left = self._spent / self._taken * (self._turns - self._taken)
        about = f"{left / 60:.0f} min" if left >= 90 else f"{left:.0f} s"
        return f"turn {self._taken} of {self._turns}, about {about} left"


def _check(contestant: Contestant, workload: Workload, *, is_first: bool) -> None:
    array = workload.array
    if contestant.picture and (array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3):
        raise ConfigError(
            f"model {workload.model!r} takes {array.dtype} {list(array.shape)}, and this carries pictures in bytes: "
            "uint8 [1, height, width, 3]"
        )
    if not contestant.shares and not is_first:
        raise ConfigError("it has no part of mqinfer's workers; its figures are those with the first number of them")


def compare(
    workloads: Sequence[Workload],
    contestants: Sequence[Contestant],
    options: CompareOptions,
    progress: Callable[[str], None],
    what: str = "Ways to a model",
) -> Report:
    """Measure contestants, and report it; an interrupt ends it, and what was measured before is reported.

    Raises:
        KeyboardInterrupt: Nothing was measured before.
        ConfigError: No contestant can serve a workload.
    """
    comparison = Comparison(workloads, contestants, options, progress)
    try:
        comparison.run()
    except KeyboardInterrupt:
        if not any(each.rounds for each in comparison.found):
            raise
        progress("interrupted; what was measured follows")
    return report_comparison(comparison, options, what)


def report_comparison(comparison: Comparison, options: CompareOptions, what: str = "Ways to a model") -> Report:
    """Return the report: a row for each contestant and setting, medians with their spread."""
    found = comparison.found
    bases = {each.setting: each for each in reversed(found) if each.rounds}
    base = next((each.contestant for each in found if each.rounds), "")
    rows = [_row(each, bases.get(each.setting), base) for each in found]
    title = f"{what}, {options.rounds} rounds, {_lasting(options.load)}{options.link}"
    grid = grid_of(title, rows, words=len(_SETTING), ends_in_words=True)
    about = (
        f"Medians of {options.rounds} interleaved rounds of {_lasting(options.load)}, with the least and the greatest; "
        "ratios are medians of those within a round. Processor time is for one result; memory is the peak of the "
        f"processes of each part. All shared the machine. {machine_sentence(comparison.machine)}"
    )
    whole = {"machine": comparison.machine, "options": options, "found": found}
    return Report(grid, _panels(options), about, whole)


def _lasting(load: Load) -> str:
    length = f"{load.samples:,} requests" if load.samples else f"{load.seconds:g} s"
    return f"{length}, {load.rate:g} frames/s a vehicle" if load.rate else length


def _panels(options: CompareOptions) -> list[Panel]:
    for over, least in {"vehicles": 2, "workers": 2, "callers": 3}.items():
        if len(getattr(options, over)) >= least:
            return [Panel(each, [each], over=over, by="contestant") for each in ("results/s", "p99 ms")]
    return [Panel("results/s", ["results/s"], is_log=True), Panel("p50, ms", ["p50 ms"], is_log=True)]


def _row(each: ComparedSeries, base: ComparedSeries | None, name: str) -> dict[str, Cell]:
    """Return every column; one has None where there is no figure."""
    turns, up_down = each.rounds, each.traffic or (None, None)
    rates = [turn.rate for turn in turns]

    def middle(figure: Callable[[DrivenTurn], float | None]) -> float | None:
        found = [value for value in map(figure, turns) if value is not None]
        return median(found) if found else None

    def percentile(share: int) -> float | None:
        return middle(lambda turn: 1000 * float(np.percentile(turn.times, share)) if turn.times else None)

    def cpu_ms(role: str) -> float | None:
        return middle(lambda turn: 1000 * turn.cpu_s[role] / max(1, turn.results) if role in turn.cpu_s else None)

    def mib(role: str) -> float | None:
        return middle(lambda turn: turn.peaks[role] / 2**20 if role in turn.peaks else None)

    figures: dict[str, Cell] = {
        "results/s": middle(lambda turn: turn.rate),
        "least": min(rates, default=None),
        "most": max(rates, default=None),
        f"times {name}": each.ratio(base) if base else None,
        **{f"p{share} ms": percentile(share) for share in _PERCENTILES},
        **{f"kB {way}": size and size / 1000 for way, size in zip(("up", "down"), up_down, strict=True)},
        **{f"{role} CPU ms": cpu_ms(role) for role in ROLES},
        **{f"{role} MiB": mib(role) for role in ROLES},
    }
    return {name: getattr(each, name) for name in _SETTING} | figures | _shares(each) | {"why not": each.reason}


def _shares(each: ComparedSeries) -> dict[str, Cell]:
    """Return of several vehicles what one takes of a core, and how evenly they are served; what was not answered."""
    turns, several = each.rounds, each.rounds if each.vehicles > 1 else ()
    cpu = [100 * turn.cpu_s["client"] / turn.seconds / each.vehicles for turn in several]
    return {
        "vehicle CPU %": median(cpu) if several else None,
        "Jain": median(turn.jain for turn in several) if several else None,
        "dropped": sum(turn.dropped for turn in turns) or None,
        "failed": sum(sum(turn.failures.values()) for turn in turns) if turns else None,
    }
