"""The numbers of calls and files that a request and a frame may take, kept in `golden_calls.json`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from benchmarks.calls import CountedCalls

TOLERANCE = 0.03
"""Greatest share by which a figure may exceed the golden one; fewer calls are held by `--write`."""
_BY_CHANCE = 0.12
"""The same for the calls in `broker/`: a packet that arrives with the one before it needs no wake-up of its own."""
_BROKER = "calls in broker/, both sides"

Figures = Mapping[str, Mapping[str, int]]
"""Figures by name, of each thing that was counted."""

_FILE = Path(__file__).with_name("golden_calls.json")


def figures_of(counted: Iterable[CountedCalls]) -> dict[str, dict[str, int]]:
    """Return the golden figures of what was counted: own calls in the room `broker`, others of each side, and files.

    Several callers share the wake-ups of threads by chance, so only counts of one caller have golden figures.
    """
    return {each.what: _figures(each) for each in counted if "callers" not in each.what}


def differences(figures: Figures, golden: Figures) -> dict[tuple[str, str], str]:
    """Return the figures that exceed the golden ones by more than the tolerance, or are counted no more, in words."""
    names = {(what, name) for each in (figures, golden) for what, by_name in each.items() for name in by_name}
    found = {}
    for what, name in sorted(names):
        figure, expected = figures.get(what, {}).get(name, 0), golden.get(what, {}).get(name, 0)
        tolerance = _BY_CHANCE if name == _BROKER else TOLERANCE
        if figure > (1 + tolerance) * expected or not figure:
            found[what, name] = f"{what}: {name}: {figure}, expected {expected}, or {tolerance:.0%} more at most"
    return found


def read_golden() -> dict[str, dict[str, int]]:
    """Return the golden figures."""
    golden: dict[str, dict[str, int]] = json.loads(_FILE.read_text(encoding="utf-8"))
    return golden


def write_golden(figures: Figures) -> Path:
    """Make these figures the golden ones; return the file."""
    _FILE.write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return _FILE


def _figures(counted: CountedCalls) -> dict[str, int]:
    together = counted.together()
    figures = {_BROKER: together.rooms["broker"], "other calls, both sides": together.own - together.rooms["broker"]}
    if "edge" not in counted.sides:  # a request alone; of frames that overlap, each side's share changes with timing
        figures |= {
            f"other calls of the {role}": side.own - side.rooms["broker"] for role, side in counted.sides.items()
        }
    return {**{name: round(figure) for name, figure in figures.items()}, "files": len(together.files)}
