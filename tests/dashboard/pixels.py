"""Pixels of a tile's mask, as the browser drew them."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

from tests.dashboard.chromium import Watched, script

__all__ = ["mask_pixels"]


def mask_pixels(watched: Watched, client: str) -> tuple[int, npt.NDArray[np.uint8]]:
    """Return sequence and pixels `[height, width, 4]` of the mask that a client's tile shows; wait until it has one."""
    found = watched.page.wait_for_function(script("mask"), arg=client).json_value()
    pixels = np.frombuffer(base64.b64decode(found["pixels"]), np.uint8)
    return found["sequence"], pixels.reshape(found["height"], found["width"], 4)
