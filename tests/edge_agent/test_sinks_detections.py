from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mqinfer.answers.outputs import MOST_BOXES, DetectedBox, find_boxes, label
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.drawing.overlay import draw_boxes, draw_instances
from mqinfer.images.placement import Placement, Resize
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array

CLASSES = (ClassInfo("car", (10, 20, 200)), ClassInfo("sign", (250, 220, 30)))
BOXES = np.array([[1, 2, 11, 12], [4, 4, 8, 8], [0, 0, 2, 2]], np.float32)
SCORES = np.array([0.5, 0.9, 0.1], np.float32)
OUTPUTS: dict[str, Array] = {"boxes": BOXES, "scores": SCORES, "classes": np.array([0, 1, 7], np.int32)}


def test_boxes_are_found_the_best_first() -> None:
    """With a batch axis or without, padded or not, with classes or without."""
    best = DetectedBox((4, 4, 8, 8), float(np.float32(0.9)), 1)
    assert [each.number for each in find_boxes(OUTPUTS)] == [1, 0, 7]
    assert find_boxes(OUTPUTS)[0] == best
    batched = {name: array[None] for name, array in OUTPUTS.items()}
    assert find_boxes(batched) == find_boxes(OUTPUTS)
    assert len(find_boxes({**batched, "count": np.array([2], np.int32)})) == 2
    assert find_boxes({"boxes": BOXES, "scores": SCORES})[0].number is None
    for one in ({name: array[:1] for name, array in OUTPUTS.items()}, {n: a[None, :1] for n, a in OUTPUTS.items()}):
        assert find_boxes(one) == (DetectedBox((1, 2, 11, 12), 0.5, 0),)
    assert find_boxes({**OUTPUTS, "boxes": np.where(BOXES == 8, np.nan, BOXES)})[0].number == 0


@pytest.mark.parametrize(
    "outputs",
    [
        {},
        {"boxes": BOXES},
        {"boxes": BOXES, "scores": SCORES[:2]},
        {"boxes": BOXES[:, :3], "scores": SCORES},
        {"boxes": BOXES.astype(object), "scores": SCORES},
        {"boxes": BOXES, "scores": np.array([b"0.9:1"] * 3, object)},
        {"boxes": np.stack([BOXES, BOXES]), "scores": np.stack([SCORES, SCORES])},
        {"boxes": BOXES[:0], "scores": SCORES[:0]},
    ],
)
def test_other_outputs_are_no_boxes(outputs: dict[str, Array]) -> None:
    """Missing, of other shapes, text in the place of scores, several pictures, none at all."""
    assert find_boxes(outputs) == ()


def test_only_so_many_are_shown() -> None:
    """Raw candidates without a suppression don't drown everything."""
    many = {"boxes": np.zeros((2000, 4), np.float32), "scores": np.arange(2000, dtype=np.float32)}
    found = find_boxes(many)
    assert (len(found), found[0].score) == (MOST_BOXES, 1999)


def test_boxes_are_brought_back_to_the_recorded_frame() -> None:
    """Each axis by its own factor, and without the margins of a letterbox."""
    pixels = np.zeros((80, 240, 3), np.uint8)
    stretched = FrameView(pixels, Placement.of((240, 80), (60, 40)), OUTPUTS)
    assert stretched.answer.boxes[0] == DetectedBox((16, 8, 32, 16), float(np.float32(0.9)), 1, "1")
    letterbox = FrameView(pixels, Placement.of((240, 80), (60, 40), Resize.LETTERBOX), OUTPUTS)
    assert list(letterbox.answer.boxes[1].box) == [4, 0, 44, 8]
    assert len(FrameView(pixels, Placement.of((240, 80), (60, 40))).answer.boxes) == 0


