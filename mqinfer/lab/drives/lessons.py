"""Synthetic drives as training data: scenes converted to a mosaic and back, as at an edge."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from mqinfer.images.pixel_format import demosaic
from mqinfer.lab.drives.canvas import Pixels
from mqinfer.lab.drives.mosaic import make_mosaic
from mqinfer.lab.drives.synthetic import SyntheticDrive

_SECONDS_APART = 4.0  # far enough for a different scene
_HERE = Path(__file__).parent


def lesson_drive(seed: int) -> Iterator[tuple[Pixels, Pixels]]:
    """Yield pictures (RGB uint8 [608,968,3]) and masks (uint8 [608,968]) of one drive, seconds apart, endlessly."""
    drive = SyntheticDrive(seed, rate=1 / _SECONDS_APART)
    index = 0
    while True:
        scene = drive.scene(index)
        yield np.asarray(demosaic(make_mosaic(scene.picture, "rggb"), "rggb"), np.uint8), scene.mask
        index += 1


def lessons_key() -> str:
    """Return a hash of the code that renders drives, as a key for cached training results."""
    digest = hashlib.sha256()
    for path in sorted(_HERE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
