"""Cars: a side profile extruded to the car's width, with windows, lights and wheels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mqinfer.lab.drives.camera import Floats
from mqinfer.lab.drives.canvas import Canvas, Colour
from mqinfer.lab.drives.labels import Label

_WIDTH = 1.8
LENGTH = 4.3
"""Metres."""
GLASS: Colour = (44, 52, 60)
RUBBER: Colour = (26, 26, 28)
_PLATE: Colour = (214, 214, 206)
_TAIL: Colour = (196, 30, 30)
_HEAD: Colour = (250, 246, 226)

# The side view from the rear bumper over the roof to the front bumper: metres along, metres up.
PROFILE = np.array([(0.0, 0.3), (0.0, 0.95), (0.35, 1.02), (0.95, 1.48), (2.45, 1.5), (3.15, 1.02), (4.2, 0.85),
                     (4.3, 0.3)])  # fmt: skip
SIDE_GLASS = np.array([(0.62, 1.04), (1.05, 1.4), (2.4, 1.42), (2.92, 1.04)])
_PANELS = (0.86, 0.95, None, 1.0, None, 1.04, 0.9)  # brightness of each panel between profile points; None is glass
_TURN = np.linspace(0, 2 * np.pi, 12, endpoint=False)
_WHEEL = 0.33 * np.stack([np.cos(_TURN), np.sin(_TURN)], axis=-1)
WHEELS = tuple(_WHEEL + np.array([along, 0.33]) for along in (0.85, 3.4))
"""Outlines of the wheels in the side view."""


@dataclass(frozen=True, slots=True)
class Car:
    """A car at one moment.

    Attributes:
        reach: Position of its nearer end along the road, in metres.
        right: Distance of its middle from the road's centre line, in metres.
        colour: Colour of the paint.
        oncoming: Whether its front faces the camera.
    """

    reach: float
    right: float
    colour: Colour
    oncoming: bool


def shadow_of(car: Car, position: float) -> Floats:
    """Return the outline of the shadow below a car, in road coordinates, shape [4,3]."""
    near, far = car.reach - position - 0.15, car.reach - position + LENGTH + 0.1
    left, right = car.right - 1.0, car.right + 1.05
    return np.array([(near, left, 0), (far, left, 0), (far, right, 0), (near, right, 0)], dtype=float)


def draw_car(canvas: Canvas, car: Car, position: float) -> None:
    """Paint the visible parts of a car: at most one side, the panels that face the camera, and the end."""
    near = car.reach - position
    aside = car.right - canvas.view.right
    if abs(aside) > _WIDTH / 2:
        _draw_side(canvas, car, near, car.right - np.sign(aside) * _WIDTH / 2)
    _draw_panels(canvas, car, near)
    _draw_end(canvas, car, near)


def _along(car: Car, near: float, points: Floats, right: float) -> Floats:
    """Convert points of the side view (along, up) to road coordinates at the side `right`, shape [N,2] to [N,3]."""
    along = LENGTH - points[:, 0] if car.oncoming else points[:, 0]
    return np.stack([near + along, np.full(len(points), right), points[:, 1]], axis=-1)


def _draw_side(canvas: Canvas, car: Car, near: float, right: float) -> None:
    shaded = (car.colour[0] * 0.72, car.colour[1] * 0.72, car.colour[2] * 0.72)
    canvas.paint(_along(car, near, PROFILE, right)[None], shaded, Label.CAR)
    canvas.paint(_along(car, near, SIDE_GLASS, right)[None], GLASS, Label.CAR)
    wheels = [_along(car, near, wheel, right) for wheel in WHEELS]
    canvas.paint(np.array(wheels), RUBBER, Label.CAR)


def _draw_panels(canvas: Canvas, car: Car, near: float) -> None:
    left = _along(car, near, PROFILE, car.right - _WIDTH / 2)
    right = _along(car, near, PROFILE, car.right + _WIDTH / 2)
    quads = np.stack([left[:-1], left[1:], right[1:], right[:-1]], axis=1)
    if car.oncoming:
        quads = quads[:, ::-1]
    order = np.argsort(-quads[..., 0].mean(axis=1))
    for panel in order:
        if not _faces_camera(canvas.view.project(quads[panel])):
            continue
        brightness = _PANELS[panel]
        colour = GLASS if brightness is None else tuple(brightness * part for part in car.colour)
        canvas.paint(quads[panel][None], (colour[0], colour[1], colour[2]), Label.CAR)


def _faces_camera(quad: Floats) -> bool:
    """Whether a projected panel faces the camera: its signed area is positive (shoelace formula)."""
    following = np.roll(quad, -1, axis=0)
    return float((quad[:, 0] * following[:, 1] - following[:, 0] * quad[:, 1]).sum()) > 0


def _draw_end(canvas: Canvas, car: Car, near: float) -> None:
    """Paint lights, number plate, the gap below the bumper, and the wheels from behind."""
    face = near - 0.01

    def quad(left: float, right: float, bottom: float, top: float) -> Floats:
        corners = [(left, bottom), (right, bottom), (right, top), (left, top)]
        return np.array([(face, car.right + aside, up) for aside, up in corners])

    wheels = np.stack([quad(-0.85, -0.6, 0.0, 0.32), quad(0.6, 0.85, 0.0, 0.32)])
    canvas.paint(wheels, RUBBER, Label.CAR)
    lights = np.stack([quad(-0.86, -0.55, 0.62, 0.82), quad(0.55, 0.86, 0.62, 0.82)])
    canvas.paint(lights, _HEAD if car.oncoming else _TAIL, Label.CAR)
    canvas.paint(quad(-0.26, 0.26, 0.45, 0.57)[None], _PLATE, Label.CAR)
    canvas.paint(quad(-0.8, 0.8, 0.3, 0.36)[None], RUBBER, Label.CAR)
