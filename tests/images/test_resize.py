"""Conversion of pixels to model inputs, against plain NumPy written out axis by axis."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mqinfer.errors import BadTensor
from mqinfer.images.placement import fit, place, to_model_input
from mqinfer.protocol.card import ColourOrder, ImageContract, Layout, Resize
from mqinfer.protocol.datatypes import Datatype, dtype_of

Pixels = npt.NDArray[np.uint8]

COLOURS = {"rgb8": ColourOrder.RGB, "bgr8": ColourOrder.BGR, "mono8": ColourOrder.MONO}


def picture(encoding: str, height: int, width: int, seed: int = 0) -> Pixels:
    """Make noise of an encoding's shape."""
    shape = (height, width) if encoding == "mono8" else (height, width, 3)
    return np.random.default_rng(seed).integers(0, 256, shape, np.uint8)


def reference(pixels: Pixels, encoding: str, contract: ImageContract) -> npt.NDArray[np.float64]:
    """Compute what a model should see, slowly and in double precision; greys must not need a conversion."""
    planes = {"rgb8": "rgb", "bgr8": "bgr", "mono8": "g"}[encoding]
    requested = {ColourOrder.RGB: "rgb", ColourOrder.BGR: "bgr", ColourOrder.MONO: "g"}[contract.colour]
    cube = pixels if pixels.ndim == 3 else pixels[:, :, None]
    channels = []
    for index, letter in enumerate(requested):
        plane = cube[:, :, 0 if planes == "g" else planes.index(letter)].astype(np.float64)
        mean, std = (each[index if len(each) > 1 else 0] for each in (contract.mean, contract.std))
        channels.append((plane * contract.scale - mean) / std)
    stacked: npt.NDArray[np.float64] = np.stack(channels, 0)
    if contract.layout is Layout.NHW:
        return stacked  # its one channel stands where the batch axis goes
    return stacked[None] if contract.layout is Layout.NCHW else np.moveaxis(stacked, 0, 2)[None]


@given(
    encoding=st.sampled_from(sorted(COLOURS)),
    colour=st.sampled_from([ColourOrder.RGB, ColourOrder.BGR, ColourOrder.MONO]),
    layout=st.sampled_from(list(Layout)),
    datatype=st.sampled_from([Datatype.UINT8, Datatype.FP16, Datatype.FP32, Datatype.FP64, Datatype.INT32]),
    size=st.tuples(st.integers(1, 9), st.integers(1, 9)),
    scaling=st.sampled_from(
        [(1.0, (0.0,), (1.0,)), (1 / 255, (0.5,), (0.5,)), (1.0, (1.0, 2.0, 3.0), (2.0, 4.0, 8.0))]
    ),
    strided=st.booleans(),
)
def test_against_numpy(
    *,
    encoding: str,
    colour: ColourOrder,
    layout: Layout,
    datatype: Datatype,
    size: tuple[int, int],
    scaling: Any,
    strided: bool,
) -> None:
    """Every colour order, layout, datatype and range, for contiguous and strided pictures."""
    scale, mean, std = scaling
    if colour is ColourOrder.MONO:
        encoding, mean, std = "mono8", mean[:1], std[:1]
    elif layout is Layout.NHW:
        layout = Layout.NHWC
    contract = ImageContract("x", None, None, colour, layout, scale, mean, std)
    pixels = picture(encoding, *size)
    if strided:
        pixels = np.repeat(pixels, 2, axis=1)[:, ::2]
    expected = reference(pixels, encoding, contract)
    array = to_model_input(pixels, encoding, contract, datatype)
    assert array.shape == expected.shape
    assert array.dtype == dtype_of(datatype)
    assert array.flags.c_contiguous
    if array.dtype.kind in "ui":
        expected = np.clip(np.rint(expected), 0 if array.dtype.kind == "u" else -(1 << 31), 255)
    tolerance = 2e-3 if datatype is Datatype.FP16 else 1e-5
    np.testing.assert_allclose(array.astype(np.float64), expected, rtol=tolerance, atol=tolerance)


def test_nothing_to_change_copies_nothing() -> None:
    """The commonest case on a worker, uint8 to uint8, is a view."""
    pixels = picture("rgb8", 6, 8)
    assert np.shares_memory(to_model_input(pixels, "rgb8", ImageContract("x", 8, 6), Datatype.UINT8), pixels)
    grey = picture("mono8", 6, 8)
    contract = ImageContract("x", 8, 6, ColourOrder.MONO, Layout.NCHW)
    for each in (grey, grey[:, :, None]):
        array = to_model_input(each, "mono8", contract, Datatype.UINT8)
        assert array.shape == (1, 1, 6, 8)
        assert np.shares_memory(array, grey)


