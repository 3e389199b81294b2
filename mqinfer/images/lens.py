"""How a lens bends rays, by the distortion models of ROS (`sensor_msgs/distortion_models.hpp`).

A ray is `(x, y)` of the direction `(x, y, 1)`. `plumb_bob` and `rational_polynomial` are OpenCV's pinhole model with
5 and 8 coefficients: `x (1 + k1 r2 + k2 r4 + k3 r6) / (1 + k4 r2 + k5 r4 + k6 r6) + 2 p1 x y + p2 (r2 + 2 x2)`, and
likewise for y. `equidistant` is its fisheye model: `x / r (a + k1 a3 + k2 a5 + k3 a7 + k4 a9)` with `a = atan(r)`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
import numpy.typing as npt

from mqinfer.images.picture import CameraInfo
from mqinfer.protocol.errors import BadImage

Rays = npt.NDArray[np.float64]


class Distortion(StrEnum):
    """Distortion models, by their names in ROS."""

    PLUMB_BOB = "plumb_bob"
    RATIONAL_POLYNOMIAL = "rational_polynomial"
    EQUIDISTANT = "equidistant"


_LENGTHS: dict[str, tuple[int, ...]] = {
    Distortion.PLUMB_BOB: (4, 5),
    Distortion.RATIONAL_POLYNOMIAL: (8,),
    Distortion.EQUIDISTANT: (4,),
}
"""Numbers of coefficients, by model."""
_WIDEST = math.radians(89.5)
"""Rays further off the axis are not looked at: a rectified picture is flat, and does not reach them."""
_SAMPLES, _FEWEST = 8192, 16
"""Samples of the radius, up to the widest ray; a lens that turns back within the first ones sees nothing."""
_ROUNDS = 8
"""The way back is found in rounds, since the tangential part depends on its end; it is a small one."""


@dataclass(frozen=True, slots=True)
class Lens:
    """One lens.

    Attributes:
        is_fisheye: Whether the model is `equidistant`.
        coefficients: k1, k2, p1, p2, k3, k4, k5, k6 or, of a fisheye, k1 to k4.
    """

    is_fisheye: bool
    coefficients: tuple[float, ...]
    _radii: Rays = field(init=False, repr=False, compare=False)
    _bent: Rays = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        radii = np.tan(np.linspace(0.0, _WIDEST, _SAMPLES))
        with np.errstate(all="ignore"):
            bent = radii * self._factor(radii)
            # Fitted polynomials turn back somewhere outside the picture; what lies beyond is not seen.
            ends = np.flatnonzero(~(np.diff(bent) > 0))
        end = int(ends[0]) + 1 if len(ends) else _SAMPLES
        if end < _FEWEST:
            raise BadImage("its CameraInfo is wrong: with D the lens sees nothing; calibrate the camera again")
        object.__setattr__(self, "_radii", radii[:end])
        object.__setattr__(self, "_bent", bent[:end])

    def bend(self, rays: Rays) -> tuple[Rays, npt.NDArray[np.bool_]]:
        """Bend rays `[n, 2]`.

        Returns:
            The bent ones, and whether the lens sees each; one that it does not see is put where its sight ends.
        """
        r, end = np.hypot(rays[:, 0], rays[:, 1]), self._radii[-1]
        is_seen = r <= end
        rays = np.where(is_seen[:, np.newaxis], rays, rays * (end / np.maximum(r, end))[:, np.newaxis])
        return rays * self._factor(np.minimum(r, end))[:, np.newaxis] + self._tangential(rays), is_seen

    def unbend(self, bent: Rays) -> tuple[Rays, npt.NDArray[np.bool_]]:
        """Find the rays that were bent so, `[n, 2]`, and return whether each was found."""
        rays = self._radial_inverse(bent)
        if not self.is_fisheye and any(self.coefficients[2:4]):
            for _ in range(_ROUNDS):
                rays = self._radial_inverse(bent - self._tangential(rays))
        return rays, np.hypot(rays[:, 0], rays[:, 1]) < self._radii[-1]

    def _radial_inverse(self, bent: Rays) -> Rays:
        r = np.hypot(bent[:, 0], bent[:, 1])
        found: Rays = bent * (np.interp(r, self._bent, self._radii) / np.maximum(r, np.finfo(float).tiny))[:, None]
        return found

    def _factor(self, r: Rays) -> Rays:
        """Return by what rays of a radius are longer once they are bent."""
        if self.is_fisheye:
            angle, r = np.arctan(r), np.maximum(r, np.finfo(float).tiny)
            bent = angle * np.polynomial.Polynomial([1.0, *self.coefficients])(angle**2)
            return np.where(angle > 0, bent / r, 1.0)
        k1, k2, _, _, k3, *below = self.coefficients
        polynomial = np.polynomial.Polynomial
        return polynomial([1.0, k1, k2, k3])(r**2) / polynomial([1.0, *below])(r**2)

    def _tangential(self, rays: Rays) -> Rays:
        if self.is_fisheye:
            return np.zeros_like(rays)
        x, y = rays.T
        p1, p2, r2 = *self.coefficients[2:4], x**2 + y**2
        return np.column_stack([2 * p1 * x * y + p2 * (r2 + 2 * x**2), p1 * (r2 + 2 * y**2) + 2 * p2 * x * y])


def lens_of(camera: CameraInfo) -> Lens:
    """Return the lens of a calibrated camera.

    Raises:
        BadImage: It is not calibrated, its model is not known, or numbers are missing or not finite.
    """
    matrices = camera.intrinsic, camera.rectification, camera.projection
    if tuple(map(len, matrices)) != (9, 9, 12) or not np.isfinite([*camera.distortion, *sum(matrices, ())]).all():
        raise BadImage("its CameraInfo is wrong: K, R, P or D has missing numbers, or some that are not finite")
    if camera.intrinsic[0] <= 0 or camera.intrinsic[4] <= 0:  # 0 by sensor_msgs/CameraInfo
        raise BadImage("the camera is not calibrated: K of its CameraInfo is 0; calibrate it, or leave out --rectify")
    is_fisheye = camera.distortion_model == Distortion.EQUIDISTANT
    if not any(camera.distortion) and not is_fisheye:  # a fisheye of zeros bends rays all the same
        return Lens(is_fisheye=False, coefficients=(0.0,) * 8)
    lengths = _LENGTHS.get(camera.distortion_model)
    if lengths is None:
        raise BadImage(
            f"distortion model {camera.distortion_model!r} of its CameraInfo is unknown; expected {', '.join(_LENGTHS)}"
        )
    given = camera.distortion
    if len(given) not in lengths:
        raise BadImage(
            f"its CameraInfo is wrong: {camera.distortion_model} has {' or '.join(map(str, lengths))} coefficients, "
            f"not {len(given)}"
        )
    return Lens(is_fisheye, given if is_fisheye else (*given, *(0.0,) * (8 - len(given))))
