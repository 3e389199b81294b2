"""Bring what a model found back to the pixels of the picture that it was found in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from mqinfer.answers.outputs import DetectedBox, Mask, class_name, find_boxes, find_mask
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array


def placed_boxes(
    outputs: Mapping[str, Array], placement: Placement, classes: Sequence[ClassInfo] | None = None
) -> tuple[DetectedBox, ...]:
    """Return the boxes among outputs in pixels of the picture, the best first, with names where classes are given."""
    found = find_boxes(outputs)
    moved = placement.boxes_to_frame(np.array([each.box for each in found]).reshape(-1, 4)).tolist()
    names = ["" if classes is None or each.number is None else class_name(each.number, classes) for each in found]
    return tuple(
        replace(each, box=tuple(sides), name=name) for each, sides, name in zip(found, moved, names, strict=True)
    )


def placed_mask(outputs: Mapping[str, Array], placement: Placement) -> Mask | None:
    """Return the class mask among outputs in the picture's size, 255 where the model did not see it; None if none."""
    found = find_mask(outputs, placement.picture)
    return placement.mask_to_frame(found[1]) if found else None
