"""The tables of `python -m benchmarks autoscale`: each rule over all patterns, and the chosen one for each of them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product

from benchmarks.autoscale.patterns import PATTERNS, frames_of
from benchmarks.autoscale.rules import CHOSEN, CONTESTANTS
from benchmarks.autoscale.simulation import Followed, SiteOptions, follow
from mqinfer.lab.reports import Grid

_STARTS_S = (5.0, 20.0)
"""Seconds until a worker serves: a small model with its engine at hand, and a large one or an image to fetch."""
_IN_TIME = 0.99


@dataclass(frozen=True, slots=True)
class Run:
    """A rule on a pattern with a time that workers take to start."""

    rule: str
    pattern: str
    start_s: float
    found: Followed

    @property
    def late(self) -> float:
        """Frames without an answer in time, in per cent."""
        return 100 * self.found.late / self.found.frames


def play() -> Iterator[Run]:
    """Let each rule follow each pattern, and yield what becomes of it."""
    with ProcessPoolExecutor(os.cpu_count()) as processes:
        yield from processes.map(_run, *zip(*product(CONTESTANTS, PATTERNS, _STARTS_S), strict=True))


def _run(rule: str, pattern: str, start_s: float) -> Run:
    found = follow(frames_of(pattern), CONTESTANTS[rule](), SiteOptions(start_s=start_s))
    return Run(rule, pattern, start_s, found)


def rules_grid(runs: Sequence[Run]) -> Grid:
    """Return a row for each rule, the cheapest of those that keep 99 % in time in each run first."""
    rows = []
    for rule in dict.fromkeys(run.rule for run in runs):
        own = [run for run in runs if run.rule == rule]
        late = 100 * sum(run.found.late for run in own) / sum(run.found.frames for run in own)
        worst = max(run.late for run in own)
        rows.append((rule, f"{late:.2f}", f"{worst:.2f}", *_costs(own)))
    rows.sort(key=lambda row: (float(row[2]) > 100 * (1 - _IN_TIME), float(row[3])))
    headings = ("rule", "late, %", "worst run", "worker hours", "starts", "turns")
    return Grid(f"Rules over {len(PATTERNS)} patterns and {len(_STARTS_S)} start-up times", headings, rows, 1)


def _costs(runs: Sequence[Run]) -> tuple[str, str, str]:
    """Return the hours of all workers, how many were started, and how often their number turned."""
    found = [run.found for run in runs]
    hours = sum(each.worker_s for each in found) / 3600
    return f"{hours:.2f}", str(sum(each.starts for each in found)), str(sum(each.turns for each in found))


def chosen_grid(runs: Sequence[Run]) -> Grid:
    """Return a row for each run of the chosen rule."""
    own = [run for run in runs if run.rule == CHOSEN]
    rows = [
        (run.pattern, f"{run.start_s:g} s", str(run.found.frames), f"{run.late:.2f}", *_costs([run])) for run in own
    ]
    headings = ("pattern", "start-up", "frames", "late, %", "worker hours", "starts", "turns")
    return Grid(f"The chosen rule: {CHOSEN}", headings, rows, 2)
