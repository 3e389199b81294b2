"""Where a frame lies in the picture that a model sees, and the way back to the frame's own pixels.

A frame is rectified, where its camera's calibration is to be applied; a region of that is chosen; the region fills a
rectangle of the model's picture. Boxes and masks go the same way back, to the pixels as they were recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mqinfer.images.camera import CameraInfo
from mqinfer.images.rectification import rectification
from mqinfer.protocol.card import ImageContract, Resize

__all__ = ["UNKNOWN", "Placement", "Region", "Resize", "is_scaled"]

Region = tuple[int, int, int, int]
"""Left, top, width and height, in pixels."""
UNKNOWN = 255
"""Class of the pixels that the model did not see."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The rectangle of the model's picture that a frame, or a region of it, fills. Sizes are (width, height).

    Coordinates are continuous: 0 is the outer edge of the first pixel, as in the boxes of detectors.

    Attributes:
        frame: Size of the frame as it was recorded.
        picture: Size of what the model sees.
        left: Left edge of the region in the picture.
        top: Its upper edge.
        width: Its width in the picture.
        height: Its height in the picture.
        region: The part of the frame, once it is rectified, that the model sees; None for all of it.
        camera: Calibration by which the frame was rectified; None if it was not.
    """

    frame: tuple[int, int]
    picture: tuple[int, int]
    left: int
    top: int
    width: int
    height: int
    region: Region | None = None
    camera: CameraInfo | None = None

    @classmethod
    def of(
        cls,
        frame: tuple[int, int],
        picture: tuple[int, int],
        resize: Resize = Resize.STRETCH,
        region: Region | None = None,
        camera: CameraInfo | None = None,
    ) -> Self:
        """Place a frame in a picture; one of the picture's own proportions, to the pixel, fills it.

        Args:
            frame: Its width and height.
            picture: The model's width and height.
            resize: How it fits in.
            region: The part of the rectified frame to place; None for all of it.
            camera: By which it is rectified.
        """
        whole = 0, 0, *frame
        left, top, *size = region or whole
        placed = picture
        if not is_scaled((size[0], size[1]), picture):
            if resize is Resize.LETTERBOX:
                factor = min(picture[0] / size[0], picture[1] / size[1])
                placed = max(1, round(size[0] * factor)), max(1, round(size[1] * factor))
            elif resize is Resize.CROP:
                width = min(size[0], max(1, round(size[1] * picture[0] / picture[1])))
                height = min(size[1], max(1, round(size[0] * picture[1] / picture[0])))
                left, top, size = left + (size[0] - width) // 2, top + (size[1] - height) // 2, [width, height]
        part = left, top, size[0], size[1]
        margins = (picture[0] - placed[0]) // 2, (picture[1] - placed[1]) // 2
        return cls(frame, picture, *margins, *placed, None if part == whole else part, camera)

    @classmethod
    def in_model(cls, contract: ImageContract, width: int, height: int) -> Self:
        """Place a picture of a size, in pixels, in what a model sees, which has that size where the model takes any."""
        return cls.of((width, height), (contract.width or width, contract.height or height), contract.resize)

    @property
    def is_whole(self) -> bool:
        """Whether the model saw the whole frame as it was recorded."""
        return self.region is None and self.camera is None

    @property
    def rows(self) -> slice:
        """The region's rows of the rectified frame."""
        return slice(None) if self.region is None else slice(self.region[1], self.region[1] + self.region[3])

    @property
    def columns(self) -> slice:
        """The region's columns of the rectified frame."""
        return slice(None) if self.region is None else slice(self.region[0], self.region[0] + self.region[2])

    def boxes_to_frame(self, boxes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Map boxes from the picture to the frame.

        Args:
            boxes: `[n, 4]`, left, top, right, bottom in pixels of the picture.

        Returns:
            The same in pixels of the frame as it was recorded, cut off at its edges: of a frame that was rectified, the
            bounds of the box's bent outline.
        """
        left, top, width, height = self.region or (0, 0, *self.frame)
        across, down = width / self.width, height / self.height
        moved = boxes.astype(np.float64) - (self.left, self.top, self.left, self.top)
        moved = moved * (across, down, across, down) + (left, top, left, top)
        if self.camera is not None and moved.size:
            moved = rectification(self.camera, *self.frame).boxes_to_recorded(moved)
        return np.clip(moved, 0.0, np.array([*self.frame, *self.frame], np.float64))

    def mask_to_frame(self, mask: npt.NDArray[Any], outside: float = UNKNOWN) -> npt.NDArray[Any]:
        """Map a mask to the frame, each pixel from its nearest neighbour.

        Args:
            mask: `[height, width]`, of any size: it covers the whole picture.
            outside: Value of the frame's pixels that the model did not see.

        Returns:
            `[height, width]` of the frame as it was recorded.
        """
        _, _, width, height = self.region or (0, 0, *self.frame)
        rows = _nearest(height, self.top, self.height, self.picture[1], mask.shape[0])
        columns = _nearest(width, self.left, self.width, self.picture[0], mask.shape[1])
        return self.region_to_frame(mask[rows[:, np.newaxis], columns], outside)

    def region_to_frame(self, pixels: npt.NDArray[Any], outside: float = 0) -> npt.NDArray[Any]:
        """Lay the pixels of the region, `[height, width, ...]` of its size, where they were recorded in the frame."""
        if self.region is not None:
            canvas = np.full((self.frame[1], self.frame[0], *pixels.shape[2:]), outside, pixels.dtype)
            canvas[self.rows, self.columns] = pixels
            pixels = canvas
        if self.camera is None:
            return pixels
        return rectification(self.camera, *self.frame).to_recorded(pixels, outside)


def is_scaled(frame: tuple[int, int], picture: tuple[int, int]) -> bool:
    """Return whether a frame is the picture at another scale: `side = round(scale * picture's side)`, both ways.

    A sender that lowers the size sends the whole picture, margins included, and rounding must not add a second margin.
    """
    return abs(frame[0] * picture[1] - frame[1] * picture[0]) <= max(picture)


def _nearest(frame: int, first: int, size: int, picture: int, cells: int) -> npt.NDArray[np.intp]:
    """Return for each pixel of the frame, along one axis, the cell of the mask that its centre lies in."""
    centres = first + (np.arange(frame) + 0.5) * (size / frame)
    found: npt.NDArray[np.intp] = np.clip(np.floor(centres * (cells / picture)).astype(np.intp), 0, cells - 1)
    return found
