from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

from mqinfer.images.decode import to_array, to_rgb
from mqinfer.images.picture import RawImage
from mqinfer.images.pixel_format import PATTERNS, Demosaic, demosaic
from mqinfer.protocol.errors import BadImage

Array = NDArray[Any]
SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
ALL = [(method, pattern, dtype) for method in Demosaic for pattern in PATTERNS for dtype in (np.uint8, np.uint16)]
CHANNEL = {"r": 0, "g": 1, "b": 2}


def mosaic_of(rgb: Array, pattern: str) -> Array:
    """Sample a colour image through a colour filter array, pattern in reading order."""
    mosaic = np.empty(rgb.shape[:2], rgb.dtype)
    for index, letter in enumerate(pattern):
        row, column = divmod(index, 2)
        mosaic[row::2, column::2] = rgb[row::2, column::2, CHANNEL[letter]]
    return mosaic


def bilinear(mosaic: Array, pattern: str) -> Array:
    """Demosaic the interior by the textbook, as exact fractions: average the neighbours that have the colour."""
    height, width = mosaic.shape
    sums: Array = np.zeros((height, width, 3))
    counts: Array = np.zeros((height, width, 3))
    for row in range(height):
        for column in range(width):
            colour = CHANNEL[pattern[row % 2 * 2 + column % 2]]
            for below in (-1, 0, 1):
                for right in (-1, 0, 1):
                    y, x = row + below, column + right
                    is_wanted = _reaches(pattern, y, x, below, right)
                    if 0 <= y < height and 0 <= x < width and is_wanted:
                        sums[y, x, colour] += mosaic[row, column]
                        counts[y, x, colour] += 1
    return np.divide(sums, counts)[1:-1, 1:-1]


def _reaches(pattern: str, y: int, x: int, below: int, right: int) -> bool:
    """Whether the pixel at (y, x) uses the neighbour that stands at (-below, -right) from it."""
    here = pattern[y % 2 * 2 + x % 2]
    there = pattern[(y - below) % 2 * 2 + (x - right) % 2]
    is_itself = below == right == 0
    return is_itself or here != there  # green between green is itself, not the average of its diagonals


def scene(dtype: type[Any], height: int = 96, width: int = 128) -> Array:
    """Smooth colours with some edges, different in each channel."""
    y, x = np.mgrid[0:height, 0:width].astype(float)
    red = 0.5 + 0.4 * np.sin(x / 9.0) * np.cos(y / 13.0)
    green = 0.3 + 0.3 * (np.hypot(x - width / 2, y - height / 2) < 30)
    blue = 0.15 + 0.1 * np.cos((x + y) / 11.0)
    colours: Array = np.rint(np.stack([red, green, blue], -1) * np.iinfo(dtype).max).astype(dtype)
    return colours


def psnr(result: Array, truth: Array, border: int = 2) -> float:
    """Peak signal-to-noise ratio in dB, a border left out, both scaled to 1."""
    cut = np.s_[border:-border, border:-border]
    error = result[cut] / np.iinfo(result.dtype).max - truth[cut] / np.iinfo(truth.dtype).max
    return float(-10 * np.log10(np.mean(error**2)))


def message(mosaic: Array, pattern: str) -> RawImage:
    """Put a mosaic into an image message."""
    height, width = mosaic.shape
    bits = 8 * mosaic.itemsize
    encoding = f"bayer_{pattern}{bits}"
    little = mosaic.astype(mosaic.dtype.newbyteorder("<"))
    return RawImage(encoding, height, width, width * mosaic.itemsize, is_bigendian=False, data=little.tobytes())


@pytest.mark.parametrize(("pattern", "dtype"), [(p, d) for p in PATTERNS for d in (np.uint8, np.uint16)])
def test_bilinear_is_the_textbook(pattern: str, dtype: type[Any]) -> None:
    """Each interior pixel is the mean of its neighbours, within the rounding of an integer."""
    mosaic = np.random.default_rng(1).integers(0, np.iinfo(dtype).max, (18, 22), dtype, endpoint=True)
    result = demosaic(mosaic, pattern)
    assert result.dtype == dtype
    assert np.abs(result[1:-1, 1:-1] - bilinear(mosaic, pattern)).max() <= 0.5


@pytest.mark.parametrize(("method", "pattern", "dtype"), ALL)
def test_constant_colour_is_exact(method: Demosaic, pattern: str, dtype: type[Any]) -> None:
    """A mosaic of one colour gives that colour at every pixel, the border included."""
    colour = np.array([200, 100, 50], dtype)
    if dtype is np.uint16:
        colour *= 257  # 16 bits that 8 bits can express, which is all that VNG keeps
    result = demosaic(mosaic_of(np.full((16, 20, 3), colour, dtype), pattern), pattern, method)
    assert result.dtype == dtype
    assert np.array_equal(result, np.broadcast_to(colour, (16, 20, 3)))


