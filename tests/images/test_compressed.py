from __future__ import annotations

import struct
from typing import Any

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from mqinfer.images.compressed import CompressedFormat, parse_format, picture_size
from mqinfer.images.decode import to_array, to_rgb
from mqinfer.images.picture import CompressedImage
from mqinfer.images.pixel_format import demosaic
from mqinfer.protocol.errors import BadImage
from mqinfer.protocol.limits import Limits

Array = NDArray[Any]


def picture(suffix: str, array: Array) -> bytes:
    """Encode as OpenCV does: colours are BGR."""
    is_done, data = cv2.imencode(suffix, array, [cv2.IMWRITE_JPEG_QUALITY, 100] if suffix == ".jpg" else [])
    assert is_done
    return data.tobytes()


def colours(dtype: type[Any] = np.uint8, height: int = 24, width: int = 40) -> Array:
    """An RGB picture, red on the left and blue below."""
    y, x = np.mgrid[0 : 1 : height * 1j, 0 : 1 : width * 1j]
    top = np.iinfo(dtype).max
    return np.stack([(1 - x) * top, np.full_like(x, top / 4), y * top], -1).round().astype(dtype)


def bgr(rgb: Array) -> Array:
    """Swap red and blue."""
    return np.ascontiguousarray(rgb[..., ::-1])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jpeg", CompressedFormat("", is_depth=False, is_swapped=False)),
        ("png", CompressedFormat("", is_depth=False, is_swapped=False)),
        ("", CompressedFormat("", is_depth=False, is_swapped=False)),
        ("rgb8; jpeg compressed bgr8", CompressedFormat("rgb8", is_depth=False, is_swapped=False)),
        ("bgr8; jpeg compressed bgr8", CompressedFormat("bgr8", is_depth=False, is_swapped=False)),
        ("rgb8; jpeg compressed rgb8", CompressedFormat("rgb8", is_depth=False, is_swapped=True)),
        ("rgb8; jpeg compressed ", CompressedFormat("rgb8", is_depth=False, is_swapped=False)),
        ("bayer_rggb8; jpeg compressed ", CompressedFormat("bayer_rggb8", is_depth=False, is_swapped=False)),
        ("bayer_rggb8;jpeg compressed bgr8", CompressedFormat("bayer_rggb8", is_depth=False, is_swapped=False)),
        ("16UC1; compressedDepth png", CompressedFormat("16UC1", is_depth=True, is_swapped=False)),
        ("32FC1; compressedDepth", CompressedFormat("32FC1", is_depth=True, is_swapped=False)),
    ],
)
def test_format_strings(text: str, expected: CompressedFormat) -> None:
    """The strings that are met in practice."""
    assert parse_format(text) == expected


@given(st.text(max_size=40))
def test_any_format_string(text: str) -> None:
    """The string is free-form: nothing in it can break the picture's decoding."""
    assert parse_format(text) is not None


@pytest.mark.parametrize("text", ["png", "jpeg", "", "rgb8; png compressed bgr8", "what ever", "rgb8; jpeg compressed"])
def test_png_in_true_colours(text: str) -> None:
    """The bytes decide what it is, whatever the string says; a lossless picture comes back exactly."""
    image = CompressedImage(text, picture(".png", bgr(colours())))
    assert np.array_equal(to_rgb(image), colours())
    assert np.array_equal(to_array(image), colours())


@pytest.mark.parametrize("text", ["jpeg", "jpg", "rgb8; jpeg compressed bgr8", "bgr8; jpeg compressed bgr8"])
def test_jpeg(text: str) -> None:
    """A JPEG comes back near its colours, red as red."""
    found = to_rgb(CompressedImage(text, picture(".jpg", bgr(colours()))))
    assert np.abs(found.astype(int) - colours()).mean() < 4


def test_swapped_colours() -> None:
    """`compressed rgb8` says that the encoder was handed RGB as if it were BGR."""
    image = CompressedImage("rgb8; png compressed rgb8", picture(".png", colours()))
    assert np.array_equal(to_rgb(image), colours())


def test_grey_and_16_bits() -> None:
    """Grey stays one channel; 16-bit pictures keep their depth as arrays and honour the true depth as colours."""
    grey = colours(np.uint16)[..., 0] >> 4
    image = CompressedImage("mono16; png compressed ", picture(".png", grey))
    assert np.array_equal(to_array(image), grey)
    bright = to_rgb(image, bit_depth=12)
    assert (bright.min(), bright.max()) == (0, 255)
    colour = CompressedImage("rgb16; png compressed bgr16", picture(".png", bgr(colours(np.uint16))))
    assert np.array_equal(to_array(colour), colours(np.uint16))
    assert np.abs(to_rgb(colour).astype(int) - colours()).max() <= 1


def test_alpha_is_dropped() -> None:
    """A picture with alpha is RGBA as an array and RGB as an image."""
    rgba = np.dstack([bgr(colours()), np.full((24, 40), 77, np.uint8)])
    image = CompressedImage("png", picture(".png", rgba))
    assert to_array(image)[0, 0].tolist() == [*colours()[0, 0].tolist(), 77]
    assert np.array_equal(to_rgb(image), colours())


