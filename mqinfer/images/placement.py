"""Where a frame lies in the picture that a model sees, and the way back to the frame's own pixels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mqinfer.protocol.card import Resize

__all__ = ["Placement", "Resize"]


@dataclass(frozen=True, slots=True)
class Placement:
    """The rectangle of the model's picture that a frame fills. Sizes are (width, height), in pixels.

    Coordinates are continuous: 0 is the outer edge of the first pixel, as in the boxes of detectors.

    Attributes:
        frame: Size of the frame as it was recorded.
        picture: Size of what the model sees.
        left: Left edge of the frame in the picture.
        top: Its upper edge.
        width: Its width in the picture.
        height: Its height in the picture.
    """

    frame: tuple[int, int]
    picture: tuple[int, int]
    left: int
    top: int
    width: int
    height: int

    @classmethod
    def of(cls, frame: tuple[int, int], picture: tuple[int, int], resize: Resize = Resize.STRETCH) -> Self:
        """Place a frame in a picture; one of the picture's own proportions, to the pixel, fills it.

        Args:
            frame: Its width and height.
            picture: The model's width and height.
            resize: How it fits in.
        """
        width, height = picture
        if resize is Resize.LETTERBOX and not _is_scaled(frame, picture):
            factor = min(picture[0] / frame[0], picture[1] / frame[1])
            width, height = (max(1, round(side * factor)) for side in frame)
        return cls(frame, picture, (picture[0] - width) // 2, (picture[1] - height) // 2, width, height)

    def boxes_to_frame(self, boxes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Map boxes from the picture to the frame.

        Args:
            boxes: `[n, 4]`, left, top, right, bottom in pixels of the picture.

        Returns:
            The same in pixels of the frame, cut off at its edges.
        """
        across, down = self.frame[0] / self.width, self.frame[1] / self.height
        moved = boxes.astype(np.float64) - (self.left, self.top, self.left, self.top)
        limits = np.array([*self.frame, *self.frame], np.float64)
        return np.clip(moved * (across, down, across, down), 0.0, limits)

    def mask_to_frame(self, mask: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Map a mask to the frame, each pixel from its nearest neighbour.

        Args:
            mask: `[height, width]`, of any size: it covers the whole picture.

        Returns:
            `[height, width]` of the frame.
        """
        rows = _nearest(self.frame[1], self.top, self.height, self.picture[1], mask.shape[0])
        columns = _nearest(self.frame[0], self.left, self.width, self.picture[0], mask.shape[1])
        mapped: npt.NDArray[Any] = mask[rows[:, np.newaxis], columns]
        return mapped


def _is_scaled(frame: tuple[int, int], picture: tuple[int, int]) -> bool:
    """Return whether a frame is the picture at another scale: `side = round(scale * picture's side)`, both ways.

    A sender that lowers the size sends the whole picture, margins included, and rounding must not add a second margin.
    """
    return abs(frame[0] * picture[1] - frame[1] * picture[0]) <= max(picture)


def _nearest(frame: int, first: int, size: int, picture: int, cells: int) -> npt.NDArray[np.intp]:
    """Return for each pixel of the frame, along one axis, the cell of the mask that its centre lies in."""
    centres = first + (np.arange(frame) + 0.5) * (size / frame)
    found: npt.NDArray[np.intp] = np.clip(np.floor(centres * (cells / picture)).astype(np.intp), 0, cells - 1)
    return found
