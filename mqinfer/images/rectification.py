"""Remove a lens's distortion from pictures, and find the way back to the pixels as they were recorded.

A pixel of the rectified picture is seen along the ray `(P R)^-1 (u, v, 1)`, which the lens bends, and K maps to the
recorded picture (ROS, image_geometry's PinholeCameraModel; OpenCV, initUndistortRectifyMap). Points count from the
outer edge of the first pixel, where OpenCV counts from its centre; the difference of a half is made in this module.
"""

from __future__ import annotations

from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.codecs.opencv import opencv
from mqinfer.images.lens import Lens, lens_of
from mqinfer.images.picture import CameraInfo
from mqinfer.protocol.errors import BadImage

Points = npt.NDArray[np.float64]
_KEPT = 8
"""Calibrations whose maps are kept: 10 bytes for each pixel of a camera's picture."""
_LONGEST_SIDE = (1 << 15) - 2
"""OpenCV's maps hold coordinates in 16 bits."""
_STEPS = 16
"""Points along each side of a box: a bend of 40 pixels is found to a sixth of one."""
_TOLERANCE = 0.5
"""A recorded pixel is seen in the rectified picture if it comes back to itself within this many pixels."""
_AT_ONCE = 1 << 16
"""Pixels whose place is computed together."""
_NOWHERE = -2.0
"""Coordinate of what is not in a picture."""


@lru_cache(maxsize=_KEPT)
def rectification(camera: CameraInfo, width: int, height: int) -> Rectification:
    """Return how the pictures of a camera are rectified; the latest calibrations are kept.

    Args:
        camera: Its calibration.
        width: Columns of its pictures.
        height: Rows of its pictures.

    Raises:
        BadImage: It is not calibrated, or its calibration is of another size or of a kind that is not known.
    """
    return Rectification(camera, width, height)


