"""Convert pixels to a model's input: size, colour order, layout and range, in as few passes as possible.

The model's input is `(pixel * scale - mean) / std`, which is one multiplication and one subtraction:
`pixel * (scale / std) - mean / std`. The pixels of depth pictures are metres, 0 where nothing was measured.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.codecs.opencv import opencv
from mqinfer.images.placement import Placement
from mqinfer.protocol.card import ColourOrder, ImageContract, Layout
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.errors import BadTensor

Pixels = npt.NDArray[np.uint8]
Samples = npt.NDArray[Any]
"""Pixels, or distances."""

_ORDERS = {"rgb8": ColourOrder.RGB, "bgr8": ColourOrder.BGR, "mono8": ColourOrder.MONO}
_DEPTHS = {"16UC1": np.uint16, "32FC1": np.float32}
_MILLIMETRES = np.float32(1000)
"""In a metre."""
_CV2_NAMES = {ColourOrder.RGB: "RGB", ColourOrder.BGR: "BGR", ColourOrder.MONO: "GRAY"}


def to_model_input(pixels: Samples, image_encoding: str, contract: ImageContract, datatype: Datatype) -> Array:
    """Convert one picture to a model's input.

    Args:
        pixels: `[height, width, 3]`, or `[height, width]` (also `[height, width, 1]`) for mono8 and depth.
        image_encoding: `rgb8`, `bgr8` or `mono8`; `16UC1` or `32FC1` for a model that takes depth.
        contract: Size and way of resizing, colour order, layout and range that the model expects.
        datatype: The input's. Values of an integer datatype are rounded and clipped to its range.

    Returns:
        The array with a batch axis of 1: `[1, H, W, C]`, `[1, C, H, W]` or `[1, H, W]`. It is a
        view on `pixels` where nothing needs to change.

    Raises:
        BadTensor: The encoding is another one, or the array does not match it.
    """
    if contract.takes_depth:
        channels: Samples = _metres(place(_checked_depth(pixels, image_encoding), contract))[:, :, np.newaxis]
    else:
        order = _ORDERS.get(image_encoding)
        if order is None:
            raise BadTensor(
                f"image encoding {image_encoding!r}: expected {', '.join(_ORDERS)}; convert the picture first"
            )
        channels = _recolour(place(_checked(pixels, order), contract), order, contract.colour)
    return _in_range(_arrange(channels, contract.layout), contract, datatype)[np.newaxis]


def place(pixels: Samples, contract: ImageContract) -> Samples:
    """Bring a picture to a model's size: stretch it, put it between margins, or cut off what sticks out.

    Args:
        pixels: `[height, width]` or `[height, width, channels]`.
        contract: Size, way of resizing and grey level of the margins.

    Returns:
        The same object if it fits.

    Raises:
        MissingExtra: OpenCV is needed and not installed.
    """
    height, width = pixels.shape[:2]
    size = contract.width or width, contract.height or height
    if size == (width, height):
        return pixels
    at = Placement.of((width, height), size, contract.resize)
    sized = fit(pixels[at.rows, at.columns], at.width, at.height)
    if (at.width, at.height) == at.picture:
        return sized
    fill = 0 if contract.takes_depth else contract.fill
    framed = np.full((at.picture[1], at.picture[0], *pixels.shape[2:]), fill, pixels.dtype)
    framed[at.top : at.top + at.height, at.left : at.left + at.width] = sized
    return framed


def fit(pixels: Samples, width: int, height: int) -> Samples:
    """Resize a picture; return the same object if it has the size.

    Colours are averaged over areas when shrinking, and linear otherwise. Distances are those of the nearest pixel:
    between a near edge and what is behind it there is nothing at their mean.

    Args:
        pixels: `[height, width]` or `[height, width, channels]`.
        width: New width, in pixels.
        height: New height, in pixels.

    Raises:
        MissingExtra: OpenCV is needed and not installed.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    cv2 = opencv()
    shrinking = height <= pixels.shape[0] and width <= pixels.shape[1]
    way = cv2.INTER_AREA if shrinking else cv2.INTER_LINEAR
    if pixels.dtype != np.uint8:
        way = cv2.INTER_NEAREST_EXACT
    resized: Samples = cv2.resize(np.ascontiguousarray(pixels), (width, height), interpolation=way)
    return resized


