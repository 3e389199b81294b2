"""The course of the road and the pinhole camera that moves along it.

All positions are in road coordinates: `ahead` metres along the road from the camera, `right` metres from the
road's centre line, `up` metres above the ground, which is flat.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

_REACH_M = 400
_NEAREST_M = 1.0


@dataclass(frozen=True, slots=True)
class Course:
    """Course of the road; its curvature is a sum of slow waves.

    Attributes:
        amplitudes: Amplitude of each wave, in 1/m.
        wavelengths: Length of each wave, in metres.
        phases: Phase of each wave, in radians.
    """

    amplitudes: tuple[float, ...]
    wavelengths: tuple[float, ...]
    phases: tuple[float, ...]

    def curvature(self, position: Floats) -> Floats:
        """Return the curvature in 1/m at positions along the road in metres, shape [N] to [N]."""
        waves = np.array([self.amplitudes, self.wavelengths, self.phases])[:, :, None]
        return np.asarray((waves[0] * np.sin(2 * np.pi * position / waves[1] + waves[2])).sum(axis=0))

    def offsets(self, position: float) -> Floats:
        """Return the sideways offset of the road in metres at 0, 1, 2, ... metres ahead of a position, shape [400]."""
        heading = np.cumsum(self.curvature(position + np.arange(_REACH_M, dtype=np.float64)))
        return np.concatenate([[0.0], np.cumsum(np.clip(heading, -0.8, 0.8))[:-1]])


@dataclass(frozen=True, slots=True)
class PinholeCamera:
    """A pinhole camera at one position on the road.

    Attributes:
        width: Width of the picture, in pixels.
        height: Height of the picture, in pixels.
        offsets: Sideways offsets of the centre line, from `Course.offsets`.
        right: Distance of the camera to the right of the centre line, in metres.
        up: Height of the camera above the ground, in metres.
        pitch: Shift of the horizon downwards, as a share of the height.
    """

    width: int
    height: int
    offsets: Floats
    right: float
    up: float = 1.55
    pitch: float = 0.0
    FOCAL: ClassVar[float] = 0.78
    """Focal length as a share of the width: a horizontal angle of view of 65 degrees."""
    _grid: Floats = field(default_factory=lambda: np.arange(_REACH_M, dtype=float))

    @property
    def focal(self) -> float:
        """Focal length in pixels."""
        return self.FOCAL * self.width

    @property
    def horizon(self) -> float:
        """Row of the horizon."""
        return (0.44 + self.pitch) * self.height

    def project(self, points: Floats) -> Floats:
        """Project points (ahead, right, up) in metres, shape [..., 3], to (column, row) in pixels, shape [..., 2].

        Points nearer than a metre are projected from one metre.
        """
        depth = np.maximum(points[..., 0], _NEAREST_M)
        sideways = np.interp(depth, self._grid, self.offsets) + points[..., 1] - self.right
        scale = self.focal / depth
        column = self.width / 2 + scale * sideways
        row = self.horizon + scale * (self.up - points[..., 2])
        return np.stack([column, row], axis=-1)
