"""Where a frame lies in the picture that a model sees: the way there, and back to the frame's own pixels.

A frame is rectified, where its camera's calibration is to be applied; a region of that is chosen; the region fills a
rectangle of the model's picture. Boxes and masks go the same way back, to the pixels as they were recorded.

The picture becomes the model's input, `(pixel * scale - mean) / std`, in as few passes as possible: one multiplication
and one subtraction, `pixel * (scale / std) - mean / std`. The pixels of depth pictures are metres, 0 where nothing was
measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from mqinfer.codecs.opencv import opencv
from mqinfer.images.picture import CameraInfo
from mqinfer.images.rectification import rectification
from mqinfer.protocol.card import ColourOrder, ImageContract, Layout, Resize
from mqinfer.protocol.datatypes import Array, Datatype, dtype_of
from mqinfer.protocol.errors import BadTensor, LimitExceeded
from mqinfer.protocol.limits import DEFAULT_LIMITS

__all__ = ["UNKNOWN", "Placement", "Region", "Resize", "is_scaled"]

Region = tuple[int, int, int, int]
"""Left, top, width and height, in pixels."""
UNKNOWN = 255
"""Class of the pixels that the model did not see."""


@dataclass(frozen=True, slots=True)
class Placement:
    """The rectangle of the model's picture that a frame, or a region of it, fills. Sizes are (width, height).

    Coordinates are continuous: 0 is the outer edge of the first pixel, as in the boxes of detectors.

    Attributes:
        frame: Size of the frame as it was recorded.
        picture: Size of what the model sees.
        left: Left edge of the region in the picture.
        top: Its upper edge.
        width: Its width in the picture.
        height: Its height in the picture.
        region: The part of the frame, once it is rectified, that the model sees; None for all of it.
        camera: Calibration by which the frame was rectified; None if it was not.
    """

    frame: tuple[int, int]
    picture: tuple[int, int]
    left: int
    top: int
    width: int
    height: int
    region: Region | None = None
    camera: CameraInfo | None = None

    @classmethod
    def of(
        cls,
        frame: tuple[int, int],
        picture: tuple[int, int],
        resize: Resize = Resize.STRETCH,
        region: Region | None = None,
        camera: CameraInfo | None = None,
    ) -> Self:
        """Place a frame in a picture; one of the picture's own proportions, to the pixel, fills it.

        Args:
            frame: Its width and height.
            picture: The model's width and height.
            resize: How it fits in.
            region: The part of the rectified frame to place; None for all of it.
            camera: By which it is rectified.

        Raises:
            LimitExceeded: The picture has more pixels than receivers accept, as of a model with one fixed side.
        """
        if picture[0] * picture[1] > (most := DEFAULT_LIMITS.image_pixels):
            raise LimitExceeded(f"the model's picture of {picture[0]}x{picture[1]} pixels; at most {most} are sent")
        whole = 0, 0, *frame
        left, top, *size = region or whole
        placed = picture
        if not is_scaled((size[0], size[1]), picture):
            if resize is Resize.LETTERBOX:
                factor = min(picture[0] / size[0], picture[1] / size[1])
                placed = max(1, round(size[0] * factor)), max(1, round(size[1] * factor))
            elif resize is Resize.CROP:
                width = min(size[0], max(1, round(size[1] * picture[0] / picture[1])))
                height = min(size[1], max(1, round(size[0] * picture[1] / picture[0])))
                left, top, size = left + (size[0] - width) // 2, top + (size[1] - height) // 2, [width, height]
        part = left, top, size[0], size[1]
        margins = (picture[0] - placed[0]) // 2, (picture[1] - placed[1]) // 2
        return cls(frame, picture, *margins, *placed, None if part == whole else part, camera)

    @classmethod
    def in_model(cls, contract: ImageContract, width: int, height: int) -> Self:
        """Place a picture of a size, in pixels, in what a model sees, which has that size where the model takes any."""
        return cls.of((width, height), (contract.width or width, contract.height or height), contract.resize)

    @property
    def is_whole(self) -> bool:
        """Whether the model saw the whole frame as it was recorded."""
        return self.region is None and self.camera is None

    @property
    def rows(self) -> slice:
        """The region's rows of the rectified frame."""
        return slice(None) if self.region is None else slice(self.region[1], self.region[1] + self.region[3])

    @property
    def columns(self) -> slice:
        """The region's columns of the rectified frame."""
        return slice(None) if self.region is None else slice(self.region[0], self.region[0] + self.region[2])

    def boxes_to_frame(self, boxes: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
        """Map boxes from the picture to the frame.

        Args:
            boxes: `[n, 4]`, left, top, right, bottom in pixels of the picture.

        Returns:
            The same in pixels of the frame as it was recorded, cut off at its edges: of a frame that was rectified, the
            bounds of the box's bent outline.
        """
        left, top, width, height = self.region or (0, 0, *self.frame)
        across, down = width / self.width, height / self.height
        moved = boxes.astype(np.float64) - (self.left, self.top, self.left, self.top)
        moved = moved * (across, down, across, down) + (left, top, left, top)
        if self.camera is not None and moved.size:
            moved = rectification(self.camera, *self.frame).boxes_to_recorded(moved)
        return np.clip(moved, 0.0, np.array([*self.frame, *self.frame], np.float64))

    def mask_to_frame(self, mask: npt.NDArray[Any], outside: float = UNKNOWN) -> npt.NDArray[Any]:
        """Map a mask to the frame, each pixel from its nearest neighbour.

        Args:
            mask: `[height, width]`, of any size: it covers the whole picture.
            outside: Value of the frame's pixels that the model did not see.

        Returns:
            `[height, width]` of the frame as it was recorded.
        """
        _, _, width, height = self.region or (0, 0, *self.frame)
        rows = _nearest(height, self.top, self.height, self.picture[1], mask.shape[0])
        columns = _nearest(width, self.left, self.width, self.picture[0], mask.shape[1])
        return self.region_to_frame(mask[rows[:, np.newaxis], columns], outside)

    def region_to_frame(self, pixels: npt.NDArray[Any], outside: float = 0) -> npt.NDArray[Any]:
        """Lay the pixels of the region, `[height, width, ...]` of its size, where they were recorded in the frame."""
        if self.region is not None:
            canvas = np.full((self.frame[1], self.frame[0], *pixels.shape[2:]), outside, pixels.dtype)
            canvas[self.rows, self.columns] = pixels
            pixels = canvas
        if self.camera is None:
            return pixels
        return rectification(self.camera, *self.frame).to_recorded(pixels, outside)


def is_scaled(frame: tuple[int, int], picture: tuple[int, int]) -> bool:
    """Return whether a frame is the picture at another scale: `side = round(scale * picture's side)`, both ways.

    A sender that lowers the size sends the whole picture, margins included, and rounding must not add a second margin.
    """
    return abs(frame[0] * picture[1] - frame[1] * picture[0]) <= max(picture)


def _nearest(frame: int, first: int, size: int, picture: int, cells: int) -> npt.NDArray[np.intp]:
    """Return for each pixel of the frame, along one axis, the cell of the mask that its centre lies in."""
    centres = first + (np.arange(frame) + 0.5) * (size / frame)
    found: npt.NDArray[np.intp] = np.clip(np.floor(centres * (cells / picture)).astype(np.intp), 0, cells - 1)
    return found


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
    if contract.colour is ColourOrder.DEPTH:
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
    fill = 0 if contract.colour is ColourOrder.DEPTH else contract.fill
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
