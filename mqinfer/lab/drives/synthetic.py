"""Synthetic drives: road scenes in perspective with their ground truth, reproducible from a seed.

They need no file, download or licence, and serve the demo, the tests, and the training of the zoo's
`drive_segmentation`. Any frame can be rendered independently.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mqinfer.lab.drives.camera import Floats, PinholeCamera
from mqinfer.lab.drives.canvas import Canvas, Pixels
from mqinfer.lab.drives.car import Car, draw_car, shadow_of
from mqinfer.lab.drives.ground import Ground, draw_ground, draw_sky
from mqinfer.lab.drives.labels import CLASSES, Label
from mqinfer.lab.drives.light import HOURS, Sensor, clouds
from mqinfer.lab.drives.things import Building, Lamp, Tree, draw_building, draw_lamp, draw_tree
from mqinfer.lab.drives.world import Thing, World
from mqinfer.protocol.errors import ConfigError

__all__ = ["CLASSES", "Label", "Scene", "SyntheticDrive", "check_drive"]

_SOILS = ((98.0, 124.0, 62.0), (116.0, 130.0, 70.0), (132.0, 120.0, 84.0), (84.0, 112.0, 58.0))


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """One rendered frame.

    Attributes:
        picture: RGB as the sensor read it, uint8 [H,W,3].
        mask: Number of each pixel's class in `CLASSES`, uint8 [H,W].
    """

    picture: Pixels
    mask: Pixels


def check_drive(seed: int, width: int, height: int, rate: float) -> None:
    """Raise if a drive, or a street, can't be made of these.

    Raises:
        ConfigError: An argument is outside its bounds.
    """
    if seed < 0 or min(width, height) < 32 or not rate > 0:
        raise ConfigError(
            f"seed {seed}, {width}x{height}, rate {rate}: expected a seed of 0 or more, 32 pixels or more each way "
            "and a positive rate"
        )


class SyntheticDrive:
    """A drive along one road; the seed determines road, surroundings, traffic and hour.

    Args:
        seed: 0 or more.
        width: Width of a frame, in pixels, 32 or more.
        height: Height of a frame, in pixels, 32 or more.
        rate: Frames a second.

    Raises:
        ConfigError: An argument is outside its bounds.
    """

    def __init__(self, seed: int, width: int = 968, height: int = 608, rate: float = 10.0) -> None:
        check_drive(seed, width, height, rate)
        rng = np.random.default_rng([seed, 0])
        self._seed, self._width, self._height, self._rate = seed, width, height, rate
        self._world = World.make(seed)
        self._hour = HOURS[int(rng.integers(len(HOURS)))]
        soil = _SOILS[int(rng.integers(len(_SOILS)))]
        self._ground = Ground.make(rng, self._world.layout, soil, width, height)
        self._clouds = clouds(rng, 2 * width, height)
        self._treeline = rng.uniform(0, 2 * np.pi, 4)
        self._sensor = Sensor.make(seed, width, height, self._hour.tint)

    def scene(self, index: int) -> Scene:
        """Render frame `index`, counted from 0."""
        seconds = index / self._rate
        position = 40.0 + self._world.speed * seconds
        canvas = self._canvas(index, position)
        things = self._world.things(position, seconds)
        self._draw_backdrop(canvas, position, things)
        for thing in things:
            _draw(canvas, thing, position)
        return Scene(self._sensor.expose(canvas.picture, index), canvas.mask)

    def _canvas(self, index: int, position: float) -> Canvas:
        shake = 0.006 * np.sin(0.9 * index) + 0.003 * np.sin(2.3 * index + self._seed)
        sway = 0.12 * np.sin(0.13 * index + self._seed)
        view = PinholeCamera(
            self._width,
            self._height,
            self._world.course.offsets(position),
            self._world.camera_right + float(sway),
            pitch=float(shake),
        )
        picture = np.zeros((self._height, self._width, 3), np.uint8)
        mask = np.zeros((self._height, self._width), np.uint8)
        return Canvas(picture, mask, view, self._hour.haze, self._hour.clarity)

    def _draw_backdrop(self, canvas: Canvas, position: float, things: list[Thing]) -> None:
        heading = float(canvas.view.offsets[60]) / 60
        draw_sky(canvas, self._hour, self._clouds, int(-heading * canvas.view.focal - position * 0.05))
        draw_ground(canvas, self._ground, position, self._shadows(things, position), self._hour.shadow)
        self._draw_treeline(canvas, position)

    def _draw_treeline(self, canvas: Canvas, position: float) -> None:
        """Paint the wooded hills on the horizon."""
        columns = np.linspace(0, self._width, 90)
        heading = self._world.course.curvature(np.arange(position))[:].sum()
        angle = columns / canvas.view.focal + heading
        waves = sum(
            np.sin(angle * pace + phase) / (1 + n)
            for n, (pace, phase) in enumerate(zip((3.1, 7.7, 23, 61), self._treeline, strict=True))
        )
        rows = canvas.view.horizon - self._height * (0.032 + 0.014 * waves)
        ridge = np.stack([columns, rows], axis=-1)
        feet = np.array([(self._width, canvas.view.horizon + 3), (0, canvas.view.horizon + 3)])
        canvas.fill([np.concatenate([ridge, feet])], canvas.fade((66, 88, 62), 110), Label.VEGETATION)

    def _shadows(self, things: list[Thing], position: float) -> list[Floats]:
        shadows = [shadow_of(thing, position) for thing in things if isinstance(thing, Car)]
        return shadows + [_crown_shadow(thing, position) for thing in things if isinstance(thing, Tree)]


def _crown_shadow(tree: Tree, position: float) -> Floats:
    turn = np.linspace(0, 2 * np.pi, 14, endpoint=False)
    ahead = tree.reach - position + 1.1 * tree.radius * np.sin(turn)
    right = tree.right - 0.9 * tree.trunk + tree.radius * np.cos(turn)
    return np.stack([ahead, right, np.zeros_like(turn)], axis=-1)


def _draw(canvas: Canvas, thing: Thing, position: float) -> None:
    match thing:
        case Building():
            draw_building(canvas, thing, position)
        case Tree():
            draw_tree(canvas, thing, position)
        case Lamp():
            draw_lamp(canvas, thing, position)
        case Car():
            draw_car(canvas, thing, position)
