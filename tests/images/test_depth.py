"""Depth pictures: which they are, and what a model in metres gets of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mqinfer.errors import BadImage, BadTensor
from mqinfer.images.decode import as_image, depth_name, to_array, to_depth
from mqinfer.images.placement import fit, place, to_model_input
from mqinfer.protocol.card import ColourOrder, ImageContract, Layout, Resize
from mqinfer.protocol.datatypes import Datatype

DEPTH = ImageContract("x", colour=ColourOrder.DEPTH)
EVERY = np.arange(1 << 16, dtype=np.uint16).reshape(256, 256)


@pytest.mark.parametrize(
    ("array", "encoding", "name"),
    [(EVERY, "16UC1", "16UC1"), (EVERY, "mono16", "16UC1"), (EVERY.astype(np.float32), "32FC1", "32FC1")],
)
def test_distances_come_out_as_recorded(array: npt.NDArray[Any], encoding: str, name: str) -> None:
    """Millimetres and metres keep their samples."""
    found = to_depth(as_image(array, encoding))
    np.testing.assert_array_equal(found, array)
    assert (found.dtype, depth_name(found)) == (array.dtype, name)


@pytest.mark.parametrize(
    ("encoding", "dtype", "channels"),
    [
        ("rgb8", "u1", 3),
        ("mono8", "u1", 1),
        ("8UC1", "u1", 1),
        ("16UC3", "u2", 3),
        ("16SC1", "i2", 1),
        ("64FC1", "f8", 1),
        ("32FC2", "f4", 2),
        ("bayer_rggb16", "u2", 1),
    ],
)
def test_what_is_no_depth_is_refused(encoding: str, dtype: str, channels: int) -> None:
    """By its name, with what is expected."""
    image = as_image(np.zeros((4, 4, channels), dtype), encoding)
    with pytest.raises(BadImage, match=rf"{encoding} is no depth picture; the model takes 16UC1 .* 32FC1 in metres"):
        to_depth(image)


@pytest.mark.parametrize("encoding", ["rgb8", "bgra16", "mono8", "bayer_gbrg16", "uyvy", "32FC1", "64FC4"])
def test_arrays_as_images_and_back(encoding: str) -> None:
    """`as_image` is the inverse of `to_array`, also of a strided array; other samples are refused."""
    shape, dtype = {
        "rgb8": ((4, 6, 3), "u1"),
        "bgra16": ((4, 6, 4), "u2"),
        "mono8": ((4, 6), "u1"),
        "bayer_gbrg16": ((4, 6), "u2"),
        "uyvy": ((4, 6, 2), "u1"),
        "32FC1": ((4, 6), "f4"),
        "64FC4": ((4, 6, 4), "f8"),
    }[encoding]
    array = np.random.default_rng(1).integers(0, 200, shape).astype(dtype)[:, ::-1]
    np.testing.assert_array_equal(to_array(as_image(array, encoding)), array)
    with pytest.raises(BadImage, match=r"expected .* a pixel, got"):
        as_image(array.astype("i4"), encoding)
    with pytest.raises(BadImage, match=r"expected .* a pixel, got"):
        as_image(np.zeros((4, 6, 5), dtype), encoding)


@pytest.mark.parametrize(
    ("layout", "shape"),
    [(Layout.NHWC, (1, 256, 256, 1)), (Layout.NCHW, (1, 1, 256, 256)), (Layout.NHW, (1, 256, 256))],
)
def test_every_millimetre_in_metres(layout: Layout, shape: tuple[int, ...]) -> None:
    """Each of the 65536 values is the float nearest to its thousandth, in each layout."""
    contract = ImageContract("x", colour=ColourOrder.DEPTH, layout=layout)
    seen = to_model_input(EVERY, "16UC1", contract, Datatype.FP32)
    assert (seen.shape, seen.dtype.name) == (shape, "float32")
    np.testing.assert_array_equal(seen.reshape(256, 256), (EVERY / 1000).astype(np.float32))


def test_a_model_in_millimetres_or_of_a_range() -> None:
    """`scale`, `mean` and `std` apply to metres; integers are rounded."""
    millimetres = ImageContract("x", colour=ColourOrder.DEPTH, scale=1000.0)
    np.testing.assert_array_equal(to_model_input(EVERY, "16UC1", millimetres, Datatype.UINT16)[0, :, :, 0], EVERY)
    ranged = ImageContract("x", colour=ColourOrder.DEPTH, mean=(10.0,), std=(4.0,))
    seen = to_model_input(EVERY, "16UC1", ranged, Datatype.FP32)[0, :, :, 0].astype(np.float64)
    np.testing.assert_allclose(seen, (EVERY / 1000 - 10) / 4, atol=1e-5)


def test_nothing_measured_is_0() -> None:
    """NaN and both infinities of metres, as the 0 of millimetres; the recorded array stays as it is."""
    metres = np.array([[1.5, np.nan], [np.inf, -np.inf]], np.float32)
    metres.flags.writeable = False
    seen = to_model_input(metres, "32FC1", DEPTH, Datatype.FP32)
    np.testing.assert_array_equal(seen[0, :, :, 0], [[1.5, 0], [0, 0]])


@pytest.mark.parametrize("dtype", [np.uint16, np.float32])
@pytest.mark.parametrize("size", [(3, 2), (40, 31), (7, 5)])
def test_resizing_mixes_no_distances(dtype: type, size: tuple[int, int]) -> None:
    """Each pixel is that of the recorded picture whose centre is nearest, so no distance is made up."""
    recorded: npt.NDArray[Any] = np.random.default_rng(2).permutation(13 * 17).reshape(13, 17).astype(dtype)
    columns, rows = (
        ((np.arange(side) + 0.5) * whole / side).astype(int) for side, whole in zip(size, (17, 13), strict=True)
    )
    np.testing.assert_array_equal(fit(recorded, *size), recorded[rows[:, None], columns])


def test_margins_of_a_letterbox_are_not_measured() -> None:
    """0 rather than a grey level."""
    contract = ImageContract("x", 4, 4, ColourOrder.DEPTH, resize=Resize.LETTERBOX)
    placed = place(np.full((4, 8), 700, np.uint16), contract)
    np.testing.assert_array_equal(placed, [[0] * 4, [700] * 4, [700] * 4, [0] * 4])
    assert placed.dtype == np.uint16


@pytest.mark.parametrize(
    ("array", "encoding"),
    [
        (np.zeros((4, 4, 3), np.uint8), "rgb8"),
        (np.zeros((4, 4), np.float32), "16UC1"),
        (np.zeros((4, 4), np.uint16), "32FC1"),
        (np.zeros((4, 4, 2), np.uint16), "16UC1"),
        (np.zeros((0, 4), np.uint16), "16UC1"),
    ],
)
def test_a_model_of_depth_takes_nothing_else(array: npt.NDArray[Any], encoding: str) -> None:
    """A typed error for other encodings, samples and axes."""
    with pytest.raises(BadTensor, match="depth picture"):
        to_model_input(array, encoding, DEPTH, Datatype.FP32)
