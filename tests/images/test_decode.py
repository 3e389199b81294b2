from __future__ import annotations

import math
import struct
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mqinfer.images.decode import to_array, to_rgb
from mqinfer.images.picture import RawImage
from mqinfer.images.pixel_format import parse_encoding
from mqinfer.protocol.errors import BadImage
from mqinfer.protocol.limits import Limits

Array = NDArray[Any]
Pixel = tuple[int, int, int]

LIGHT = {
    **{f"{order}{bits}": (order, bits) for order in ("rgb", "rgba", "bgr", "bgra") for bits in (8, 16)},
    "mono8": ("y", 8),
    "mono16": ("y", 16),
    "8UC1": ("y", 8),
    "8UC3": ("bgr", 8),
    "8UC4": ("bgra", 8),
    "16UC3": ("bgr", 16),
    "16UC4": ("bgra", 16),
}
MOSAICS = {f"bayer_{pattern}{bits}": bits for pattern in ("rggb", "bggr", "gbrg", "grbg") for bits in (8, 16)}
VALUES = {
    f"{depth}C{channels}": (code, channels)
    for depth, code in {"8S": "b", "16S": "h", "32S": "i", "32F": "f", "64F": "d"}.items()
    for channels in (1, 3, 4)
} | {"16UC1": ("H", 1)}
SAMPLES = {8: "B", 16: "H"}


@st.composite
def raw_images(draw: st.DrawFn, encoding: str, sample: str, channels: int, *, even: int = 1, rows: int = 1) -> RawImage:
    """Any image of an encoding: sizes, padding at the end of rows, byte order, bytes behind the last row.

    `even` makes the sizes multiples of it, `rows` is how many times the height stands below each other, in halves.
    """
    width = draw(st.integers(1, 6)) * even
    height = draw(st.integers(1, 4)) * even
    step = width * channels * struct.calcsize(sample) + draw(st.integers(0, 5))
    total = height * rows // (2 if rows > 1 else 1)
    data = draw(st.binary(min_size=step * total, max_size=step * total + 3))
    return RawImage(encoding, height, width, step, is_bigendian=draw(st.booleans()), data=data)


def sample_at(image: RawImage, sample: str, channels: int, *, row: int, column: int) -> tuple[Any, ...]:
    """Unpack one pixel, byte by byte as the header says."""
    order = ">" if image.is_bigendian else "<"
    offset = row * image.step + column * channels * struct.calcsize(sample)
    return struct.unpack_from(f"{order}{channels}{sample}", image.data, offset)


def pixelwise(image: RawImage, pixel: Callable[[int, int], Pixel]) -> Array:
    """Build an RGB image one pixel at a time."""
    return np.array([[pixel(y, x) for x in range(image.width)] for y in range(image.height)])


def scaled(value: int, depth: int) -> int:
    """One sample of `depth` bits on the scale of 8."""
    return min(255, round(Fraction(value * 255, (1 << depth) - 1)))


@given(st.data(), st.sampled_from(sorted(LIGHT)), st.sampled_from([None, 8, 10, 12, 14, 16]))
def test_light_is_pixel_for_pixel(data: st.DataObject, encoding: str, bit_depth: int | None) -> None:
    """Colours and greys of 8 and 16 bits, in any order, padding, byte order and true depth."""
    order, bits = LIGHT[encoding]
    image = data.draw(raw_images(encoding, SAMPLES[bits], len(order)))
    depth = 8 if bits == 8 else bit_depth or 16

    def pixel(row: int, column: int) -> Pixel:
        values = sample_at(image, SAMPLES[bits], len(order), row=row, column=column)
        by_letter = {letter: scaled(value, depth) for letter, value in zip(order, values, strict=True)}
        return tuple(by_letter.get(letter, by_letter.get("y", 0)) for letter in "rgb")  # type: ignore[return-value]

    assert np.array_equal(to_rgb(image, bit_depth=bit_depth), pixelwise(image, pixel))


