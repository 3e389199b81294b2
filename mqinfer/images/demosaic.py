"""Demosaic: convert a Bayer mosaic to full colour with OpenCV."""

from __future__ import annotations

from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from mqinfer.codecs.opencv import opencv
from mqinfer.protocol.errors import BadImage

PATTERNS = ("rggb", "bggr", "gbrg", "grbg")


class Demosaic(StrEnum):
    """How the two missing colours of each pixel are found.

    `BILINEAR` averages the neighbours of the colour and is the fastest; `EDGE_AWARE` averages green along the weaker
    gradient; `VNG` (variable number of gradients) is the slowest.
    """

    BILINEAR = "bilinear"
    EDGE_AWARE = "edge-aware"
    VNG = "vng"


_SUFFIX = {Demosaic.BILINEAR: "", Demosaic.EDGE_AWARE: "_EA", Demosaic.VNG: "_VNG"}


def demosaic(
    mosaic: NDArray[np.unsignedinteger],
    pattern: str,
    method: Demosaic = Demosaic.BILINEAR,
    *,
    bit_depth: int = 16,
) -> NDArray[np.unsignedinteger]:
    """Convert a mosaic to an RGB image.

    The border pixel on each side has too few neighbours; OpenCV repeats the next inner one.

    OpenCV's VNG takes 8 bits only: a 16-bit mosaic is rounded to 8 bits and the result is scaled back, to 256 levels.

    Args:
        mosaic: `[H, W]`, uint8 or uint16, at least 3x3.
        pattern: The top-left 2x2 in reading order: `rggb`, `bggr`, `gbrg` or `grbg`.
        method: How the missing colours are found.
        bit_depth: Used bits of a 16-bit sample; only VNG needs it.

    Returns:
        `[H, W, 3]` RGB of the mosaic's dtype.

    Raises:
        BadImage: The mosaic is too small, or of another dtype or shape, or the pattern is unknown.
    """
    _check(mosaic, pattern)
    if method is Demosaic.VNG and mosaic.dtype == np.uint16:
        return _vng16(mosaic, pattern, float((1 << bit_depth) - 1))
    cv2 = opencv()
    # OpenCV's BayerRGGB names are those of the top-left 2x2, as in ROS; its older BayerBG names are of the second row.
    code = getattr(cv2, f"COLOR_Bayer{pattern.upper()}2RGB{_SUFFIX[method]}")
    rgb: NDArray[np.unsignedinteger] = cv2.cvtColor(np.ascontiguousarray(mosaic), code)
    return rgb


def _vng16(mosaic: NDArray[np.unsignedinteger], pattern: str, white: float) -> NDArray[np.unsignedinteger]:
    cv2 = opencv()
    coarse = demosaic(cv2.convertScaleAbs(np.ascontiguousarray(mosaic), alpha=255.0 / white), pattern, Demosaic.VNG)
    fine: NDArray[np.uint16] = np.rint(coarse * np.float32(white / 255.0)).astype(np.uint16)
    return fine


def _check(mosaic: NDArray[np.unsignedinteger], pattern: str) -> None:
    if pattern not in PATTERNS:
        raise BadImage(f"Bayer pattern {pattern!r} is unknown; expected one of {', '.join(PATTERNS)}")
    if mosaic.ndim != 2 or mosaic.dtype not in (np.uint8, np.uint16):
        raise BadImage(f"a mosaic is [H, W] of uint8 or uint16, not {list(mosaic.shape)} of {mosaic.dtype}")
    if min(mosaic.shape) < 3:
        # OpenCV returns a black image rather than an error.
        raise BadImage(f"a mosaic of {mosaic.shape[1]}x{mosaic.shape[0]} is too small to demosaic: at least 3x3")