class Rectification:
    """The maps of one calibration, made when they are needed first. Thread-safe.

    Args:
        camera: Calibration of the camera.
        width: Columns of its pictures.
        height: Rows of its pictures.

    Raises:
        BadImage: It is not calibrated, or its calibration is of another size or of a kind that is not known.
    """

    def __init__(self, camera: CameraInfo, width: int, height: int) -> None:
        self._lens: Lens = lens_of(camera)
        if (camera.width, camera.height) != (width, height):
            raise BadImage(
                f"its CameraInfo is of pictures of {camera.width}x{camera.height} pixels, and this one has "
                f"{width}x{height}; record the CameraInfo of this size, or leave out --rectify"
            )
        if max(width, height) > _LONGEST_SIDE:
            raise BadImage(f"a picture of {width}x{height} pixels can't be rectified: at most {_LONGEST_SIDE} a side")
        self._size = width, height
        self._k, self._to_picture, self._to_ray = _matrices(camera)

    def apply(self, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Rectify a picture: colours are interpolated, distances are those of the nearest pixel.

        Args:
            pixels: `[height, width]` or `[height, width, channels]`, of the size.

        Returns:
            The same shape; black, or nothing measured, where the recorded picture has nothing.
        """
        cv2 = opencv()
        coarse, fine = self._forward
        way = cv2.INTER_LINEAR if pixels.dtype == np.uint8 else cv2.INTER_NEAREST
        empty = np.nan if pixels.dtype.kind == "f" else 0
        rectified: npt.NDArray[Any] = cv2.remap(
            np.ascontiguousarray(pixels), coarse, fine, way, borderMode=cv2.BORDER_CONSTANT, borderValue=empty
        )
        return rectified

    def to_recorded(self, pixels: npt.NDArray[Any], outside: float) -> npt.NDArray[Any]:
        """Lay rectified pixels where they were recorded, each from its nearest neighbour.

        Args:
            pixels: `[height, width]` or `[height, width, channels]`, of the size.
            outside: Value of recorded pixels that the rectified picture does not show.
        """
        cv2 = opencv()
        border = (float(outside),) * 4
        recorded: npt.NDArray[Any] = cv2.remap(
            pixels, self._backward, None, cv2.INTER_NEAREST, borderMode=cv2.BORDER_CONSTANT, borderValue=border
        )
        return recorded

    def boxes_to_recorded(self, boxes: Points) -> Points:
        """Map boxes of the rectified picture, `[n, 4]`, to the bounds of their outlines in the recorded one."""
        along = np.linspace(0.0, 1.0, _STEPS + 1)
        ends = np.zeros_like(along), np.ones_like(along)
        across = np.concatenate([along, along, *ends])
        down = np.concatenate([*ends, along, along])
        (left, top), (right, bottom) = boxes.T[:2, :, np.newaxis], boxes.T[2:, :, np.newaxis]
        outline = np.stack([left + (right - left) * across, top + (bottom - top) * down], -1)
        with np.errstate(all="ignore"):  # a calibration may hold any numbers, and results hold finite ones
            points = self.points_to_recorded(outline.reshape(-1, 2))[0].reshape(outline.shape)
        bounds: Points = np.nan_to_num(np.concatenate([points.min(1), points.max(1)], 1))
        return bounds

    def points_to_recorded(self, points: Points) -> tuple[Points, npt.NDArray[np.bool_]]:
        """Map points of the rectified picture, `[n, 2]`, to the recorded one.

        Returns:
            The points, and whether the lens sees each; one that it does not see is put where its sight ends.
        """
        rays = np.column_stack([points - 0.5, np.ones(len(points))]) @ self._to_ray.T
        is_ahead = rays[:, 2] > 0
        rays = rays[:, :2] / np.where(is_ahead, rays[:, 2], np.finfo(np.float64).eps)[:, np.newaxis]
        bent, is_seen = self._lens.bend(rays)
        return bent * self._focal + self._centre + 0.5, is_seen & is_ahead

    def points_to_rectified(self, points: Points) -> tuple[Points, npt.NDArray[np.bool_]]:
        """Map points of the recorded picture, `[n, 2]`, to the rectified one, and return whether each is there."""
        rays, is_seen = self._lens.unbend((points - 0.5 - self._centre) / self._focal)
        found = np.column_stack([rays, np.ones(len(rays))]) @ self._to_picture.T
        is_ahead = found[:, 2] > 0
        rectified = found[:, :2] / np.where(is_ahead, found[:, 2], 1.0)[:, np.newaxis] + 0.5
        back, _ = self.points_to_recorded(rectified)
        returns = (np.abs(back - points) <= _TOLERANCE).all(axis=1)
        return rectified, is_seen & is_ahead & returns

    @property
    def _focal(self) -> Points:
        return np.array([self._k[0, 0], self._k[1, 1]])

    @property
    def _centre(self) -> Points:
        return self._k[:2, 2]

    @cached_property
    def _forward(self) -> tuple[npt.NDArray[np.int16], npt.NDArray[np.uint16]]:
        """Where each rectified pixel lies in the recorded picture, as OpenCV's maps of fixed-point numbers."""
        cv2 = opencv()
        found = self._grid(self.points_to_recorded)
        coarse, fine = cv2.convertMaps(found, None, cv2.CV_16SC2)
        return coarse, fine

    @cached_property
    def _backward(self) -> npt.NDArray[np.int16]:
        """Where each recorded pixel lies in the rectified picture, rounded."""
        return np.rint(self._grid(self.points_to_rectified)).astype(np.int16)

    def _grid(self, mapped: Any) -> npt.NDArray[np.float32]:
        """Map the centre of each pixel, some rows at a time to save memory; `_NOWHERE` for what is not seen."""
        width, height = self._size
        made = np.empty((height, width, 2), np.float32)
        rows = max(1, _AT_ONCE // width)
        for first in range(0, height, rows):
            part = made[first : first + rows]
            y, x = np.mgrid[first : first + len(part), :width] + 0.5
            with np.errstate(all="ignore"):  # a calibration may hold any numbers: what is not finite is nowhere
                points, is_seen = mapped(np.column_stack([x.ravel(), y.ravel()]))
                is_near = ((points > _NOWHERE) & (points < np.array(self._size) - _NOWHERE)).all(axis=1)
            part.reshape(-1, 2)[:] = np.where((is_seen & is_near)[:, np.newaxis], points - 0.5, _NOWHERE)
        return made


def _matrices(camera: CameraInfo) -> tuple[Points, Points, Points]:
    """Return K, the product of P and R, which leads from a ray to the rectified picture, and its inverse.

    Some drivers leave P or R at zeros: then it is K, and no rotation.
    """
    k = np.array(camera.intrinsic, np.float64).reshape(3, 3)
    r = np.array(camera.rectification, np.float64).reshape(3, 3) if any(camera.rectification) else np.eye(3)
    p = np.array(camera.projection, np.float64).reshape(3, 4)[:, :3] if any(camera.projection) else k
    with np.errstate(all="ignore"):  # a message may hold any numbers
        product = p @ r
        if np.isfinite(product).all() and np.linalg.cond(product) * np.finfo(np.float64).eps < 1:
            inverse = np.asarray(np.linalg.inv(product), np.float64)
            if np.isfinite(inverse).all():
                return k, product, inverse
    raise BadImage("its CameraInfo is wrong: P and R lead to no picture; calibrate the camera again")
