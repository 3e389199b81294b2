import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mqinfer.answers.outputs import class_shares, find_mask
from mqinfer.answers.words import describe_outputs
from mqinfer.edge_agent.sinks.drawing.overlay import MINIMUM_WIDTH, add_strip, colour_mask, draw_overlay, palette
from mqinfer.protocol.card import ClassInfo

CLASSES = (ClassInfo("road", (128, 64, 128)), ClassInfo("sky", (70, 130, 180)))
PICTURES = hnp.arrays(np.uint8, st.tuples(st.integers(2, 24), st.integers(2, 24), st.just(3)))


@pytest.mark.parametrize("shape", [(4, 6), (1, 4, 6), (1, 4, 6, 1), (1, 1, 4, 6)])
@pytest.mark.parametrize("dtype", [np.uint8, np.int32, np.int64, np.bool_])
def test_a_mask_is_found_in_every_usual_shape(shape: tuple[int, ...], dtype: type[np.generic]) -> None:
    """Axes of length 1 don't matter, nor the integer type."""
    values = (np.arange(24).reshape(shape) % 2).astype(dtype)
    found = find_mask({"scores": np.zeros((1, 2), np.float32), "mask": values})
    assert found is not None
    name, mask = found
    assert (name, mask.shape, mask.dtype) == ("mask", (4, 6), np.dtype(np.uint8))
    assert np.array_equal(mask, values.reshape(4, 6))


@pytest.mark.parametrize(
    "output",
    [
        np.zeros((1, 4, 6), np.float32),
        np.zeros((1, 10), np.int64),
        np.full((4, 6), 256),
        np.full((4, 6), -1),
        np.zeros((0, 6), np.uint8),
        np.zeros((2, 4, 6), np.uint8),
    ],
)
def test_other_outputs_are_no_masks(output: np.ndarray) -> None:
    """Floats, vectors, numbers outside 0 to 255, empty arrays and batches are left alone."""
    assert find_mask({"output": output}) is None


def test_boxes_in_whole_pixels_are_no_mask() -> None:
    """Their four columns are corners, whatever their datatype."""
    boxes = np.array([[1, 2, 3, 4], [5, 6, 7, 8]], np.int32)
    assert find_mask({"boxes": boxes, "scores": np.ones(2, np.float32)}) is None


@given(PICTURES, st.integers(0, 1))
def test_overlay_is_the_mean_of_picture_and_colour(picture: np.ndarray, number: int) -> None:
    """Each pixel is half itself and half its class's colour, to within rounding; the input stays."""
    before = picture.copy()
    mask = np.full(picture.shape[:2], number, np.uint8)
    blended = draw_overlay(picture, mask, CLASSES)
    expected = (picture.astype(float) + CLASSES[number].colour) / 2
    assert np.abs(blended - expected).max() <= 0.5
    assert np.array_equal(picture, before)


def test_a_smaller_mask_is_stretched_without_new_classes() -> None:
    """Nearest neighbour: a half-size mask covers the picture, and no colour is mixed between classes."""
    mask = np.array([[0, 1], [1, 0]], np.uint8)
    picture = colour_mask(np.kron(mask, np.ones((2, 2), np.uint8)), CLASSES)
    assert np.array_equal(draw_overlay(picture, mask, CLASSES), picture)


def test_palette_has_a_colour_for_every_number() -> None:
    """The card's colours come first; the numbers after them are all different."""
    colours = palette(CLASSES)
    assert colours.shape == (256, 3)
    assert [tuple(colours[number].tolist()) for number in (0, 1)] == [info.colour for info in CLASSES]
    assert len({tuple(colour) for colour in colours[2:34].tolist()}) == 32


def test_class_0_is_black_where_its_name_means_a_background() -> None:
    """Black is the default of class 0, and would hide things; other numbers keep a black of their own."""
    for name in ("background", "__background__", "Unlabeled", "unlabelled", "void"):
        assert palette([ClassInfo(name, (0, 0, 0))])[0].tolist() == [0, 0, 0]
    for name in ("road", "background building"):
        assert palette([ClassInfo(name, (0, 0, 0))])[0].tolist() == [242, 85, 85]
    assert palette([*CLASSES, ClassInfo("ego vehicle", (0, 0, 0))])[2].tolist() == [0, 0, 0]


@given(st.integers(1, 900), st.integers(1, 40), st.integers(0, 30))
def test_strip_keeps_the_picture_and_has_even_sides(width: int, height: int, count: int) -> None:
    """The picture stands untouched in the corner; videos need even sides; size doesn't depend on the text."""
    picture = np.full((height, width, 3), 77, np.uint8)
    classes = [ClassInfo(f"class {number}", (number, 2, 3)) for number in range(count)]
    canvas = add_strip(picture, "short", classes)
    assert np.array_equal(canvas[:height, :width], picture)
    assert canvas.shape[0] % 2 == canvas.shape[1] % 2 == 0
    assert canvas.shape[1] >= MINIMUM_WIDTH
    assert canvas.shape == add_strip(picture, "long " * 200, classes).shape


def test_legend_shows_every_class_in_its_colour() -> None:
    """Each class's exact colour occurs below the picture."""
    canvas = add_strip(np.zeros((10, 700, 3), np.uint8), "caption", CLASSES)
    colours = {tuple(colour) for colour in canvas[10:].reshape(-1, 3).tolist()}
    assert {info.colour for info in CLASSES} <= colours


def test_class_shares_name_listed_and_unlisted_classes() -> None:
    """Shares add up to 1; a class that does not occur is 0; an unlisted number names itself."""
    mask = np.array([[0, 0], [0, 7]], np.uint8)
    assert class_shares(mask, CLASSES) == {"road": 0.75, "sky": 0.0, "7": 0.25}
    many = tuple(ClassInfo(str(number), (0, 0, 0)) for number in range(300))
    assert list(class_shares(mask, many)) == [str(number) for number in range(300)]


@pytest.mark.parametrize("size", [(512, 512), (361, 777)])
def test_class_shares_of_large_masks_count_each_pixel(size: tuple[int, int]) -> None:
    """They are those of a plain count, also of an odd number of pixels, and of a part that the model saw."""
    mask = np.random.default_rng(5).integers(0, 9, size).astype(np.uint8)
    mask[-1, -1] = 200
    for seen in (None, mask != 3):
        shares = class_shares(mask, (), seen)
        assert shares.pop("unknown", 0.0) == (
            0.0 if seen is None else round(np.count_nonzero(mask == 3) / mask.size, 6)
        )
        numbers, counts = np.unique(mask if seen is None else mask[seen], return_counts=True)
        assert shares == {
            str(number): round(int(count) / mask.size, 6) for number, count in zip(numbers, counts, strict=True)
        }


def test_small_outputs_are_written_out_as_json_has_them() -> None:
    """Numbers that JSON lacks become protobuf's words, bytes become text, big outputs only their shape and hash."""
    outputs = {
        "scores": np.array([[0.5, np.nan, np.inf, -np.inf]], np.float32),
        "names": np.array([b"car", b"\xff"], object),
        "big": np.zeros((8, 3, 4), np.float16),
    }
    described = describe_outputs(outputs, ())
    hashes = [entry.pop("hash") for entry in described.values()]
    assert len(set(hashes)) == 3
    assert described == {
        "scores": {"shape": [1, 4], "datatype": "FP32", "values": [0.5, "NaN", "Infinity", "-Infinity"]},
        "names": {"shape": [2], "datatype": "BYTES", "values": ["car", "\ufffd"]},
        "big": {"shape": [8, 3, 4], "datatype": "FP16", "least": 0.0, "greatest": 0.0},
    }
