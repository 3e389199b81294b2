"""A fixed camera that watches a street from the side: a still scene with cars and pedestrians that pass.

A cascade's difference detector finds still frames only where the camera stands still.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mqinfer.lab.drives.camera import Floats, PinholeCamera
from mqinfer.lab.drives.canvas import Canvas, Colour, Pixels
from mqinfer.lab.drives.car import GLASS, LENGTH, PROFILE, RUBBER, SIDE_GLASS, WHEELS
from mqinfer.lab.drives.labels import Label
from mqinfer.lab.drives.light import HOURS, clouds
from mqinfer.lab.drives.synthetic import Scene, check_drive

_SLOT_S = 6.0
"""At most one car a lane starts in each slot of time; all its figures follow from the slot's number."""
_CAR_SHARE = 0.3
_WALKER_SHARE = 0.35
_PAINTS: tuple[Colour, ...] = (
    (186, 34, 38), (36, 70, 140), (222, 224, 226), (34, 36, 40), (128, 132, 138), (30, 96, 84), (206, 150, 40),
)  # fmt: skip
_COATS: tuple[Colour, ...] = ((60, 60, 90), (140, 60, 60), (70, 100, 70), (150, 140, 120))
_WALL: tuple[Colour, ...] = ((172, 120, 96), (196, 180, 152), (154, 154, 158), (146, 104, 92))


@dataclass(frozen=True, slots=True)
class _Lane:
    """Where cars drive: the row of the wheels and the size of a metre, as shares of the height, and the direction."""

    row: float
    metre: float
    direction: int


_LANES = (_Lane(0.72, 0.046, -1), _Lane(0.86, 0.058, 1))
_PAVEMENT = _Lane(0.64, 0.042, 1)


@dataclass(frozen=True, slots=True)
class _Passing:
    """What crosses the picture at one moment: its lane, the left end in pixels, the pixels of a metre, its colour."""

    lane: _Lane
    left: float
    metre: float
    colour: Colour


