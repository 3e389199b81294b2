"""A picture and its ground-truth mask, painted together so that they agree in every pixel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mqinfer.codecs.opencv import opencv
from mqinfer.lab.drives.camera import Floats, PinholeCamera

Pixels = npt.NDArray[np.uint8]
Colour = tuple[float, float, float]

_SHIFT = 3  # fractional bits of the coordinates handed to OpenCV
_FARTHEST_PIXEL = 20_000  # beyond it OpenCV's fixed-point coordinates would overflow


@dataclass(frozen=True, slots=True, eq=False)
class Canvas:
    """A picture with its mask and camera.

    Attributes:
        picture: RGB, uint8 [H,W,3].
        mask: Class numbers, uint8 [H,W].
        view: Camera.
        haze: Colour that distant objects fade into.
        clarity: Distance in metres at which 63 % of a colour has faded.
    """

    picture: Pixels
    mask: Pixels
    view: PinholeCamera
    haze: Colour
    clarity: float

    def fade(self, colour: Colour, ahead: float) -> Colour:
        """Mix a colour with the haze by its distance in metres (exponential extinction)."""
        left = float(np.exp(-ahead / self.clarity))
        red, green, blue = (near * left + far * (1 - left) for near, far in zip(colour, self.haze, strict=True))
        return (red, green, blue)

    def fill(self, outlines: Floats | Sequence[Floats], colour: Colour, label: int | None) -> None:
        """Fill polygons in pixel coordinates, each of shape [N,2]; without a label the mask does not change."""
        cv2 = opencv()
        points = [_fixed(outline) for outline in outlines]
        if not points:
            return
        cv2.fillPoly(self.picture, points, colour, cv2.LINE_8, _SHIFT)
        if label is not None:
            cv2.fillPoly(self.mask, points, label, cv2.LINE_8, _SHIFT)

    def paint(self, outlines: Floats, colour: Colour, label: int | None) -> None:
        """Fill polygons in road coordinates, shape [K,N,3], faded by their mean distance."""
        if len(outlines):
            ahead = float(outlines[..., 0].mean())
            self.fill(self.view.project(outlines), self.fade(colour, ahead), label)

    def stencil(self, sheet: Pixels, outlines: Sequence[Floats], value: float) -> None:
        """Fill polygons in road coordinates, each of shape [N,3], on another array of the picture's size."""
        cv2 = opencv()
        cv2.fillPoly(sheet, [_fixed(self.view.project(outline)) for outline in outlines], value, cv2.LINE_8, _SHIFT)

    def discs(self, centres: Floats, radii: Floats, colours: Sequence[Colour], label: int) -> None:
        """Fill discs that face the camera: centres in road coordinates, shape [N,3], radii in metres, shape [N]."""
        cv2 = opencv()
        places = np.clip(self.view.project(centres), -_FARTHEST_PIXEL, _FARTHEST_PIXEL).astype(int).tolist()
        pixels = np.maximum(1, np.rint(radii * self.view.focal / np.maximum(centres[:, 0], 1.0))).astype(int).tolist()
        for place, radius, colour in zip(places, pixels, colours, strict=True):
            cv2.circle(self.picture, place, radius, colour, cv2.FILLED)
            cv2.circle(self.mask, place, radius, label, cv2.FILLED)


def _fixed(outline: Floats) -> npt.NDArray[np.int32]:
    return np.asarray(np.clip(outline, -_FARTHEST_PIXEL, _FARTHEST_PIXEL) * (1 << _SHIFT), dtype=np.int32)
