"""From pixels to a model's input: size, colour order, range, layout, in as few passes over the picture as possible.

The value that the model sees is `(pixel * scale - mean) / std`, which is one multiplication and one subtraction:
`pixel * (scale / std) - mean / std`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from mqinfer.protocol.card import ColourOrder, ImageContract, Layout
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.errors import BadTensor, MissingExtra

__all__ = ["fit", "to_model_input"]

Pixels = npt.NDArray[np.uint8]

_ORDERS = {"rgb8": ColourOrder.RGB, "bgr8": ColourOrder.BGR, "mono8": ColourOrder.MONO}
_CV2_NAMES = {ColourOrder.RGB: "RGB", ColourOrder.BGR: "BGR", ColourOrder.MONO: "GRAY"}


def to_model_input(pixels: Pixels, image_encoding: str, contract: ImageContract, datatype: Datatype) -> Array:
    """Make a model's input of one picture.

    Args:
        pixels: `[height, width, 3]`, or `[height, width]` (also `[height, width, 1]`) for mono8.
        image_encoding: `rgb8`, `bgr8` or `mono8`.
        contract: What the model wants.
        datatype: Of the model's input. Values for a whole-number type are rounded and kept within its range.

    Returns:
        The array with a batch axis of 1: `[1, H, W, C]`, `[1, C, H, W]` or `[1, H, W]`. Where nothing needs to change
        it is a view on `pixels`.

    Raises:
        BadTensor: The encoding is another one, or the array is not what it says.
    """
    order = _ORDERS.get(image_encoding)
    if order is None:
        raise BadTensor(f"image encoding {image_encoding!r}: a model takes {', '.join(_ORDERS)}; convert it first")
    sized = fit(_checked(pixels, order), contract.width or pixels.shape[1], contract.height or pixels.shape[0])
    coloured = _recolour(sized, order, contract.colour)
    arranged = _arrange(coloured, contract.layout)
    return _in_range(arranged, contract, datatype)[np.newaxis]


def fit(pixels: Pixels, width: int, height: int) -> Pixels:
    """Bring a picture to a size: area averages when shrinking, linear otherwise; the same object if it fits already.

    Args:
        pixels: `[height, width]` or `[height, width, channels]`.
        width: Wanted, in pixels.
        height: Wanted, in pixels.

    Raises:
        MissingExtra: OpenCV is needed and not installed.
    """
    if pixels.shape[:2] == (height, width):
        return pixels
    cv2 = _opencv()
    shrinking = height <= pixels.shape[0] and width <= pixels.shape[1]
    resized: Pixels = cv2.resize(
        np.ascontiguousarray(pixels),
        (width, height),
        interpolation=cv2.INTER_AREA if shrinking else cv2.INTER_LINEAR,
    )
    return resized


def _opencv() -> Any:
    try:
        import cv2
    except ImportError as error:
        raise MissingExtra.of("opencv-python-headless", "worker") from error
    return cv2


def _checked(pixels: Pixels, order: ColourOrder) -> Pixels:
    mono = order is ColourOrder.MONO
    if mono and pixels.ndim == 3 and pixels.shape[2] == 1:
        pixels = pixels[:, :, 0]
    right = pixels.ndim == 2 if mono else pixels.ndim == 3 and pixels.shape[2] == 3
    if not right or pixels.dtype != np.uint8 or 0 in pixels.shape:
        shape = "[height, width]" if mono else "[height, width, 3]"
        raise BadTensor(f"a picture must be UINT8 {shape}; got {pixels.dtype} {list(pixels.shape)}")
    return pixels


def _recolour(pixels: Pixels, have: ColourOrder, want: ColourOrder) -> Pixels:
    """Give `[H, W, C]` with the channels wanted; OpenCV swaps channels ten times faster than NumPy's strides do."""
    if have is not want:
        cv2 = _opencv()
        code = getattr(cv2, f"COLOR_{_CV2_NAMES[have]}2{_CV2_NAMES[want]}")
        pixels = cv2.cvtColor(np.ascontiguousarray(pixels), code)
    return pixels if pixels.ndim == 3 else pixels[:, :, np.newaxis]


def _arrange(pixels: Pixels, layout: Layout) -> Pixels:
    if layout is Layout.NHW:
        return pixels[:, :, 0]
    return pixels.transpose(2, 0, 1) if layout is Layout.NCHW else pixels


def _in_range(pixels: Pixels, contract: ImageContract, datatype: Datatype) -> Array:
    """Scale, subtract and convert; `pixels` is a view that may be strided, the result is contiguous."""
    dtype = dtype_of(datatype)
    if contract.scale == 1.0 and not any(contract.mean) and set(contract.std) == {1.0}:
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
    pixels: Pixels, factor: npt.NDArray[np.float32], offset: npt.NDArray[np.float32], out: Any, layout: Layout
) -> None:
    if layout is Layout.NCHW:
        factor, offset = factor.reshape(-1, 1, 1), offset.reshape(-1, 1, 1)
    elif factor.size > 1 or offset.size > 1:
        # Three numbers per inner loop would be slow: repeat them along a whole row.
        width, channels = pixels.shape[1:]
        factor, offset = (np.tile(np.broadcast_to(each, channels), width) for each in (factor, offset))
        pixels, out = np.ascontiguousarray(pixels).reshape(-1, width * channels), out.reshape(-1, width * channels)
    np.multiply(pixels, factor, out=out)
    if offset.any():
        np.subtract(out, offset, out=out)