class StreetCamera:
    """A fixed camera; the seed determines scene, traffic, light and noise, and any frame can be rendered alone.

    Args:
        seed: 0 or more.
        width: Width of a frame, in pixels, 32 or more.
        height: Height of a frame, in pixels, 32 or more.
        rate: Frames a second.

    Raises:
        ConfigError: An argument is outside its bounds.
    """

    def __init__(self, seed: int, width: int = 608, height: int = 608, rate: float = 10.0) -> None:
        check_drive(seed, width, height, rate)
        self._seed, self._size, self._rate = seed, (width, height), rate
        rng = np.random.default_rng([seed, 0])
        self._still = self._draw_scene(rng)
        self._phase = float(rng.uniform(0, 2 * np.pi))
        self._grain = np.rint(rng.normal(0, 3.0, (height + 64, width + 64, 3))).astype(np.int16)

    def scene(self, index: int) -> Scene:
        """Render frame `index`, counted from 0."""
        canvas = self._canvas(self._still.picture.copy(), self._still.mask.copy())
        seconds = index / self._rate
        for walker in self._walkers(seconds):
            self._draw_walker(canvas, walker)
        for car in self._cars(seconds):
            self._draw_car(canvas, car)
        return Scene(self._expose(canvas.picture, index), canvas.mask)

    def boxes(self, index: int) -> Floats:
        """Return the boxes of the cars in frame `index`, left, top, right and bottom in pixels, float64 [n,4].

        A car that is mostly outside the picture has none.
        """
        width, height = self._size
        found = []
        for car in self._cars(index / self._rate):
            left, right = car.left, car.left + LENGTH * car.metre
            bottom = car.lane.row * height
            inside = min(right, width) - max(left, 0.0)
            if inside > 0.4 * (right - left):
                found.append((max(left, 0.0), bottom - 1.5 * car.metre, min(right, float(width)), bottom))
        return np.array(found, np.float64).reshape(-1, 4)

    def _cars(self, seconds: float) -> list[_Passing]:
        return [car for number, lane in enumerate(_LANES) for car in self._passing(lane, number, seconds)]

    def _walkers(self, seconds: float) -> list[_Passing]:
        return self._passing(_PAVEMENT, len(_LANES), seconds)

    def _passing(self, lane: _Lane, number: int, seconds: float) -> list[_Passing]:
        """Return what is on a lane: each slot of time starts at most one at the edge of the picture."""
        width, height = self._size
        metre = lane.metre * height
        is_walk = lane is _PAVEMENT
        across_m, longest_s = width / metre + LENGTH, 20.0 if is_walk else 6.0
        found = []
        first = int(np.floor((seconds - longest_s) / _SLOT_S))
        for slot in range(first, int(np.floor(seconds / _SLOT_S)) + 1):
            rng = np.random.default_rng([self._seed, 3, number, slot + 1_000_000])
            if rng.random() >= (_WALKER_SHARE if is_walk else _CAR_SHARE):
                continue
            start = _SLOT_S * (slot + rng.random())
            speed = rng.uniform(1.1, 1.7) if is_walk else rng.uniform(5.0, 9.0)
            colour = (_COATS if is_walk else _PAINTS)[int(rng.integers(len(_COATS if is_walk else _PAINTS)))]
            driven = (seconds - start) * speed
            if 0 <= driven <= across_m:
                left_m = driven - LENGTH if lane.direction > 0 else across_m - LENGTH - driven
                found.append(_Passing(lane, left_m * metre, metre, colour))
        return found

    def _canvas(self, picture: Pixels, mask: Pixels) -> Canvas:
        return Canvas(picture, mask, PinholeCamera(*self._size, np.zeros(2), 0.0), (0, 0, 0), 1.0)

    def _draw_scene(self, rng: np.random.Generator) -> Canvas:
        """Paint what stands still: sky, houses, trees, pavement and road."""
        width, height = self._size
        canvas = self._canvas(np.zeros((height, width, 3), np.uint8), np.zeros((height, width), np.uint8))
        hour = HOURS[int(rng.integers(len(HOURS)))]
        canvas.picture[:] = hour.haze
        canvas.picture[:] = np.maximum(canvas.picture, clouds(rng, width, height)[..., None] // 2 + 110)
        left = -0.1 * width
        while left < width:
            right = left + float(rng.uniform(0.2, 0.45)) * width
            self._draw_house(canvas, rng, left, right)
            left = right + float(rng.choice([0.0, 0.06])) * width
        for top, bottom, colour, label in (
            (0.58, 0.66, (168, 164, 158), Label.PAVEMENT),
            (0.66, 0.9, (104, 104, 108), Label.ROAD),
            (0.775, 0.785, (226, 226, 220), Label.LANE_MARK),
            (0.9, 1.0, (158, 152, 146), Label.PAVEMENT),
        ):
            rows = slice(round(top * height), round(bottom * height))
            canvas.picture[rows], canvas.mask[rows] = colour, label
        grain = rng.integers(-9, 10, (height, width, 1), dtype=np.int16)
        canvas.picture[:] = np.clip(canvas.picture + grain, 0, 250)
        return canvas

    def _draw_house(self, canvas: Canvas, rng: np.random.Generator, left: float, right: float) -> None:
        height = self._size[1]
        wall = _WALL[int(rng.integers(len(_WALL)))]
        top = float(rng.uniform(0.08, 0.3)) * height
        canvas.fill([_rectangle(left, top, right, 0.6 * height)], wall, Label.BUILDING)
        step = 0.075 * height
        for row in np.arange(top + 0.4 * step, 0.52 * height, 1.4 * step):
            for column in np.arange(left + 0.5 * step, right - step, 1.3 * step):
                canvas.fill([_rectangle(column, row, column + 0.6 * step, row + 0.8 * step)], (70, 82, 96), None)

    def _draw_car(self, canvas: Canvas, car: _Passing) -> None:
        ground = car.lane.row * self._size[1]

        def side(points: Floats) -> Floats:
            along = points[:, 0] if car.lane.direction > 0 else LENGTH - points[:, 0]
            return np.stack([car.left + along * car.metre, ground - points[:, 1] * car.metre], axis=-1)

        shadow = np.array([(-0.1, -0.12), (-0.1, 0.12), (LENGTH + 0.1, 0.12), (LENGTH + 0.1, -0.12)])
        canvas.fill([side(shadow)], (58, 58, 62), None)
        canvas.fill([side(PROFILE)], car.colour, Label.CAR)
        canvas.fill([side(SIDE_GLASS)], GLASS, Label.CAR)
        for wheel in WHEELS:
            canvas.fill([side(wheel)], RUBBER, Label.CAR)

    def _draw_walker(self, canvas: Canvas, walker: _Passing) -> None:
        ground, metre = walker.lane.row * self._size[1], walker.metre
        canvas.fill(
            [_rectangle(walker.left, ground - 1.5 * metre, walker.left + 0.45 * metre, ground)], walker.colour, None
        )
        head = _rectangle(
            walker.left + 0.1 * metre, ground - 1.78 * metre, walker.left + 0.35 * metre, ground - 1.5 * metre
        )
        canvas.fill([head], (196, 160, 136), None)

    def _expose(self, picture: Pixels, index: int) -> Pixels:
        """Apply the light of passing clouds, 2 % over 40 s, and the sensor's noise, 3 of 255."""
        height, width = picture.shape[:2]
        gain = 1 + 0.02 * np.sin(2 * np.pi * index / (40 * self._rate) + self._phase)
        down, right = np.random.default_rng([self._seed, 78, index]).integers(0, 64, 2)
        table = np.clip(np.arange(256) * gain, 0, 250).astype(np.int16)
        noisy = table[picture] + self._grain[down : down + height, right : right + width]
        exposed: Pixels = np.clip(noisy, 0, 255).astype(np.uint8)
        return exposed


def _rectangle(left: float, top: float, right: float, bottom: float) -> Floats:
    return np.array([(left, top), (right, top), (right, bottom), (left, bottom)])
