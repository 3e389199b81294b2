from __future__ import annotations

import tracemalloc

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from mqinfer.codecs import encode_tensor
from mqinfer.images.decode import as_image, to_rgb
from mqinfer.images.picture import CompressedImage, RawImage
from mqinfer.judging.thumbnail import SIDE, difference, thumbnail
from mqinfer.protocol.errors import BadImage


def scene(height: int = 608, width: int = 968) -> NDArray[np.uint8]:
    """Make a smooth picture in colours: at 50x50 only its means count."""
    small = np.random.default_rng(5).integers(0, 256, (8, 8, 3), np.uint8)
    return cv2.resize(small, (width, height), interpolation=cv2.INTER_CUBIC).astype(np.uint8)


def mosaic_of(pixels: NDArray[np.uint8], pattern: str) -> NDArray[np.uint8]:
    """Keep of each pixel the colour that a Bayer pattern has there."""
    made = np.zeros(pixels.shape[:2], np.uint8)
    for index, colour in enumerate(pattern):
        row, column = divmod(index, 2)
        made[row::2, column::2] = pixels[row::2, column::2, "rgb".index(colour)]
    return made


def exact(pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Average over areas in one step."""
    return cv2.resize(pixels, (SIDE, SIDE), interpolation=cv2.INTER_AREA).astype(np.uint8)


@pytest.mark.parametrize("size", [(608, 968), (540, 960), (64, 96), (51, 50), (20, 30), (6, 4)])
@pytest.mark.parametrize("kind", ["rgb8", "bgr8", "bayer_rggb8", "bayer_gbrg8", "bayer_bggr16", "jpeg", "png"])
def test_a_thumbnail_is_the_mean_of_each_area(size: tuple[int, int], kind: str) -> None:
    """In every encoding and size it is nearly that of the whole picture in colours."""
    pixels = scene(*size)
    image: RawImage | CompressedImage
    if kind in {"jpeg", "png"}:
        coding = "jpeg:95" if kind == "jpeg" else "png"
        image = CompressedImage(kind, bytes(encode_tensor("x", pixels, coding).data))
    elif kind.startswith("bayer"):
        mosaic = mosaic_of(pixels, kind[6:10])
        image = as_image(mosaic if kind.endswith("8") else mosaic.astype(np.uint16) * 16, kind)
    else:
        image = as_image(pixels if kind == "rgb8" else pixels[:, :, ::-1], kind)
    seen = thumbnail(image, 12 if kind.endswith("16") else None)
    assert seen.shape == (SIDE, SIDE, 3)
    assert seen.dtype == np.uint8
    if min(size) >= SIDE:  # two scenes differ by 5,000; a mosaic has less than a pixel of each colour a cell if small
        assert difference(seen, exact(pixels)) < (1000 if "bayer" in kind and min(size) < 2 * SIDE else 40)


def test_the_difference_is_the_mean_squared_error() -> None:
    """Of the whole picture, or of the block that differs most."""
    black, one = np.zeros((SIDE, SIDE, 3), np.uint8), np.zeros((SIDE, SIDE, 3), np.uint8)
    one[:10, 40:] = 100
    assert difference(black, black) == 0
    assert difference(black, one) == difference(one, black) == pytest.approx(10_000 * 0.04)
    assert difference(black, one, 5) == pytest.approx(10_000)
    assert difference(black, one, 10) == pytest.approx(10_000)
    assert difference(black, np.full_like(one, 255)) == 255**2


def test_a_picture_that_cannot_be_decoded() -> None:
    """It is an error of the picture."""
    whole = bytes(encode_tensor("x", scene(), "jpeg:90").data)
    with pytest.raises(BadImage):
        thumbnail(CompressedImage("jpeg", b"\xff\xd8no"))
    with pytest.raises(BadImage):
        thumbnail(RawImage("rgb8", 600, 900, 2700, is_bigendian=False, data=b"short"))
    with pytest.raises(BadImage):
        thumbnail(RawImage("unheard", 60, 90, 270, is_bigendian=False, data=bytes(16200)))
    with pytest.raises(BadImage):
        thumbnail(CompressedImage("jpeg", whole[: len(whole) // 2]))
    assert thumbnail(CompressedImage("jpeg", whole)).shape == (SIDE, SIDE, 3)


@pytest.mark.parametrize("kind", ["bayer_rggb8", "bgr8", "jpeg"])
def test_no_whole_picture_is_made(kind: str) -> None:
    """The memory taken stays well below that of the decoded picture, of which nothing is needed."""
    pixels = scene()
    image: RawImage | CompressedImage
    if kind == "jpeg":
        image = CompressedImage("jpeg", bytes(encode_tensor("x", pixels, "jpeg:90").data))
    else:
        image = as_image(mosaic_of(pixels, "rggb") if kind.startswith("bayer") else pixels, kind)
    thumbnail(image)
    tracemalloc.start()
    thumbnail(image)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < to_rgb(image).nbytes / 2
