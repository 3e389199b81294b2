"""Pictures that tell their number."""

from __future__ import annotations

import hashlib

HEIGHT, WIDTH = 6, 8


def pixels(number: int) -> bytes:
    """Return the bytes of a picture, which no other number has."""
    return (hashlib.sha256(str(number).encode()).digest() * 2)[: HEIGHT * WIDTH]
