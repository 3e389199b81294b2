"""The way from the model's picture back to the frame."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.images.placement import Placement, Resize

SIDES = st.tuples(st.integers(1, 4000), st.integers(1, 4000))


def test_letterbox() -> None:
    """A wide frame gets a margin above and below."""
    assert Placement.of((1280, 720), (640, 640), Resize.LETTERBOX) == Placement(
        (1280, 720), (640, 640), 0, 140, 640, 360
    )


@pytest.mark.parametrize("resize", Resize)
@given(frame=SIDES, picture=SIDES)
def test_the_rectangle_lies_in_the_picture_and_maps_to_the_whole_frame(
    frame: tuple[int, int], picture: tuple[int, int], resize: Resize
) -> None:
    """Whatever the sizes."""
    place = Placement.of(frame, picture, resize)
    right, bottom = place.left + place.width, place.top + place.height
    assert 0 <= place.left < right <= picture[0]
    assert 0 <= place.top < bottom <= picture[1]
    back = place.boxes_to_frame(np.array([[place.left, place.top, right, bottom]], np.float32))
    np.testing.assert_allclose(back, [[0, 0, *frame]])


@pytest.mark.parametrize("resize", Resize)
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
