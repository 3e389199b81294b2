"""The way from the model's picture back to the frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.images.placement import UNKNOWN, Placement, Resize, to_model_input
from mqinfer.protocol.card import ImageContract
from mqinfer.protocol.datatypes import Datatype
from mqinfer.protocol.errors import LimitExceeded

SIDES = st.tuples(st.integers(1, 4000), st.integers(1, 4000))


def test_letterbox() -> None:
    """A wide frame gets a margin above and below."""
    assert Placement.of((1280, 720), (640, 640), Resize.LETTERBOX) == Placement(
        (1280, 720), (640, 640), 0, 140, 640, 360
    )


@pytest.mark.parametrize("resize", Resize)
@pytest.mark.parametrize(("width", "height"), [(1 << 26, None), (None, 1 << 24)])
def test_a_card_with_one_huge_side(width: int | None, height: int | None, resize: Resize) -> None:
    """The other side is the frame's: no memory is taken for what no receiver accepts."""
    contract = ImageContract("x", width, height, resize=resize)
    with pytest.raises(LimitExceeded, match="pixels; at most 67108864 are sent"):
        Placement.in_model(contract, 96, 64)
    with pytest.raises(LimitExceeded, match="pixels; at most 67108864 are sent"):
        to_model_input(np.zeros((64, 96, 3), np.uint8), "rgb8", contract, Datatype.UINT8)


@pytest.mark.parametrize("resize", Resize)
@given(frame=SIDES, picture=SIDES)
def test_the_rectangle_lies_in_the_picture_and_maps_to_the_region(
    frame: tuple[int, int], picture: tuple[int, int], resize: Resize
) -> None:
    """Whatever the sizes; the region is the whole frame but for a crop."""
    place = Placement.of(frame, picture, resize)
    right, bottom = place.left + place.width, place.top + place.height
    assert 0 <= place.left < right <= picture[0]
    assert 0 <= place.top < bottom <= picture[1]
    back = place.boxes_to_frame(np.array([[place.left, place.top, right, bottom]], np.float32))
    x, y, width, height = place.region or (0, 0, *frame)
    assert place.region is None or (resize is Resize.CROP and place.region != (0, 0, *frame))
    np.testing.assert_allclose(back, [[x, y, x + width, y + height]])


@given(frame=SIDES, picture=SIDES)
def test_a_crop_is_the_largest_centred_part_of_the_pictures_proportions(
    frame: tuple[int, int], picture: tuple[int, int]
) -> None:
    """One side is whole, the other one is cut off alike on both ends, to the pixel."""
    place = Placement.of(frame, picture, Resize.CROP)
    x, y, width, height = place.region or (0, 0, *frame)
    assert (place.left, place.top, place.width, place.height) == (0, 0, *picture)
    assert width == frame[0] or height == frame[1]
    assert x == (frame[0] - width) // 2
    assert y == (frame[1] - height) // 2
    if min(width, height) > 1:
        assert abs(width * picture[1] - height * picture[0]) <= max(picture)


@given(data=st.data(), frame=SIDES, picture=SIDES, resize=st.sampled_from(Resize))
def test_boxes_of_a_region_come_back_where_they_were(
    data: st.DataObject, frame: tuple[int, int], picture: tuple[int, int], resize: Resize
) -> None:
    """A box of the frame, put into the picture by hand, is the same box again, in whatever region it lies."""
    (x, width), (y, height) = (data.draw(inside(side)) for side in frame)
    place = Placement.of(frame, picture, resize, (x, y, width, height))
    left, top, across, down = place.region or (0, 0, *frame)
    assert x <= left
    assert y <= top
    assert left + across <= x + width
    assert top + down <= y + height
    sides = [data.draw(st.integers(first, first + size)) for first, size in ((left, across), (top, down)) * 2]
    box = np.array(sides, float)
    factors = np.array([place.width / across, place.height / down] * 2)
    drawn = (box - [left, top, left, top]) * factors + [place.left, place.top, place.left, place.top]
    np.testing.assert_allclose(place.boxes_to_frame(drawn[np.newaxis]), [box], atol=1e-6)


@st.composite
def inside(draw: st.DrawFn, side: int) -> tuple[int, int]:
    """Draw the first pixel and the length of a part of a side."""
    first = draw(st.integers(0, side - 1))
    return first, draw(st.integers(1, side - first))


def test_pixels_that_the_model_did_not_see_have_no_class() -> None:
    """Outside the region the mask has a value that no class has, or the one that the caller asks for."""
    place = Placement.of((100, 60), (20, 20), Resize.CROP, (10, 5, 80, 40))
    assert place.region == (30, 5, 40, 40)
    assert not place.is_whole
    mask = np.full((20, 20), 3, np.uint8)
    expected = np.full((60, 100), UNKNOWN)
    expected[5:45, 30:70] = 3
    np.testing.assert_array_equal(place.mask_to_frame(mask), expected)
    assert not place.mask_to_frame(mask, 0)[0].any()


@pytest.mark.parametrize("resize", [Resize.STRETCH, Resize.LETTERBOX])
def test_a_mask_of_half_the_size_comes_back_in_frame_size(resize: Resize) -> None:
    """The left half of the frame is class 1, and the margins belong to no pixel of the frame."""
    place = Placement.of((200, 100), (80, 80), resize)
    mask = np.full((40, 40), 9, np.uint8)
    top, bottom = place.top // 2, (place.top + place.height) // 2
    mask[top:bottom, :20], mask[top:bottom, 20:] = 1, 2
    mapped = place.mask_to_frame(mask)
    assert mapped.shape == (100, 200)
    assert (mapped[:, :100] == 1).all()
    assert (mapped[:, 100:] == 2).all()