@pytest.mark.parametrize(("method", "pattern", "dtype"), ALL)
def test_right_pattern_is_nearest_to_the_truth(method: Demosaic, pattern: str, dtype: type[Any]) -> None:
    """Read with its own pattern, a mosaic comes nearest to what was sampled, and near."""
    truth = scene(dtype)
    mosaic = mosaic_of(truth, pattern)
    found = {each: psnr(demosaic(mosaic, each, method), truth) for each in PATTERNS}
    assert max(found, key=lambda each: found[each]) == pattern
    assert found[pattern] > 27.0
    assert all(found[pattern] > found[each] + 6.0 for each in PATTERNS if each != pattern)


def test_methods_differ() -> None:
    """The three methods are really three."""
    mosaic = mosaic_of(scene(np.uint8), "rggb")
    results = [demosaic(mosaic, "rggb", method) for method in Demosaic]
    assert not any(np.array_equal(results[a], results[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize("pattern", PATTERNS)
def test_vng_of_12_bits(pattern: str) -> None:
    """VNG of a 12-bit mosaic scales to its true white and back, and loses no more than 8 bits do."""
    truth = scene(np.uint16) >> 4
    result = demosaic(mosaic_of(truth, pattern), pattern, Demosaic.VNG, bit_depth=12)
    coarse = demosaic(mosaic_of((truth >> 4).astype(np.uint8), pattern), pattern, Demosaic.VNG)
    assert result.max() <= 4095
    assert np.abs(result[2:-2, 2:-2] / 4095 - coarse[2:-2, 2:-2] / 255).mean() < 1 / 255


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
@pytest.mark.parametrize("pattern", PATTERNS)
def test_message_to_rgb(pattern: str, dtype: type[Any]) -> None:
    """All eight Bayer encodings reach 8-bit RGB through a message, and stay a mosaic as an array."""
    truth = scene(dtype)
    mosaic = mosaic_of(truth, pattern)
    assert np.array_equal(to_array(message(mosaic, pattern)), mosaic)
    assert psnr(to_rgb(message(mosaic, pattern)), truth) > 27.0


@pytest.mark.parametrize("depth", [10, 12, 14, 16])
def test_bit_depth_of_a_mosaic(depth: int) -> None:
    """A mosaic with fewer true bits comes out as bright as one with all 16."""
    truth = scene(np.uint16)
    mosaic = mosaic_of(truth >> (16 - depth), "grbg")
    full = to_rgb(message(mosaic_of(truth, "grbg"), "grbg")).astype(int)
    assert np.abs(to_rgb(message(mosaic, "grbg"), bit_depth=depth) - full).max() <= 1


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (2, 9), (9, 2)])
def test_too_small(shape: tuple[int, int]) -> None:
    """OpenCV would give black without a word; this is refused."""
    with pytest.raises(BadImage, match=f"{shape[1]}x{shape[0]}"):
        demosaic(np.ones(shape, np.uint8), "rggb")


@pytest.mark.parametrize(
    ("mosaic", "pattern"),
    [
        (np.ones((8, 8), np.uint8), "rgbg"),
        (np.ones((8, 8, 3), np.uint8), "rggb"),
        (np.ones((8, 8), np.float32), "rggb"),
    ],
)
def test_not_a_mosaic(mosaic: Array, pattern: str) -> None:
    """Unknown patterns, colour images and other sample types are refused."""
    with pytest.raises(BadImage):
        demosaic(mosaic, pattern)


@pytest.mark.shared_data
class TestLighthouse:
    """A mosaic and its truth, from colour-demosaicing's own test resources."""

    @pytest.fixture
    def load(self) -> Callable[[str], Array]:
        """Read one of the two pictures, colours as RGB."""
        if not SHARED.is_dir():
            pytest.skip("../shared/data is absent")

        def read(name: str) -> Array:
            picture = cv2.imread(str(SHARED / "bayer" / name), cv2.IMREAD_UNCHANGED)
            assert picture is not None
            return picture if picture.ndim == 2 else picture[..., ::-1]

        return read

    def test_as_recorded(self, load: Callable[[str], Array]) -> None:
        """The mosaic in a bayer_rggb16 message reaches 27.0 dB; red and blue swapped, or a wrong phase, do not."""
        truth, mosaic = load("Lighthouse_u16.png"), load("Lighthouse_CFA_RGGB_u16.png")
        assert psnr(to_rgb(message(mosaic, "rggb")), truth) >= 27.0
        assert all(psnr(to_rgb(message(mosaic, wrong)), truth) < 22.0 for wrong in PATTERNS if wrong != "rggb")

    @pytest.mark.parametrize("bits", [8, 16])
    @pytest.mark.parametrize("pattern", PATTERNS)
    def test_every_pattern_from_the_truth(self, load: Callable[[str], Array], pattern: str, bits: int) -> None:
        """Mosaics in all patterns and both widths, sampled from the truth, reach 27.0 dB by every method."""
        truth = load("Lighthouse_u16.png")
        sampled = truth if bits == 16 else (truth >> 8).astype(np.uint8)
        for method in Demosaic:
            assert psnr(to_rgb(message(mosaic_of(sampled, pattern), pattern), method=method), truth) >= 27.0