def _checked_depth(pixels: Samples, encoding: str) -> Samples:
    dtype = _DEPTHS.get(encoding)
    if dtype is None:
        raise BadTensor(f"image encoding {encoding!r}: the model takes depth pictures, {' or '.join(_DEPTHS)}")
    if pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    if pixels.ndim != 2 or pixels.dtype != dtype or 0 in pixels.shape:
        raise BadTensor(
            f"a depth picture must be {np.dtype(dtype)} [height, width]; got {pixels.dtype} {list(pixels.shape)}"
        )
    return pixels


def _metres(depth: Samples) -> npt.NDArray[np.float32]:
    """Return distances in metres; 0 (nothing measured, REP 117 and 118) for what is not finite too."""
    if depth.dtype == np.uint16:
        return np.divide(depth, _MILLIMETRES, dtype=np.float32)
    metres: npt.NDArray[np.float32] = np.nan_to_num(depth, nan=0.0, posinf=0.0, neginf=0.0)
    return metres


def _checked(pixels: Samples, order: ColourOrder) -> Pixels:
    mono = order is ColourOrder.MONO
    if mono and pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    right = pixels.ndim == 2 if mono else pixels.ndim == 3 and pixels.shape[2] == 3
    if not right or pixels.dtype != np.uint8 or 0 in pixels.shape:
        shape = "[height, width]" if mono else "[height, width, 3]"
        raise BadTensor(f"a picture must be UINT8 {shape}; got {pixels.dtype} {list(pixels.shape)}")
    return pixels


def _recolour(pixels: Pixels, have: ColourOrder, want: ColourOrder) -> Pixels:
    """Return `[H, W, C]` in the colour order `want`; OpenCV swaps channels ten times faster than NumPy's strides."""
    if have is not want:
        cv2 = opencv()
        code = getattr(cv2, f"COLOR_{_CV2_NAMES[have]}2{_CV2_NAMES[want]}")
        pixels = cv2.cvtColor(np.ascontiguousarray(pixels), code)
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]


def _arrange(pixels: Samples, layout: Layout) -> Samples:
    if layout is Layout.NHW:
        return pixels[:, :, 0]
    return pixels.transpose(2, 0, 1) if layout is Layout.NCHW else pixels


def _in_range(pixels: Samples, contract: ImageContract, datatype: Datatype) -> Array:
    """Return `(pixels * scale - mean) / std` in the datatype, contiguous; `pixels` may be a strided view."""
    dtype = dtype_of(datatype)
    is_same = contract.scale == 1.0 and not any(contract.mean) and set(contract.std) == {1.0}
    if is_same and (pixels.dtype == np.uint8 or dtype.kind == "f"):
        return np.ascontiguousarray(pixels, dtype)
    std = np.array(contract.std, np.float64)
    factor = (contract.scale / std).astype(np.float32)
    offset = (np.array(contract.mean, np.float64) / std).astype(np.float32)
    values = np.empty(pixels.shape, np.float32)
    _scale(pixels, factor, offset, values, contract.layout)
    if dtype.kind in "ui":
        limits = np.iinfo(dtype.name)
        return np.clip(np.rint(values), limits.min, limits.max).astype(dtype)
    return values.astype(dtype, copy=False)


def _scale(
    pixels: Samples, factor: npt.NDArray[np.float32], offset: npt.NDArray[np.float32], out: Any, layout: Layout
) -> None:
    if layout is Layout.NCHW:
        factor, offset = factor.reshape(-1, 1, 1), offset.reshape(-1, 1, 1)
    elif factor.size > 1 or offset.size > 1:
        # An inner loop of three numbers would be slow, so they are repeated along a whole row.
        width, channels = pixels.shape[1:]
        factor, offset = (np.tile(np.broadcast_to(each, channels), width) for each in (factor, offset))
        pixels, out = np.ascontiguousarray(pixels).reshape(-1, width * channels), out.reshape(-1, width * channels)
    np.multiply(pixels, factor, out=out)
    if offset.any():
        np.subtract(out, offset, out=out)
