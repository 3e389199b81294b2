"""Objects beside the road: buildings, trees, hedges and lamp posts."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mqinfer.lab.drives.camera import Floats
from mqinfer.lab.drives.canvas import Canvas, Colour
from mqinfer.lab.drives.labels import Label

_BARK: Colour = (84, 66, 50)
_METAL: Colour = (122, 126, 128)
_NEAR_M = 1.2
_WINDOWS_M = 80.0  # farther windows would be noise


def _darker(colour: Colour, factor: float) -> Colour:
    return (colour[0] * factor, colour[1] * factor, colour[2] * factor)


@dataclass(frozen=True, slots=True)
class Building:
    """A block with a facade along the road.

    Attributes:
        start: Position along the road of its nearer end, in metres.
        length: Length along the road, in metres.
        right: Distance of the facade from the road's centre line, in metres; negative on the left.
        height: Height in metres.
        colour: Colour of the walls.
        glass: Colour of the windows.
    """

    start: float
    length: float
    right: float
    height: float
    colour: Colour
    glass: Colour

    @property
    def reach(self) -> float:
        """Position for sorting: the far end, since objects in front of the facade are painted later."""
        return self.start + self.length


@dataclass(frozen=True, slots=True)
class Tree:
    """A trunk and a crown of overlapping discs, or a bush if the trunk is 0 m high.

    Attributes:
        reach: Position along the road, in metres.
        right: Distance from the road's centre line, in metres.
        trunk: Height of the trunk, in metres.
        radius: Radius of the crown, in metres.
        colour: Colour of the leaves.
        blobs: Discs of the crown: right, up, radius as shares of the crown's radius, brightness.
    """

    reach: float
    right: float
    trunk: float
    radius: float
    colour: Colour
    blobs: tuple[tuple[float, float, float, float], ...]


@dataclass(frozen=True, slots=True)
class Lamp:
    """A lamp post with an arm over the road.

    Attributes:
        reach: Position along the road, in metres.
        right: Distance from the road's centre line, in metres.
        height: Height in metres.
    """

    reach: float
    right: float
    height: float


def _wall(near: float, far: float, right: float, bottom: float, top: float) -> Floats:
    return np.array([(near, right, bottom), (far, right, bottom), (far, right, top), (near, right, top)])


def draw_building(canvas: Canvas, building: Building, position: float) -> None:
    """Paint the facade and, if it is visible, the end wall that faces the camera."""
    near, far = building.start - position, building.reach - position
    if far <= _NEAR_M:
        return
    side = 1.0 if building.right > 0 else -1.0
    facade = _wall(max(near, _NEAR_M), far, building.right, 0, building.height)
    end = facade[[0, 0, 3, 3]] + np.array([[0, 0, 0], [0, 9 * side, 0], [0, 9 * side, 0], [0, 0, 0]])
    if near > _NEAR_M:
        canvas.paint(end[None], building.colour, Label.BUILDING)
        if near < _WINDOWS_M:
            canvas.paint(_end_windows(building, near, side), building.glass, Label.BUILDING)
    canvas.paint(facade[None], _darker(building.colour, 0.78), Label.BUILDING)
    if near < _WINDOWS_M:
        canvas.paint(_facade_windows(building, near), _darker(building.glass, 0.85), Label.BUILDING)


def _storeys(building: Building) -> Floats:
    return np.arange(1.0, building.height - 1.9, 3.0)


def _facade_windows(building: Building, near: float) -> Floats:
    starts = near + np.arange(0.9, building.length - 1.2, 2.4)
    return _panes(
        [
            (_wall(ahead, ahead + 1.2, building.right, up, up + 1.5))
            for ahead in starts[starts > _NEAR_M]
            for up in _storeys(building)
        ]
    )


def _end_windows(building: Building, near: float, side: float) -> Floats:
    insets = building.right + side * np.array([1.2, 3.8, 6.4])
    return _panes(
        [
            np.array(
                [
                    (near, inset, up),
                    (near, inset + 1.2 * side, up),
                    (near, inset + 1.2 * side, up + 1.5),
                    (near, inset, up + 1.5),
                ]
            )
            for inset in insets
            for up in _storeys(building)
        ]
    )


def _panes(panes: list[Floats]) -> Floats:
    return np.array(panes).reshape(-1, 4, 3)


def draw_tree(canvas: Canvas, tree: Tree, position: float) -> None:
    """Paint the trunk, then the crown's discs from dark to light."""
    ahead = tree.reach - position
    girth = 0.09 * tree.radius
    trunk = np.array(
        [
            (ahead, tree.right - girth, 0),
            (ahead, tree.right + girth, 0),
            (ahead, tree.right + girth, tree.trunk + 0.5),
            (ahead, tree.right - girth, tree.trunk + 0.5),
        ]
    )
    if tree.trunk:
        canvas.paint(trunk[None], _BARK, Label.VEGETATION)
    right, up, radius, brightness = np.array(tree.blobs).T
    middle = np.full_like(right, ahead)
    centres = np.stack([middle, tree.right + right * tree.radius, tree.trunk + (0.8 + up) * tree.radius], axis=-1)
    colours = [canvas.fade(_darker(tree.colour, share), ahead) for share in brightness.tolist()]
    canvas.discs(centres, radius * tree.radius, colours, Label.VEGETATION)


def draw_lamp(canvas: Canvas, lamp: Lamp, position: float) -> None:
    """Paint the post, its arm and its head."""
    ahead = lamp.reach - position
    inward = -1.0 if lamp.right > 0 else 1.0
    reach, top = lamp.right + 1.9 * inward, lamp.height
    post = [(lamp.right - 0.17, 0), (lamp.right + 0.17, 0), (lamp.right + 0.13, top), (lamp.right - 0.13, top)]
    arm = [(lamp.right, top), (lamp.right, top - 0.3), (reach, top + 0.1), (reach, top + 0.4)]
    head = [(reach - 0.55, top + 0.1), (reach + 0.55, top + 0.1), (reach + 0.4, top + 0.5), (reach - 0.4, top + 0.5)]
    quads = np.array([[(ahead, right, up) for right, up in quad] for quad in (post, arm, head)])
    canvas.paint(quads, _METAL, Label.POLE)
