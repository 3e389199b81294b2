"""What a model found in a picture, in the pixels of the picture itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from mqinfer.answers.depth import Depth, find_depth
from mqinfer.answers.outputs import DetectedBox, Mask, TopClass, class_shares, find_top, placed_boxes, placed_mask
from mqinfer.codecs.opencv import opencv
from mqinfer.images.placement import UNKNOWN, Placement
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array

MOST_POINTS = 64
"""Points of an object's outline; one with more is made plainer."""


@dataclass(frozen=True, eq=False)
class PictureAnswer:
    """The outputs of a result, brought back to the picture that they were found in; each is worked out once.

    Attributes:
        outputs: Decoded arrays by name.
        placement: Where the picture lies in what the model saw.
        classes: Of the model's card.
    """

    outputs: Mapping[str, Array]
    placement: Placement
    classes: Sequence[ClassInfo] = ()

    @cached_property
    def boxes(self) -> tuple[DetectedBox, ...]:
        """The boxes, in pixels of the picture, with the names of their classes, the best first."""
        return placed_boxes(self.outputs, self.placement, self.classes)

    @cached_property
    def top(self) -> tuple[TopClass, ...]:
        """The best classes of a classifier."""
        return find_top(self.outputs, self.classes)

    @cached_property
    def mask(self) -> Mask | None:
        """The class number of each pixel, in the picture's size; None if no output is a mask.

        Pixels that the model did not see, outside the region or the sight of the lens, are `UNKNOWN`, 255.
        """
        return placed_mask(self.outputs, self.placement)

    @cached_property
    def seen(self) -> npt.NDArray[np.bool_] | None:
        """Which pixels the mask has a class for; None if all of them, or without a mask."""
        return None if self.mask is None or self.placement.is_whole else self.mask != UNKNOWN

    @cached_property
    def shares(self) -> dict[str, float]:
        """The share of each class in the pixels of the mask, 0 to 1; empty without a mask."""
        return {} if self.mask is None else class_shares(self.mask, self.classes, self.seen)

    @cached_property
    def depth(self) -> Depth | None:
        """The output with a number for each pixel; None if there is none."""
        return find_depth(self.outputs, self.placement.picture)

    def outline(self, box: DetectedBox) -> list[list[float]]:
        """Return the outline of an object's largest part, from its mask, in pixels of the picture.

        It has at most `MOST_POINTS` points `[x, y]`, and none where the object has no mask.

        Raises:
            MissingExtra: OpenCV is not installed.
        """
        masks = self.outputs.get("masks")
        if masks is None or masks.ndim != 3 or masks.dtype.kind not in "bu" or box.row >= len(masks):
            return []
        return self._outline((masks[box.row] != 0).astype(np.uint8))

    def _outline(self, cells: Mask) -> list[list[float]]:
        """Follow the edge of a mask that covers the model's picture, each cell of it one pixel or several."""
        cv2 = opencv()
        # A contour runs through pixels: with two for each cell and a margin of one, half of its numbers are the edges.
        framed = np.pad(np.kron(cells, np.ones((2, 2), np.uint8)), 1)
        found, _ = cv2.findContours(framed, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
        if not found:
            return []
        points, tolerance = max(found, key=cv2.contourArea), 1.0
        while len(points) > MOST_POINTS:
            points, tolerance = cv2.approxPolyDP(points, tolerance, closed=True), 2 * tolerance
        scale = np.array(self.placement.picture) / cells.shape[::-1]
        corners = points.reshape(-1, 2) // 2 * scale
        moved = self.placement.boxes_to_frame(np.concatenate([corners, corners], axis=1))[:, :2]
        outline: list[list[float]] = moved.round(1).tolist()
        return outline