@pytest.mark.parametrize("pattern", ["rggb", "bggr", "gbrg", "grbg"])
@pytest.mark.parametrize("bits", [8, 16])
def test_compressed_mosaic(pattern: str, bits: int) -> None:
    """`bayer_rggb8; png compressed` is a mosaic and gets its colours."""
    mosaic = np.random.default_rng(3).integers(0, 1 << bits, (12, 16), np.uint8 if bits == 8 else np.uint16)
    image = CompressedImage(f"bayer_{pattern}{bits}; png compressed ", picture(".png", mosaic))
    assert np.array_equal(to_array(image), mosaic)
    wanted = demosaic(mosaic, pattern)
    assert np.array_equal(to_rgb(image), wanted if bits == 8 else np.rint(wanted / 257).astype(np.uint8))


def test_mosaic_that_the_sender_demosaiced() -> None:
    """`bayer_rggb8; jpeg compressed bgr8` is in colour already."""
    image = CompressedImage("bayer_rggb8; png compressed bgr8", picture(".png", bgr(colours())))
    assert np.array_equal(to_rgb(image), colours())


def test_depth_of_16_bits() -> None:
    """`16UC1; compressedDepth png`: twelve bytes, then the depth as it is."""
    depth = np.array([[0, 500], [1000, 65535]], np.uint16)
    data = struct.pack("<iff", 0, 0.0, 0.0) + picture(".png", depth)
    image = CompressedImage("16UC1; compressedDepth png", data)
    assert np.array_equal(to_array(image), depth)
    assert picture_size(image) == (2, 2)
    assert to_rgb(image)[..., 0].tolist() == [[0, 2], [4, 255]]


def test_depth_as_inverse() -> None:
    """`32FC1`: the PNG holds a / depth + b, as compressed_depth_image_transport quantises it; 0 is no reading."""
    far, near_z, depth = 10.0, 100.0, np.array([[0.5, 1.0, 2.5], [4.0, 8.0, 9.5]])
    a = near_z * (near_z + 1)
    b = 1 - a / far
    inverse = (a / depth + b).astype(np.uint16)
    inverse[0, 0] = 0
    data = struct.pack("<iff", 0, a, b) + picture(".png", inverse)
    found = to_array(CompressedImage("32FC1; compressedDepth png", data))
    assert found.dtype == np.float32
    assert np.isnan(found[0, 0])
    assert np.allclose(found.reshape(-1)[1:], depth.reshape(-1)[1:], rtol=0.01)


WHOLE_JPEG, WHOLE_PNG = picture(".jpg", colours()), picture(".png", colours())


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ("jpeg", b""),
        ("jpeg", WHOLE_JPEG[:10]),
        ("jpeg", WHOLE_JPEG[: len(WHOLE_JPEG) // 2]),
        ("jpeg", WHOLE_JPEG[:-2]),
        ("png", WHOLE_PNG[:10]),
        ("png", WHOLE_PNG[: len(WHOLE_PNG) // 2]),
        ("tiff", b"II*\x00 and so on and on"),
        ("jpeg", b"not a picture at all"),
        ("16UC1; compressedDepth png", bytes(7)),
        ("16UC1; compressedDepth png", bytes(12)),
        ("32FC1; compressedDepth png", bytes(12) + WHOLE_PNG),
        ("16UC1; compressedDepth rvl", bytes(12) + b"\x08\x00\x00\x00\x08\x00\x00\x00rvl"),
    ],
)
def test_damaged(text: str, data: bytes) -> None:
    """Cut off, foreign or contradictory: one BadImage with the string and the number of bytes."""
    with pytest.raises(BadImage, match=f"image of {len(data)} bytes|image of {max(len(data) - 12, 0)} bytes") as caught:
        to_rgb(CompressedImage(text, data))
    assert repr(text) in str(caught.value)


@given(st.integers(0, len(WHOLE_JPEG) - 1), st.binary(max_size=6), st.sampled_from([WHOLE_JPEG, WHOLE_PNG]))
def test_scratched(place: int, scratch: bytes, whole: bytes) -> None:
    """Whatever bytes are overwritten, there is a picture of the size in the header or a BadImage."""
    data = whole[:place] + scratch + whole[place + len(scratch) :]
    image = CompressedImage("jpeg", data)
    try:
        rgb = to_rgb(image)
    except BadImage:
        return
    assert rgb.shape[1::-1] == picture_size(image)


def test_pixels_are_bounded_before_decoding() -> None:
    """A small file that claims many pixels is refused by its header."""
    image = CompressedImage("png", picture(".png", colours()))
    with pytest.raises(BadImage, match="40x24 pixels; at most 959"):
        to_rgb(image, limits=Limits(image_pixels=959))
    huge = bytearray(WHOLE_JPEG)
    frame = huge.index(b"\xff\xc0")
    huge[frame + 5 : frame + 9] = b"\xff\xdc\xff\xdc"
    with pytest.raises(BadImage, match="65500x65500"):
        to_rgb(CompressedImage("jpeg", bytes(huge)))