@given(st.data(), st.sampled_from(sorted({*LIGHT, *MOSAICS, *VALUES, "8UC2", "16SC7", "64FC12"})))
def test_array_is_sample_for_sample(data: st.DataObject, encoding: str) -> None:
    """`to_array` keeps type, depth and channel order, in native byte order."""
    pixels = parse_encoding(encoding)
    code = {"u1": "B", "u2": "H", "i1": "b", "i2": "h", "i4": "i", "f4": "f", "f8": "d"}[pixels.sample]
    image = data.draw(raw_images(encoding, code, pixels.channels))
    array = to_array(image)
    assert array.dtype == np.dtype(code)
    assert array.shape[:2] == (image.height, image.width)
    assert array.ndim == (2 if pixels.channels == 1 else 3)
    for row in range(image.height):
        for column in range(image.width):
            wanted = sample_at(image, code, pixels.channels, row=row, column=column)
            assert np.array_equal(np.atleast_1d(array[row, column]), np.array(wanted, code), equal_nan=code in "fd")


@given(st.data(), st.sampled_from(sorted(VALUES)))
def test_values_span_their_own_range(data: st.DataObject, encoding: str) -> None:
    """Depth, signed and floating-point images are stretched between their finite extremes; the rest is black."""
    code, channels = VALUES[encoding]
    image = data.draw(raw_images(encoding, code, channels))
    values = [
        [sample_at(image, code, channels, row=y, column=x) for x in range(image.width)] for y in range(image.height)
    ]
    finite = [Fraction(value) for row in values for pixel in row for value in pixel if math.isfinite(value)]
    low, high = min(finite, default=Fraction(0)), max(finite, default=Fraction(0))

    def grey(value: float) -> int:
        is_black = not math.isfinite(value) or high == low
        return 0 if is_black else round((Fraction(value) - low) / (high - low) * 255)

    def pixel(row: int, column: int) -> Pixel:
        found = [grey(value) for value in values[row][column]]
        return (found[0],) * 3 if channels == 1 else (found[2], found[1], found[0])

    assert np.abs(to_rgb(image) - pixelwise(image, pixel)).max() <= 1


def bt601(y: int, u: int, v: int) -> Pixel:
    """ITU-R BT.601, video range."""
    luma, blue, red = 255 / 219 * (max(y, 16) - 16), (u - 128) * 255 / 224, (v - 128) * 255 / 224
    rgb = luma + 1.402 * red, luma - 0.344136 * blue - 0.714136 * red, luma + 1.772 * blue
    return tuple(round(min(255.0, max(0.0, value))) for value in rgb)  # type: ignore[return-value]


@given(st.data(), st.sampled_from(["uyvy", "yuv422", "yuyv", "yuv422_yuy2"]))
def test_yuv422(data: st.DataObject, encoding: str) -> None:
    """Two pixels share U and V: U Y V Y, or Y U Y V."""
    image = data.draw(raw_images(encoding, "B", 2, even=2))
    luma, chroma = (1, 0) if encoding in ("uyvy", "yuv422") else (0, 1)

    def pixel(row: int, column: int) -> Pixel:
        pair = row * image.step + column // 2 * 4
        y = image.data[pair + luma + column % 2 * 2]
        return bt601(y, image.data[pair + chroma], image.data[pair + chroma + 2])

    assert np.abs(to_rgb(image) - pixelwise(image, pixel)).max() <= 1


