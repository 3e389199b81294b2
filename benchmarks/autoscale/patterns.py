"""When fleets send frames: five patterns of an hour, each from one seed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from random import Random

_LIVE_S, _STORED_S = 30.0, 600.0
"""A frame is in time if its answer comes within so many seconds: one that is seen now, and one from a disk."""


Frame = tuple[float, int, float]
"""When it is there, in seconds, its vehicle, and the seconds within which its answer is in time."""


def _steady(random: Random, vehicle: int, begin: float, end: float, rate: float) -> Iterator[Frame]:
    """Send frames of a camera: at an even rate, with a little jitter."""
    at = begin + random.random() / rate
    while at < end:
        yield at, vehicle, _LIVE_S
        at += random.uniform(0.9, 1.1) / rate


def _shift_change(random: Random) -> Iterator[Frame]:
    """Two vehicles drive; in two minutes ten more leave the depot, and in one they are back."""
    for vehicle in range(12):
        begin, end = (0.0, 3600.0) if vehicle < 2 else (600 + random.uniform(0, 120), 2400 + random.uniform(0, 60))
        yield from _steady(random, vehicle, begin, end, 0.5)


def _convoy(random: Random) -> Iterator[Frame]:
    """Two vehicles drive; three times an hour six more pass at once, for three minutes."""
    for vehicle in range(8):
        times = [(0.0, 3600.0)] if vehicle < 2 else [(begin, begin + 180.0) for begin in (500.0, 1500.0, 2500.0)]
        for begin, end in times:
            yield from _steady(random, vehicle, begin, end, 0.75 if vehicle >= 2 else 0.5)


def _night_uploads(random: Random) -> Iterator[Frame]:
    """One vehicle drives; at two times three come home, each with 250 frames on its disk."""
    yield from _steady(random, 0, 0.0, 3600.0, 0.5)
    for vehicle in range(1, 7):
        home = (600.0 if vehicle < 4 else 2100.0) + random.uniform(0, 60)
        yield from ((home + number * 0.02, vehicle, _STORED_S) for number in range(250))


def _diurnal(random: Random) -> Iterator[Frame]:
    """A day in an hour: from nothing to six frames a second, and back."""
    at = 0.0
    while (at := at + random.expovariate(6.0)) < 3600:
        if random.random() < 0.5 - 0.5 * math.cos(at / 3600 * math.tau):
            yield at, random.randrange(12), _LIVE_S


def _bursts(random: Random) -> Iterator[Frame]:
    """Two vehicles drive; every two minutes or so one of eight comes out of a tunnel with 10 to 40 frames."""
    for vehicle in range(2):
        yield from _steady(random, vehicle, 0.0, 3600.0, 0.5)
    at = 0.0
    while (at := at + random.expovariate(1 / 120)) < 3500:
        vehicle = random.randrange(2, 10)
        yield from ((at + number * 0.02, vehicle, _LIVE_S) for number in range(random.randrange(10, 41)))


PATTERNS: dict[str, Callable[[Random], Iterator[Frame]]] = {
    "shift change": _shift_change,
    "convoy": _convoy,
    "night uploads": _night_uploads,
    "diurnal": _diurnal,
    "bursts": _bursts,
}


def frames_of(pattern: str, seed: int = 1) -> list[Frame]:
    """Return the frames of a pattern, by time."""
    return sorted(PATTERNS[pattern](Random(seed)))  # noqa: S311  no secret depends on it
