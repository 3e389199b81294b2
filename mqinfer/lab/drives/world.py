"""Objects and traffic along a drive, all of them a function of the seed."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mqinfer.lab.drives.camera import Course
from mqinfer.lab.drives.canvas import Colour
from mqinfer.lab.drives.car import Car
from mqinfer.lab.drives.ground import RoadLayout
from mqinfer.lab.drives.things import Building, Lamp, Tree

Thing = Building | Tree | Lamp | Car

_CELL_M = 12.0
_AHEAD_M = 140.0
_WALLS: tuple[Colour, ...] = (
    (172, 120, 96), (196, 180, 152), (154, 154, 158), (206, 198, 186), (146, 104, 92), (180, 164, 140), (120, 128, 138),
)  # fmt: skip
_PAINTS: tuple[Colour, ...] = (
    (186, 34, 38), (36, 70, 140), (214, 216, 218), (40, 42, 46), (128, 132, 138), (226, 226, 222), (30, 96, 84),
    (206, 150, 40), (90, 30, 44), (70, 110, 160),
)  # fmt: skip
_LEAVES: tuple[Colour, ...] = ((62, 96, 44), (78, 108, 46), (50, 84, 52), (98, 112, 50), (120, 104, 44))


@dataclass(frozen=True, slots=True)
class World:
    """Surroundings of a drive.

    Attributes:
        seed: Seed of the drive.
        course: Course of the road.
        layout: Cross-section of the road.
        town: Probability of a building beside each 12 metres of road.
        green: Probability of a tree there.
        traffic: Mean distance of oncoming cars, in metres.
        speed: Speed of the camera, in m/s.
        follows: Whether a car drives ahead in the camera's lane.
    """

    seed: int
    course: Course
    layout: RoadLayout
    town: float
    green: float
    traffic: float
    speed: float
    follows: bool
    _cells: dict[int, tuple[Thing, ...]] = field(default_factory=dict, compare=False)

    @classmethod
    def make(cls, seed: int) -> World:
        """Create the surroundings of a drive from its seed."""
        rng = np.random.default_rng([seed, 1])
        bends = float(rng.uniform(0.001, 0.008))
        phases = rng.uniform(0, 2 * np.pi, 2)
        course = Course((bends, bends / 3), (float(rng.uniform(180, 380)), 130.0), (float(phases[0]), float(phases[1])))
        town = float(rng.choice([0.0, 0.2, 0.5, 0.9]))
        layout = RoadLayout(
            lanes=int(rng.integers(1, 3)),
            lane=float(rng.uniform(3.2, 3.6)),
            parking=2.2 if town > 0.2 and rng.random() < 0.6 else 0.0,
            pavement=float(rng.uniform(1.8, 3.2)) if town > 0.1 or rng.random() < 0.5 else 0.0,
            yellow=bool(rng.random() < 0.3),
        )
        return cls(
            seed,
            course,
            layout,
            town,
            float(rng.uniform(0.35, 0.85)),
            float(rng.uniform(18, 60)),
            float(rng.uniform(8, 14)),
            bool(rng.random() < 0.65),
        )

    @property
    def camera_right(self) -> float:
        """Distance of the camera from the centre line in metres: the middle of the inner right lane."""
        return self.layout.lane / 2

    def things(self, position: float, seconds: float) -> list[Thing]:
        """Return the objects that are visible from a position at a time, from far to near."""
        first = int(np.floor((position - _CELL_M) / _CELL_M))
        last = int(np.floor((position + _AHEAD_M) / _CELL_M))
        near = [thing for cell in range(first, last + 1) for thing in self._cell(cell)]
        seen = [thing for thing in near + self._traffic(position, seconds) if _in_sight(thing, position)]
        return sorted(seen, key=lambda thing: -thing.reach)

    def _cell(self, number: int) -> tuple[Thing, ...]:
        if number not in self._cells:
            self._cells[number] = tuple(self._furnish(number))
        return self._cells[number]

    def _furnish(self, number: int) -> list[Thing]:
        rng = np.random.default_rng([self.seed, 2, number + 1_000_000])
        start = number * _CELL_M
        things: list[Thing] = []
        for side in (-1.0, 1.0):
            things += self._greenery(rng, start, side)
            if rng.random() < self.town:
                right = side * (self.layout.verge + float(rng.choice([1.0, 2.5, 4.0])))
                length = _CELL_M - float(rng.choice([0.0, 0.0, 2.5]))
                things.append(
                    Building(
                        start,
                        length,
                        right,
                        float(rng.integers(2, 6)) * 3.0 + 0.8,
                        _pick(rng, _WALLS),
                        (74.0, 92.0, 112.0),
                    )
                )
            if self.layout.parking and rng.random() < 0.5:
                right = side * (self.layout.marked + 1.2)
                things.append(Car(start + float(rng.uniform(0, 6)), right, _pick(rng, _PAINTS), side < 0))
        if number % 2 == 0:
            side = 1.0 if number % 4 else -1.0
            things.append(Lamp(start + 3.0, side * (self.layout.kerb + 0.5), 6.5))
        return things

    def _greenery(self, rng: np.random.Generator, start: float, side: float) -> list[Thing]:
        trees: list[Thing] = []
        if rng.random() < self.green:
            right = side * (self.layout.verge + float(rng.uniform(0.4, 1.4)))
            trees.append(_plant(rng, start + float(rng.uniform(0, 12)), right, float(rng.uniform(1.8, 2.8))))
        if rng.random() < self.green * (1 - self.town):
            right = side * (self.layout.verge + float(rng.uniform(6, 22)))
            trees.append(_plant(rng, start + float(rng.uniform(0, 12)), right, float(rng.uniform(1.8, 3.2))))
        if rng.random() < 0.4:
            right = side * (self.layout.verge + float(rng.uniform(1.2, 5)))
            trees.append(_plant(rng, start + float(rng.uniform(0, 12)), right, 0.0))
        return trees

    def _traffic(self, position: float, seconds: float) -> list[Thing]:
        cars: list[Thing] = []
        oncoming = 11.0
        for lane in range(self.layout.lanes):
            shift = oncoming * seconds
            first = int(np.ceil((position + shift) / self.traffic))
            last = int(np.floor((position + shift + _AHEAD_M) / self.traffic))
            for number in range(first, last + 1):
                rng = np.random.default_rng([self.seed, 3, lane, number + 1_000_000])
                jitter = float(rng.uniform(-0.35, 0.35)) * self.traffic
                right = -(lane + 0.5) * self.layout.lane
                cars.append(Car(number * self.traffic - shift + jitter, right, _pick(rng, _PAINTS), True))
        return cars + self._same_way(position, seconds)

    def _same_way(self, position: float, seconds: float) -> list[Thing]:
        rng = np.random.default_rng([self.seed, 4])
        paints = (_pick(rng, _PAINTS), _pick(rng, _PAINTS))
        phase, gap, other = float(rng.uniform(0, 6)), float(rng.uniform(9, 20)), float(rng.uniform(8, 22))
        cars: list[Thing] = []
        if self.follows:
            ahead = gap + 5 * np.sin(0.23 * seconds + phase)
            cars.append(Car(position + float(ahead), self.camera_right, paints[0], False))
        if self.layout.lanes > 1:
            ahead = other + 14 * np.sin(0.17 * seconds + 2 * phase)
            cars.append(Car(position + float(ahead), 1.5 * self.layout.lane, paints[1], False))
        return cars


def _pick(rng: np.random.Generator, colours: tuple[Colour, ...]) -> Colour:
    base = colours[int(rng.integers(len(colours)))]
    factor = float(rng.uniform(0.88, 1.1))
    return (min(base[0] * factor, 255), min(base[1] * factor, 255), min(base[2] * factor, 255))


def _plant(rng: np.random.Generator, reach: float, right: float, trunk: float) -> Tree:
    """Create a tree, or a bush if the trunk is 0 m high."""
    radius = float(rng.uniform(1.3, 2.4)) if trunk else float(rng.uniform(0.5, 0.9))
    count = 16 if trunk else 7
    turn, far = rng.uniform(0, 2 * np.pi, count), np.sqrt(rng.uniform(0, 0.55, count))
    aside, up = far * np.cos(turn), far * np.sin(turn) * (1.0 if trunk else 0.5)
    light = np.clip(0.82 + 0.32 * up - 0.1 * aside + rng.uniform(-0.07, 0.07, count), 0.5, 1.3)
    sizes = rng.uniform(0.34, 0.6, count)
    blobs = sorted(zip(aside, up, sizes, light, strict=True), key=lambda blob: blob[3])
    crown = tuple((float(blob[0]), float(blob[1]), float(blob[2]), float(blob[3])) for blob in blobs)
    return Tree(reach, right, trunk, radius, _pick(rng, _LEAVES), crown)


def _in_sight(thing: Thing, position: float) -> bool:
    limits = {Building: (1.3, 140.0), Tree: (2.2, 130.0), Lamp: (2.2, 46.0), Car: (2.0, 95.0)}
    nearest, farthest = limits[type(thing)]
    return nearest < thing.reach - position < farthest