def test_masks_are_brought_back_to_the_recorded_frame() -> None:
    """In the frame's size, whatever the output's own: each pixel is its nearest neighbour in the mask."""
    mask = np.arange(6, dtype=np.uint8).reshape(1, 2, 3)
    view = FrameView(np.zeros((80, 240, 3), np.uint8), Placement.of((240, 80), (60, 40)), {"mask": mask})
    assert view.answer.mask is not None
    assert np.array_equal(view.answer.mask, np.kron(mask[0], np.ones((40, 80), np.uint8)))


def test_boxes_that_are_turned_over_are_none() -> None:
    """Their right lies before their left, or their bottom over their top; a box without an area is one."""
    boxes = np.array([[9, 1, 2, 5], [1, 9, 5, 2], [1, 1, 1, 1], [1, 2, 3, 4]], np.float32)
    scores = np.array([0.9, 0.8, 0.7, 0.6], np.float32)
    assert [each.box for each in find_boxes({"boxes": boxes, "scores": scores})] == [(1, 1, 1, 1), (1, 2, 3, 4)]


@pytest.mark.parametrize(
    "shape", [(7, 1), (1, 7), (1, 7, 1), (1, 1, 7), (1, 7, 1, 1), (1, 1, 7, 1), (1, 1, 1, 7), (1, 1, 1)]
)
def test_masks_of_pictures_that_are_one_pixel_wide(shape: tuple[int, ...]) -> None:
    """Where the size of the picture is known, an axis of 1 is no reason against a mask."""
    mask = np.arange(np.prod(shape), dtype=np.uint8).reshape(shape)
    length = mask.size
    for picture in ((1, length), (length, 1)):
        view = FrameView(np.zeros((*picture[::-1], 3), np.uint8), Placement.of(picture, picture), {"mask": mask})
        assert view.answer.mask is not None
        assert np.array_equal(view.answer.mask, mask.reshape(picture[::-1]))
        assert "class_shares" in view.outputs_in_words["mask"]
        if length > 1:
            wider = replace(view, placement=Placement.of((8, 2), (8, 2)))
            assert wider.answer.mask is None


def test_no_class_of_a_detector_is_black() -> None:
    """The default colours are those of masks, whose first class is the background; other colours stay."""
    classes = (ClassInfo("person", (0, 0, 0)), ClassInfo("car", (128, 0, 0)))
    picture = np.zeros((200, 700, 3), np.uint8)
    drawn = draw_boxes(picture, (DetectedBox((50, 60, 150, 160), 0.9, 0),), classes)
    assert drawn[60, 100].max() > 200
    drawn = draw_boxes(picture, (DetectedBox((50, 60, 150, 160), 0.9, 1),), classes)
    assert tuple(drawn[60, 100]) == (128, 0, 0)
    outputs: dict[str, Array] = {
        "boxes": np.array([[50, 60, 150, 160]], np.float32),
        "scores": np.array([0.9], np.float32),
        "classes": np.array([0], np.int32),
        "masks": np.ones((1, 200, 700), np.uint8),
    }
    view = FrameView(picture, Placement.of((700, 200), (700, 200)), outputs, classes=classes)
    assert draw_instances(picture, view)[5, 5].max() > 100


def test_labels_name_class_and_score() -> None:
    """A number that the card doesn't list is its own name."""
    assert [label(each, CLASSES) for each in find_boxes(OUTPUTS)] == ["sign 0.90", "car 0.50", "7 0.10"]
    assert label(DetectedBox((0, 0, 1, 1), 0.25), CLASSES) == "0.25"


def test_boxes_are_drawn_in_their_classes_colours() -> None:
    """On the outline, not inside; the picture stays; boxes far outside do no harm."""
    picture = np.zeros((200, 200, 3), np.uint8)
    far = DetectedBox((-1e9, -1e9, 1e9, 1e9), 0.1, 1)
    drawn = draw_boxes(picture, (DetectedBox((50, 60, 150, 160), 0.9, 0), far), CLASSES)
    assert not picture.any()
    for row, column in ((60, 100), (159, 100), (100, 50), (100, 149)):
        assert tuple(drawn[row, column]) == CLASSES[0].colour
    assert not drawn[100:140, 80:120].any()
