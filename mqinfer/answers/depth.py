"""Find a number for each pixel of a picture, such as a depth, among the outputs of a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mqinfer.answers.outputs import CONFIDENCE, SMALL_OUTPUT, Mask, extremes, find_mask
from mqinfer.images.pixel_format import stretch
from mqinfer.images.placement import UNKNOWN, Placement, is_scaled
from mqinfer.protocol.datatypes import Array


@dataclass(frozen=True, slots=True, eq=False)
class Depth:
    """A number for each pixel: distances, or what else the model measures.

    Attributes:
        name: Of the output.
        values: `[height, width]`, as the model returned them.
        least: The smallest finite value.
        greatest: The largest finite value.
    """

    name: str
    values: Array
    least: float
    greatest: float

    def levels(self, placement: Placement) -> Mask:
        """Return the values as levels in pixels of the frame, 0 for the least to 254 for the greatest.

        Pixels without a finite value, and those that the model did not see, are `UNKNOWN`, 255.
        """
        levels = np.minimum(stretch(self.values), UNKNOWN - 1)
        levels[~np.isfinite(self.values)] = UNKNOWN
        placed: npt.NDArray[np.uint8] = placement.mask_to_frame(levels)
        return placed


def find_depth(outputs: Mapping[str, Array], picture: tuple[int, int]) -> Depth | None:
    """Find the first output that has a number for each pixel, or for each cell of a grid over the picture.

    It has numbers, and exactly two axes longer than 1, in the proportions of the picture. A class mask, the mask of a
    single object and an output `confidence` are none; nor is one without a finite value.

    Args:
        outputs: Decoded arrays by name.
        picture: Width and height of what the model saw.
    """
    mask = find_mask(outputs, picture)
    others = {CONFIDENCE, "" if mask is None else mask[0], *(("masks", "keypoints") if "boxes" in outputs else ())}
    for name, output in outputs.items():
        plain = np.squeeze(output)
        is_plane = plain.ndim == 2 and plain.dtype.kind in "fiu" and plain.size > SMALL_OUTPUT
        if not is_plane or name in others:
            continue
        found = extremes(plain) if is_scaled(plain.shape[::-1], picture) else None
        if found is not None:
            return Depth(name, plain, *found)
    return None
