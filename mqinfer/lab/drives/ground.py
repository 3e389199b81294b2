"""Sky and ground, which are behind and below all objects."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mqinfer.codecs.opencv import opencv
from mqinfer.lab.drives.camera import Floats
from mqinfer.lab.drives.canvas import Canvas, Colour, Pixels
from mqinfer.lab.drives.labels import Label
from mqinfer.lab.drives.light import Hour

_STATIONS = np.geomspace(2.5, 390, 64)  # metres ahead at which the road's edges are sampled
_MARKED_M = 60.0  # farther lane marks are thinner than a pixel
_ASPHALT: Colour = (104, 104, 108)
_PAINT: Colour = (232, 232, 226)
_YELLOW: Colour = (222, 190, 92)
_KERB: Colour = (176, 174, 168)


@dataclass(frozen=True, slots=True)
class RoadLayout:
    """Cross-section of the road in metres, symmetric to the centre line.

    Attributes:
        lanes: Lanes in each direction.
        lane: Width of a lane.
        parking: Width of the parking strip, or 0.
        pavement: Width of the pavement, or 0.
        yellow: Whether the centre line is double and yellow instead of dashed and white.
    """

    lanes: int
    lane: float
    parking: float
    pavement: float
    yellow: bool

    @property
    def marked(self) -> float:
        """Distance from the centre line to the outer edge of the outermost lane."""
        return self.lanes * self.lane

    @property
    def kerb(self) -> float:
        """Distance from the centre line to the edge of the asphalt."""
        return self.marked + self.parking + 0.35

    @property
    def verge(self) -> float:
        """Distance from the centre line to the verge."""
        return self.kerb + self.pavement


@dataclass(frozen=True, slots=True, eq=False)
class Ground:
    """Parts of the ground that are constant during a drive.

    Attributes:
        layout: Cross-section of the road.
        soil: Colour of the verge.
        stone: Colour of the pavement.
        grain: Tile of surface texture, uint8 [256,256], 255 for full brightness.
        across: Column of the tile for each pixel below the horizon, float32 [H',W].
        along: Row of the tile for each of these pixels, float32 [H',W].
    """

    layout: RoadLayout
    soil: Colour
    stone: Colour
    grain: Pixels
    across: np.ndarray[tuple[int, ...], np.dtype[np.float32]]
    along: np.ndarray[tuple[int, ...], np.dtype[np.float32]]

    @classmethod
    def make(cls, rng: np.random.Generator, layout: RoadLayout, soil: Colour, width: int, height: int) -> Ground:
        """Create the ground for a picture size: a tile of noise, and the tile coordinates of each pixel."""
        cv2 = opencv()
        fine = rng.integers(0, 256, (256, 256), dtype=np.uint8)
        coarse = cv2.resize(rng.integers(0, 256, (32, 32), dtype=np.uint8), (256, 256))
        grain = cv2.addWeighted(cv2.blur(fine, (2, 5)), 0.16, coarse, 0.1, 255 * 0.74)
        rows = np.arange(round(0.62 * height), dtype=np.float32)[:, None] + 2
        depth = 1.55 * 0.78 * width / rows
        columns = np.arange(width, dtype=np.float32)[None, :] - width / 2
        across = 24 * columns * depth / (0.78 * width)
        along = np.broadcast_to(-8 * depth, across.shape)
        stone = (150.0, 146.0, 140.0) if rng.random() < 0.6 else (158.0, 140.0, 128.0)
        return cls(layout, soil, stone, grain, across.astype(np.float32), along.astype(np.float32))


def draw_sky(canvas: Canvas, hour: Hour, sheet: Pixels, drift: int) -> None:
    """Paint a gradient with clouds down to the horizon; `drift` shifts the clouds sideways, in pixels."""
    cv2 = opencv()
    rows = int(canvas.view.horizon) + 1
    width = canvas.view.width
    share = (np.linspace(0, 1, rows) ** 0.8)[:, None, None]
    gradient = np.array(hour.zenith) * (1 - share) + np.array(hour.haze) * share
    backdrop = np.repeat(gradient.astype(np.uint8), width, axis=1)
    cover = np.roll(sheet, drift, axis=1)[:rows, :width]
    cover = cv2.multiply(
        cover, np.linspace(hour.cloudiness, 0.1, rows).astype(np.float32)[:, None].repeat(width, 1), dtype=cv2.CV_8U
    )
    canvas.picture[:rows] = cv2.add(backdrop, cv2.merge([cover // 2, cover // 2, cover // 2]))
    canvas.mask[:rows] = Label.SKY


def draw_ground(canvas: Canvas, ground: Ground, position: float, shade: list[Floats], shadow: float) -> None:
    """Paint verge, pavement, road and lane marks, then texture, shadows and haze.

    Args:
        canvas: Canvas to paint on.
        ground: Ground of the drive.
        position: Position of the camera along the road, in metres.
        shade: Outlines of shadows in road coordinates, each of shape [N,3].
        shadow: Brightness in a shadow, as a share.
    """
    layout = ground.layout
    top = int(canvas.view.horizon) + 1
    canvas.picture[top:] = ground.soil
    canvas.mask[top:] = Label.TERRAIN
    if layout.pavement:
        _strip(canvas, layout.verge, ground.stone, Label.PAVEMENT)
        _strip(canvas, layout.kerb + 0.16, _KERB, Label.PAVEMENT)
    _strip(canvas, layout.kerb, _ASPHALT, Label.ROAD)
    _draw_marks(canvas, layout, position)
    light = _lit(canvas, ground, position, shade, shadow)
    _finish(canvas, top, light)


def _flat(canvas: Canvas, outlines: Floats, colour: Colour, label: int) -> None:
    """Paint without haze, which the ground gets row by row at the end."""
    canvas.fill(canvas.view.project(outlines), colour, label)


def _strip(canvas: Canvas, half: float, colour: Colour, label: int) -> None:
    _flat(canvas, _ribbon(_STATIONS, -half, half)[None], colour, label)


def _ribbon(ahead: Floats, left: float, right: float) -> Floats:
    there = np.stack([ahead, np.full_like(ahead, left), np.zeros_like(ahead)], axis=-1)
    back = np.stack([ahead, np.full_like(ahead, right), np.zeros_like(ahead)], axis=-1)[::-1]
    return np.concatenate([there, back])


def _draw_marks(canvas: Canvas, layout: RoadLayout, position: float) -> None:
    if layout.yellow:
        _line(canvas, -0.2, 0.16, _YELLOW)
        _line(canvas, 0.2, 0.16, _YELLOW)
    else:
        _dashes(canvas, position, 0.0, (3.0, 9.0))
    for side in (-1, 1):
        for lane in range(1, layout.lanes):
            _dashes(canvas, position, side * lane * layout.lane, (3.0, 9.0))
        if layout.parking:
            _dashes(canvas, position, side * layout.marked, (1.5, 3.0))
        else:
            _line(canvas, side * layout.marked, 0.2, _PAINT)


def _line(canvas: Canvas, right: float, width: float, colour: Colour) -> None:
    ahead = _STATIONS[_STATIONS < _MARKED_M]
    _flat(canvas, _ribbon(ahead, right - width / 2, right + width / 2)[None], colour, Label.LANE_MARK)


def _dashes(canvas: Canvas, position: float, right: float, rhythm: tuple[float, float]) -> None:
    length, period = rhythm
    starts = np.arange(np.floor(position / period) * period, position + _MARKED_M, period) - position
    near, far = np.maximum(starts, _STATIONS[0]), starts + length
    near, far = near[far > near + 0.2], far[far > near + 0.2]
    ground = np.zeros_like(near)
    corners = [(near, right - 0.1), (far, right - 0.1), (far, right + 0.1), (near, right + 0.1)]
    quads = np.stack([np.stack([ahead, ground + aside, ground], axis=-1) for ahead, aside in corners], axis=1)
    _flat(canvas, quads, _PAINT, Label.LANE_MARK)


def _lit(canvas: Canvas, ground: Ground, position: float, shade: list[Floats], shadow: float) -> Pixels:
    """Return the brightness of the ground from texture and shadows, uint8 [H',W]."""
    cv2 = opencv()
    top = int(canvas.view.horizon) + 1
    rows = canvas.view.height - top
    along = ground.along[:rows] + np.float32(-8 * position % 256)
    light = cv2.remap(ground.grain, ground.across[:rows], along, cv2.INTER_LINEAR, borderMode=cv2.BORDER_WRAP)
    if shade and shadow < 1:
        dark = np.full((canvas.view.height, canvas.view.width), 255, np.uint8)
        canvas.stencil(dark, shade, 255 * shadow)
        light = cv2.multiply(light, dark[top:], scale=1 / 255)
    return np.asarray(light)


def _finish(canvas: Canvas, top: int, light: Pixels) -> None:
    """Apply light and haze to the ground; the distance follows from the row."""
    cv2 = opencv()
    rows = np.arange(len(light)) + 1.0
    left = np.exp(-canvas.view.up * canvas.view.focal / rows / canvas.clarity)[:, None]
    light = cv2.multiply(light, left.astype(np.float32).repeat(canvas.view.width, 1), dtype=cv2.CV_8U)
    lit = cv2.multiply(canvas.picture[top:], cv2.merge([light] * 3), scale=1 / 255)
    haze = (np.array(canvas.haze) * (1 - left)).astype(np.uint8)[:, None, :]
    canvas.picture[top:] = cv2.add(lit, haze.repeat(canvas.view.width, 1))
