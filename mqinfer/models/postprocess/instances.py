"""Make a mask for each kept box: of prototypes and factors, or by choosing from the masks of all candidates.

A mask that covers its box only is laid into the picture: its probabilities are interpolated between the centres of its
cells, beyond the outermost of which they go on as they are, and looked up at the centres of the picture's pixels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.models.postprocess.candidates import Floats, one_picture
from mqinfer.protocol.datatypes import Array, Datatype
from mqinfer.protocol.errors import ModelFailed
from mqinfer.protocol.types import TensorSpec

_MOST_BYTES = 1 << 26
"""The most bytes of all masks of a picture: `n * H * W`; further boxes are left out."""
_SURE = 0.5
"""A pixel belongs to an instance if its probability is above this."""


class Cover(Enum):
    """What an output's masks are."""

    PROTOTYPES = auto()
    """Their sums are masks (YOLACT's way, and that of the YOLO family)."""
    PICTURE = auto()
    """Each covers the whole picture."""
    BOX = auto()
    """Each covers its box."""


class InstanceMasks:
    """Makes `masks` UINT8 [n, H, W], 1 where the instance is, which cover the whole picture.

    H and W are the output's, or the picture's where its masks cover boxes.

    Args:
        spec: The output with prototypes `[1, M, H, W]`, or with a mask for each candidate.
        picture: Width and height of the model's input.
        cover: What the output's masks are.

    Raises:
        ValueError: Its shape does not fit, or the picture's size is needed and not known.
    """

    def __init__(self, spec: TensorSpec, picture: tuple[int | None, int | None], cover: Cover) -> None:
        self._name = spec.name
        self._cover = cover
        if len(spec.shape) < 3:
            raise ValueError(f"masks: output {spec.name!r} {list(spec.shape)}: expected [1, M, H, W] or [K, H, W]")
        rows, columns = spec.shape[-2:]
        width, height = picture
        self._picture = 0, 0
        if width is not None and height is not None:
            self._picture = width, height
        elif cover is not Cover.PICTURE:
            raise ValueError("masks: the model takes pictures of any size; set width and height in [image]")
        is_known = -1 not in (rows, columns) and None not in picture
        if cover is Cover.PICTURE and is_known and (columns, rows) != picture:
            raise ValueError(
                f"masks: output {spec.name!r} {list(spec.shape)}: expected masks of the whole picture, "
                f"{width}x{height}; if each is of its box, set masks_in_boxes = true"
            )
        if cover is Cover.BOX:
            columns, rows = self._picture
        self.makes = TensorSpec("masks", Datatype.UINT8, (-1, rows, columns))

    def most(self, outputs: Mapping[str, Array]) -> int:
        """Return how many masks may be made.

        Raises:
            ModelFailed: The output does not have the shape of the settings.
        """
        output = outputs[self._name]
        if output.ndim < 3:
            raise ModelFailed(f"masks can't be made of {self._name} {list(output.shape)}; check [detection].masks")
        rows, columns = output.shape[-2:] if self._cover is not Cover.BOX else self._picture
        return int(_MOST_BYTES // max(1, rows * columns))

    def make(
        self, outputs: Mapping[str, Array], chosen: npt.NDArray[np.intp], factors: Floats, boxes: Floats
    ) -> npt.NDArray[np.uint8]:
        """Make the masks of some candidates.

        Args:
            outputs: The model's.
            chosen: Numbers of the candidates.
            factors: `[n, M]`, theirs of the prototypes.
            boxes: `[n, 4]`, theirs in pixels of the model's input: nothing outside belongs to an instance.

        Raises:
            ModelFailed: The output does not have the shape of the settings.
        """
        output = outputs[self._name]
        if self._cover is Cover.PROTOTYPES:
            return self._of(one_picture(self._name, output, 3), factors, boxes)
        shape = output.shape[-2:]
        if output.ndim < 3 or output.size % max(1, shape[0] * shape[1]):
            raise ModelFailed(f"masks can't be made of {self._name} {list(output.shape)}; check [detection].masks")
        masks = output.reshape(-1, *shape)
        if len(chosen) and chosen.max() >= len(masks):
            raise ModelFailed(f"masks can't be made of {self._name} {list(output.shape)}: fewer than boxes")
        return self._laid(masks[chosen], boxes) if self._cover is Cover.BOX else _present(masks[chosen])

    def _laid(self, masks: npt.NDArray[Any], boxes: Floats) -> npt.NDArray[np.uint8]:
        """Lay masks, `[n, h, w]` within their boxes, into pictures."""
        width, height = self._picture
        laid = np.zeros((len(masks), height, width), np.uint8)
        for picture, mask, (left, top, right, bottom) in zip(laid, masks, boxes.tolist(), strict=True):
            rows, down = _shares(top, bottom, mask.shape[0], height)
            columns, across = _shares(left, right, mask.shape[1], width)
            picture[rows, columns] = _present(down @ mask.astype(np.float32) @ across.T)
        return laid

    def _of(self, prototypes: Array, factors: Floats, boxes: Floats) -> npt.NDArray[np.uint8]:
        count, rows, columns = prototypes.shape
        logits = factors @ prototypes.reshape(count, rows * columns).astype(np.float32, copy=False)
        masks = logits.reshape(-1, rows, columns) > 0  # sigmoid(x) > 0.5
        width, height = self._picture
        left, top, right, bottom = boxes.T[:, :, np.newaxis]
        across, down = (np.arange(columns) + 0.5) * (width / columns), (np.arange(rows) + 0.5) * (height / rows)
        masks &= ((down >= top) & (down < bottom))[:, :, np.newaxis]
        masks &= ((across >= left) & (across < right))[:, np.newaxis, :]
        return masks.view(np.uint8)


def _shares(first: float, end: float, cells: int, pixels: int) -> tuple[slice, Floats]:
    """Return the pixels whose centres lie in a box along one axis, and how much of each cell each of them takes."""
    inside = slice(*(min(max(math.ceil(side - 0.5), 0), pixels) for side in (first, end)))
    centres = np.arange(inside.start, max(inside.start, inside.stop)) + 0.5
    at = np.clip((centres - first) * (cells / max(end - first, 1e-9)) - 0.5, 0, cells - 1)
    return inside, np.maximum(0, 1 - np.abs(at[:, np.newaxis] - np.arange(cells))).astype(np.float32)


def _present(masks: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    certain = masks > _SURE if masks.dtype.kind == "f" else masks != 0
    found: npt.NDArray[np.uint8] = certain.view(np.uint8)
    return found
