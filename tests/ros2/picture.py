"""Pictures that tell their number, and the lens that they were taken with."""

from __future__ import annotations

import hashlib

from mqinfer.images.picture import CameraInfo

HEIGHT, WIDTH = 24, 32
FRAME_ID, NANOSECONDS = "front optical", 7
LENS = CameraInfo(
    WIDTH,
    HEIGHT,
    "plumb_bob",
    (-0.25, 0.05, 0.001, -0.002, 0.0),
    (20.0, 0.0, 16.0, 0.0, 20.0, 12.0, 0.0, 0.0, 1.0),
    (1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0),
    (18.0, 0.0, 16.0, 0.0, 0.0, 18.0, 12.0, 0.0, 0.0, 0.0, 1.0, 0.0),
)


def pixels(number: int) -> bytes:
    """Return the bytes of a picture, which no other number has."""
    digest = hashlib.sha256(str(number).encode()).digest()
    return digest * (HEIGHT * WIDTH // len(digest))