def test_grey_from_colour() -> None:
    """Luma of ITU-R BT.601, from either order."""
    pixels = picture("rgb8", 5, 7)
    contract = ImageContract("x", colour=ColourOrder.MONO, layout=Layout.NHW)
    luma = pixels @ np.array([0.299, 0.587, 0.114])
    for encoding, array in (("rgb8", pixels), ("bgr8", pixels[:, :, ::-1])):
        grey = to_model_input(array, encoding, contract, Datatype.FP32)
        assert np.abs(grey[0].astype(float) - luma).max() <= 1


def test_shrinking_by_whole_numbers_averages() -> None:
    """Area interpolation of a half-sized picture is the mean of every 2x2 block."""
    pixels = picture("rgb8", 8, 12)
    blocks = pixels.reshape(4, 2, 6, 2, 3).mean((1, 3))
    assert np.abs(fit(pixels, 6, 4).astype(float) - blocks).max() <= 0.5
    array = to_model_input(pixels, "rgb8", ImageContract("x", 6, 4), Datatype.FP32)
    assert np.abs(array[0].astype(float) - blocks).max() <= 0.5


def test_growing_interpolates() -> None:
    """Linear: a ramp stays a ramp away from the borders; pictures without channels work too."""
    ramp = np.tile(np.arange(0, 160, 10, dtype=np.uint8), (4, 1))
    grown = fit(ramp, 32, 4).astype(float)
    assert grown.shape == (4, 32)
    assert np.allclose(np.diff(grown[:, 2:-2]), 5, atol=1)


def test_a_picture_that_fits_is_the_same_object() -> None:
    """No work where none is needed."""
    pixels = picture("rgb8", 4, 6)
    assert fit(pixels, 6, 4) is pixels


def test_only_one_side_is_fixed() -> None:
    """Where the model takes any height, the picture keeps its own."""
    array = to_model_input(picture("rgb8", 4, 6), "rgb8", ImageContract("x", width=3), Datatype.UINT8)
    assert array.shape == (1, 4, 3, 3)


@pytest.mark.parametrize(
    ("pixels", "encoding", "message"),
    [
        (picture("rgb8", 2, 2), "bayer_rggb8", "expected rgb8, bgr8, mono8"),
        (picture("rgb8", 2, 2), "mono8", r"must be UINT8 \[height, width\]; got uint8 \[2, 2, 3\]"),
        (picture("mono8", 2, 2), "rgb8", r"must be UINT8 \[height, width, 3\]"),
        (picture("rgb8", 2, 2).astype(np.uint16), "rgb8", "got uint16"),
        (np.zeros((0, 2, 3), np.uint8), "rgb8", r"\[0, 2, 3\]"),
    ],
)
def test_what_is_no_such_picture(pixels: Any, encoding: str, message: str) -> None:
    """The sender's mistake is reported before OpenCV gets the picture."""
    with pytest.raises(BadTensor, match=message):
        to_model_input(pixels, encoding, ImageContract("x", 8, 8), Datatype.UINT8)


def letterbox(width: int, height: int, fill: int = 114) -> ImageContract:
    """Make the contract of a model with margins."""
    return ImageContract("x", width, height, resize=Resize.LETTERBOX, fill=fill)


@pytest.mark.parametrize("encoding", COLOURS)
def test_a_letterbox_keeps_the_proportions(encoding: str) -> None:
    """A wide picture gets grey margins above and below, and is not distorted between them."""
    pixels = picture(encoding, 20, 40)
    found = place(pixels, letterbox(20, 20))
    np.testing.assert_array_equal(found[5:15], fit(pixels, 20, 10))
    assert found.shape[:2] == (20, 20)
    assert (found[:5] == 114).all()
    assert (found[15:] == 114).all()


@pytest.mark.parametrize("encoding", COLOURS)
def test_a_crop_cuts_off_two_sides(encoding: str) -> None:
    """The middle of a wide picture, and of a high one, is resized; nothing is distorted or framed."""
    contract = ImageContract("x", 10, 20, resize=Resize.CROP)
    wide, high = picture(encoding, 20, 41), picture(encoding, 201, 20)
    np.testing.assert_array_equal(place(wide, contract), wide[:, 15:25])
    np.testing.assert_array_equal(place(high, contract), fit(high[80:120], 10, 20))


def test_the_margins_are_scaled_like_the_picture() -> None:
    """Their grey level is one of the picture's."""
    made = to_model_input(picture("rgb8", 20, 40), "rgb8", replace(letterbox(20, 20, 51), scale=1 / 255), Datatype.FP32)
    assert np.unique(made[0, :5]).tolist() == [pytest.approx(0.2)]


@pytest.mark.parametrize("resize", Resize)
@given(st.integers(16, 700), st.integers(16, 700), st.floats(0.25, 1))
def test_a_smaller_copy_of_the_whole_picture_is_neither_framed_nor_cropped_again(
    resize: Resize, width: int, height: int, scale: float
) -> None:
    """A sender that lowers the size sends the whole model's picture; whatever the rounding of the sides."""
    small = picture("mono8", max(1, round(height * scale)), max(1, round(width * scale)))
    found = place(small, ImageContract("x", width, height, resize=resize))
    np.testing.assert_array_equal(found, fit(small, width, height))
