"""`python -m tests.simulation [--seeds N] [--first N] [--processes N]`: run seeds; `--seed N --trace` replays one.

With `--nats` the broker is a nats-server.

Ends with 1 where a rule was broken, and prints each seed, the rule, and what happened last.
"""

from __future__ import annotations

import argparse
import gc
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial

from tests.simulation.frames import simulate_frames
from tests.simulation.runs import Report, simulate

_LAST = 40
"""Lines of the trace that are printed with a broken rule."""
_EACH = 5_000
"""Seeds between two lines about the progress."""


def main() -> int:
    """Run; 1 where a rule was broken."""
    options = _options()
    if options.seed is not None:
        report = simulate(options.seed, traced=True, is_nats=options.nats)
        report.violations.extend(simulate_frames(options.seed).violations)
        _print(report, len(report.trace) if options.trace else _LAST)
        return 1 if report.violations else 0
    return run_all(range(options.first, options.first + options.seeds), options.processes, is_nats=options.nats)


def run_all(seeds: range, processes: int, *, is_nats: bool = False) -> int:
    """Run seeds and print what was found and counted; return 1 where a rule was broken."""
    began, done, counts, broken = time.monotonic(), 0, Counter[str](), list[int]()
    for report in _reports(seeds, processes, is_nats=is_nats):
        done += 1
        counts.update(report.counts)
        counts["events"] += report.steps
        if report.violations:
            broken.append(report.seed)
            _print(report, _LAST)
        if done % _EACH == 0:
            sys.stdout.write(f"{done} runs, {len(broken)} with a broken rule, {time.monotonic() - began:.0f} s\n")
            sys.stdout.flush()
    for name, count in sorted(counts.items()):
        sys.stdout.write(f"{name:40} {count}\n")
    sys.stdout.write(f"{done} runs, {len(broken)} with a broken rule {broken[:20]}, {time.monotonic() - began:.0f} s\n")
    return 1 if broken else 0


def _reports(seeds: range, processes: int, *, is_nats: bool) -> Iterator[Report]:
    both = partial(_simulate_both, is_nats=is_nats)
    if processes == 1:
        yield from map(both, seeds)
        return
    with multiprocessing.get_context("spawn").Pool(processes, gc.set_threshold, (100_000,)) as pool:
        yield from pool.imap_unordered(both, seeds, chunksize=50)


def _simulate_both(seed: int, *, is_nats: bool) -> Report:
    """Run a seed of the protocol, and of the edge's frames."""
    report, frames = simulate(seed, is_nats=is_nats), simulate_frames(seed)
    report.violations.extend(frames.violations)
    report.counts.update({f"frames: {name}": number for name, number in frames.counts.items()})
    return report


def _print(report: Report, lines: int) -> None:
    for line in report.trace[-lines:]:
        sys.stdout.write(f"{line}\n")
    for violation in report.violations:
        sys.stdout.write(f"seed {report.seed}: {violation}\n")
    sys.stdout.write(f"seed {report.seed}: {report.steps} events, trace {report.digest[:16]}\n")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many runs")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--processes", type=int, default=1, help="how many at a time")
    parser.add_argument("--seed", type=int, default=None, help="run this one alone")
    parser.add_argument("--nats", action="store_true", help="with a nats-server in place of a Mosquitto")
    parser.add_argument("--trace", action="store_true", help="print all that happened in it")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