@given(st.data())
def test_nv21(data: st.DataObject) -> None:
    """Luma, then V and U in turn at half width and height."""
    image = data.draw(raw_images("nv21", "B", 1, even=2, rows=3))

    def pixel(row: int, column: int) -> Pixel:
        chroma = (image.height + row // 2) * image.step + column // 2 * 2
        y = image.data[row * image.step + column]
        return bt601(y, image.data[chroma + 1], image.data[chroma])

    assert np.abs(to_rgb(image) - pixelwise(image, pixel)).max() <= 1
    assert to_array(image).shape == (image.height * 3 // 2, image.width)


@given(st.data())
def test_nv24(data: st.DataObject) -> None:
    """Luma, then U and V in turn at full width and height, in rows of twice the step."""
    image = data.draw(raw_images("nv24", "B", 1, rows=6))

    def pixel(row: int, column: int) -> Pixel:
        chroma = (image.height + row * 2) * image.step + column * 2
        return bt601(image.data[row * image.step + column], image.data[chroma], image.data[chroma + 1])

    assert np.abs(to_rgb(image) - pixelwise(image, pixel)).max() <= 1


def test_plain_image_is_a_view() -> None:
    """Nothing is copied where the bytes can stay: rgb8 without padding is the message's own memory."""
    data = bytes(range(36))
    image = RawImage("rgb8", 3, 4, 12, is_bigendian=True, data=data)
    for array in (to_array(image), to_rgb(image)):
        assert np.shares_memory(array, np.frombuffer(data, np.uint8))


def test_invalid_depth_readings() -> None:
    """NaN and infinity neither spread nor count for the extremes."""
    values = np.array([[np.nan, 1.0, 3.0], [np.inf, -np.inf, 2.0]], "<f4")
    rgb = to_rgb(RawImage("32FC1", 2, 3, 12, is_bigendian=False, data=values.tobytes()))
    assert rgb[..., 0].tolist() == [[0, 0, 255], [0, 0, 128]]
    nothing = RawImage("32FC1", 1, 2, 8, is_bigendian=False, data=np.full(2, np.nan, "<f4").tobytes())
    assert not to_rgb(nothing).any()


@pytest.mark.parametrize("encoding", ["", "rgb", "RGB8", "bayer_rgbg8", "8UC0", "12UC1", "8UC1000", "h264", "rgb8 "])
def test_unknown_encoding(encoding: str) -> None:
    """An unknown name is repeated, and the known ones are listed."""
    with pytest.raises(BadImage, match=r"is unknown; expected one of rgb8, .*bayer_rggb8") as caught:
        to_rgb(RawImage(encoding, 2, 2, 6, is_bigendian=False, data=bytes(12)))
    assert repr(encoding) in str(caught.value)


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (("rgb8", 2, 4, 12, 23), ["rgb8", "4x2", "step 12", "23 bytes", "24"]),
        (("rgb8", 2, 4, 11, 24), ["4x2", "step 11", "12 bytes"]),
        (("mono8", 0, 4, 4, 0), ["4x0", "positive"]),
        (("mono8", 4, 0, 0, 0), ["0x4", "positive"]),
        (("mono16", 1, 2**31, 2**32, 16), [str(2**31), "limit"]),
        (("mono8", 2**16, 2**16, 2**16, 16), ["65536x65536", "limit"]),
        (("mono8", 1, 4, 2**32, 16), ["16 bytes", str(2**32)]),
        (("yuyv", 2, 3, 6, 12), ["3x2", "even"]),
        (("nv21", 3, 4, 4, 20), ["4x3", "even"]),
        (("nv21", 4, 4, 4, 23), ["23 bytes", "24"]),
        (("nv24", 4, 4, 4, 47), ["47 bytes", "48"]),
        (("bayer_rggb8", 2, 2, 2, 4), ["2x2", "3x3"]),
        (("8UC2", 1, 1, 2, 2), ["8UC2", "2 channels"]),
        (("32FC5", 1, 1, 20, 20), ["32FC5", "5 channels"]),
    ],
)
def test_contradictions(image: tuple[str, int, int, int, int], expected: list[str]) -> None:
    """Sizes that contradict each other are refused with all the numbers, before memory is taken."""
    encoding, height, width, step, size = image
    with pytest.raises(BadImage) as caught:
        to_rgb(RawImage(encoding, height, width, step, is_bigendian=False, data=bytes(size)))
    for part in expected:
        assert part in str(caught.value)


@pytest.mark.parametrize("depth", [0, 7, 17, -1])
def test_impossible_bit_depth(depth: int) -> None:
    """A depth outside 8 to 16 bits is refused."""
    with pytest.raises(BadImage, match=f"bit depth of {depth}"):
        to_rgb(RawImage("mono16", 1, 1, 2, is_bigendian=False, data=bytes(2)), bit_depth=depth)


def test_limit_can_be_lowered() -> None:
    """The bound on pixels is the caller's."""
    image = RawImage("mono8", 4, 4, 4, is_bigendian=False, data=bytes(16))
    assert to_rgb(image, limits=Limits(image_pixels=16)).shape == (4, 4, 3)
    with pytest.raises(BadImage, match="16 pixels are more than the limit of 15"):
        to_rgb(image, limits=Limits(image_pixels=15))


@pytest.mark.parametrize("depth", [8, 10, 12, 14, 16])
def test_every_value_of_16_bits(depth: int) -> None:
    """All 65536 samples scale like exact fractions, at every true depth."""
    data = np.arange(1 << 16, dtype="<u2").tobytes()
    found = to_rgb(RawImage("mono16", 256, 256, 512, is_bigendian=False, data=data), bit_depth=depth)[..., 0].reshape(
        -1
    )
    top = (1 << depth) - 1
    wanted = [min(255, (2 * value * 255 + top) // (2 * top)) for value in range(1 << 16)]
    assert found.tolist() == wanted
