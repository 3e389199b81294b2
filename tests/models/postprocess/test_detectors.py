"""The output forms of published detectors: each one's boxes are known to the pixel."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from mqinfer.models.postprocess.boxes import KeptBoxes
from mqinfer.models.repository.output_tables import Detection
from mqinfer.models.repository.tables import Place, table_of
from mqinfer.protocol.datatypes import Array, Datatype, datatype_of
from mqinfer.protocol.errors import BadTensor, ConfigError, ModelFailed
from mqinfer.protocol.types import TensorSpec

Floats = npt.NDArray[np.float32]
DETECTION = table_of(Detection)
SIZE = WIDTH, HEIGHT = 64, 48
CORNERS = np.array([[8, 4, 24, 20], [30, 10, 50, 40]], np.float32)
"""Two objects, in pixels of the picture: of class 1, and of class 0."""
CENTRES = np.array([[16, 12, 16, 16], [40, 25, 20, 30]], np.float32)
SCORES = np.array([[0.1, 0.9, 0.05], [0.8, 0.1, 0.1]], np.float32)
SIDES = np.array([64, 48, 64, 48], np.float32)
FRACTIONS: Floats = (CORNERS / SIDES).astype(np.float32)
CENTRE_FRACTIONS: Floats = (CENTRES / SIDES).astype(np.float32)


def step(
    text: str, outputs: Mapping[str, Array], labels: int = 3, size: tuple[int | None, int | None] = SIZE
) -> KeptBoxes:
    """Make the step of a table, for outputs of these shapes."""
    specs = [TensorSpec(name, datatype_of(array.dtype), array.shape) for name, array in outputs.items()]
    return KeptBoxes(DETECTION(tomllib.loads(text), Place(Path("model.toml"))), specs, labels, size)


def floats(array: Any) -> Floats:
    """Return an output as numbers."""
    return np.asarray(array, np.float32)


def padded(rows: Floats, count: int = 20) -> Floats:
    """Add candidates that are nothing."""
    return np.concatenate([rows, np.zeros((count, rows.shape[1]), np.float32)])


def joined(*parts: Any, count: int = 20) -> Floats:
    """Put numbers side by side, and add candidates that are nothing."""
    return padded(np.concatenate([np.asarray(each, np.float32).reshape(2, -1) for each in parts], axis=1), count)


def logits(probabilities: Floats) -> Floats:
    """Return what a sigmoid makes these of."""
    return floats(np.log(probabilities / (1 - probabilities)))


NOTHING = np.array([[0.3, 0.3, 0.3, 9.0]] * 3, np.float32)
DETR = np.concatenate([np.array([[0.0, 4.0, 0.0, 0.5], [3.0, 0.0, 0.0, 0.5]], np.float32), NOTHING])
SSD = np.array([[0.05, 0.1, 0.9, 0], [0.1, 0.8, 0.1, 0], *[[0.99, 0, 0, 0]] * 3], np.float32)
NORMALISED_CENTRES = 'boxes = "b"\nscores = "s"\nbox_format = "cxcywh"\nnormalised = true\n'
FORMS: dict[str, tuple[str, dict[str, Array]]] = {
    "YOLOv5, YOLOv7, YOLOX: 5 + C": (
        'boxes = "o"\nbox_format = "cxcywh"',
        {"o": joined(CENTRES, [1, 1], SCORES)[None]},
    ),
    "YOLOv8, YOLOv9, YOLO11: 4 + C, turned": (
        'boxes = "o"\nbox_format = "cxcywh"',
        {"o": joined(CENTRES, SCORES).T[None]},
    ),
    "YOLOv10, YOLO26: finished rows": (
        'boxes = "o"\ncolumns = ["box", "score", "class"]',
        {"o": joined(CORNERS, [0.9, 0.8], [1, 0])[None]},
    ),
    "YOLOv7 end to end": (
        'boxes = "o"\ncolumns = ["image", "box", "class", "score"]',
        {"o": np.concatenate([[[0, 0], [0, 0]], CORNERS, [[1, 0.9], [0, 0.8]]], axis=1)[:, 1:].astype(np.float32)},
    ),
    "YOLOv4: confs beside boxes [K, 1, 4], as fractions": (
        'boxes = "b"\nscores = "s"\nnormalised = true',
        {"b": padded(FRACTIONS)[None, :, None], "s": padded(SCORES)[None]},
    ),
    "YOLOv3: scores turned, rows first": (
        'boxes = "b"\nscores = "s"\nbox_format = "yxyx"',
        {"b": padded(CORNERS[:, [1, 0, 3, 2]])[None], "s": padded(SCORES).T[None]},
    ),
    "DETR": (
        NORMALISED_CENTRES + 'activation = "softmax"\nbackground = "last"',
        {"b": padded(CENTRE_FRACTIONS, 3)[None], "s": DETR[None]},
    ),
    "RT-DETR: logits for a sigmoid": (
        NORMALISED_CENTRES + 'activation = "sigmoid"',
        {
            "b": padded(CENTRE_FRACTIONS)[None],
            "s": np.concatenate([logits(SCORES), np.full((20, 3), -9, np.float32)])[None],
        },
    ),
    "TensorFlow's detection API": (
        'boxes = "b"\nscores = "s"\nclasses = "c"\nbox_format = "yxyx"\nnormalised = true\nbackground = "first"',
        {
            "b": padded(FRACTIONS[:, [1, 0, 3, 2]])[None],
            "s": padded(np.array([[0.9], [0.8]], np.float32))[None, :, 0],
            "c": padded(np.array([[2.0], [1.0]], np.float32))[None, :, 0],
        },
    ),
    "torchvision: class numbers from 1": (
        'boxes = "b"\nscores = "s"\nclasses = "c"\nbackground = "first"',
        {"b": CORNERS, "s": np.array([0.9, 0.8], np.float32), "c": np.array([2, 1])},
    ),
    "SSD: scores of all classes, the background first": (
        'boxes = "b"\nscores = "s"\nnormalised = true\nbackground = "first"',
        {"b": padded(FRACTIONS, 3)[None], "s": SSD[None]},
    ),
    "OpenVINO's DetectionOutput": (
        'boxes = "o"\ncolumns = ["image", "class", "score", "box"]\nnormalised = true\nbackground = "first"',
        {"o": joined([0, 0], [2, 1], [0.9, 0.8], FRACTIONS)[None, None]},
    ),
    "Paddle": (
        'boxes = "o"\ncolumns = ["class", "score", "box"]',
        {"o": joined([1, 0], [0.9, 0.8], CORNERS)},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_published_form(form: str) -> None:
    """The same two objects, whatever the form."""
    text, outputs = FORMS[form]
    found = step(text, outputs)(outputs)
    np.testing.assert_allclose(floats(found["boxes"]), CORNERS, atol=1e-4)
    assert found["classes"].tolist() == [1, 0]
    assert (np.diff(found["scores"]) < 0).all()
    if "logits" not in form and "DETR" not in form and not form.startswith("SSD"):
        np.testing.assert_allclose(floats(found["scores"]), [0.9, 0.8], rtol=1e-6)


def test_a_score_is_objectness_times_class() -> None:
    """So a box that is nothing is dropped, however sure its class is; also for logits."""
    rows = joined(CENTRES, [0.5, 0.1], SCORES)[None]
    text = 'boxes = "o"\nbox_format = "cxcywh"\n'
    for raw, activation in ((rows, "none"), (_logits_of(rows), "sigmoid")):
        found = step(f'{text}activation = "{activation}"', {"o": raw})({"o": raw})
        np.testing.assert_allclose(floats(found["scores"]), [0.45], rtol=1e-5)


def _logits_of(rows: Floats) -> Floats:
    raw = rows.copy()
    raw[:, :, 4:] = logits(np.clip(rows[:, :, 4:], 1e-6, 1 - 1e-6))
    return raw


def test_objectness_is_configured_or_known_by_the_labels(caplog: pytest.LogCaptureFixture) -> None:
    """Without either the rows are box and scores; then a warning has the way out."""
    rows = {"o": joined(CENTRES, [1, 1], SCORES)[None]}
    text = 'boxes = "o"\nbox_format = "cxcywh"\n'
    assert step(text, rows, labels=3)(rows)["classes"].tolist() == [1, 0]
    assert not caplog.records
    assert step(f"{text}objectness = true", rows, labels=0)(rows)["classes"].tolist() == [1, 0]
    assert not caplog.records
    assert step(text, rows, labels=0)(rows)["classes"].tolist() == [0, 0]
    assert "set objectness = true" in caplog.text


@pytest.mark.parametrize(
    ("text", "shapes", "labels", "words"),
    [
        (
            'boxes = "o"',
            {"o": (1, 100, 90)},
            80,
            r"80 labels, and output 'o' \[1, 100, 90\] has .* 86 scores",
        ),
        ('boxes = "o"\nobjectness = true', {"o": (1, 84, 100)}, 80, "1 of objectness, 79 scores: expected 80 scores"),
        ('boxes = "o"\nobjectness = false', {"o": (1, 85, -1)}, 80, 'with background = "first" or "last"'),
        (
            'boxes = "b"\nscores = "s"',
            {"b": (1, 9, 4), "s": (1, 9, 81)},
            80,
            r"80 labels, .* 's'.* 81 scores a box",
        ),
        ('boxes = "o"\ncolumns = ["box", "score"]', {"o": (1, 300, 6)}, 0, "mean 5 numbers a row; output 'o' .* has 6"),
        ('boxes = "o"\ncolumns = ["box", "class"]', {"o": (1, 300, 6)}, 0, "expected box and score"),
        (
            'boxes = "o"\ncolumns = ["box", "score", "rest"]',
            {"o": (1, 300, 6)},
            0,
            "one of box, score, class, image, keypoints",
        ),
        ('boxes = "b"\nscores = "s"\nobjectness = true', {"b": (1, 9, 4), "s": (1, 9)}, 0, "leave scores out"),
        (
            'boxes = "b"\nscores = "s"\nclasses = "s"\nbackground = "last"',
            {"b": (1, 4), "s": (1,)},
            0,
            "not of class numb",
        ),
        ('boxes = "o"\nmasks = "m"', {"o": (1, 116, 100), "m": (1, 32)}, 80, r"expected \[1, M, H, W\]"),
        ('boxes = "o"\nmasks = "m"', {"o": (1, 84, 100), "m": (1, 32, 9, 9)}, 80, "4 of the box, and 32 for masks"),
    ],
)
def test_what_does_not_fit_is_refused_at_load(
    text: str, shapes: dict[str, tuple[int, ...]], labels: int, words: str
) -> None:
    """The error has the key, the shapes and the numbers."""
    specs = [TensorSpec(name, Datatype.FP32, shape) for name, shape in shapes.items()]
    with pytest.raises(ConfigError, match=words):
        KeptBoxes(DETECTION(tomllib.loads(text), Place(Path("model.toml"))), specs, labels, SIZE)


@pytest.mark.parametrize("text", ['boxes = "o"\nnormalised = true', 'boxes = "o"\nmasks = "m"'])
def test_a_picture_of_open_size_needs_one(text: str) -> None:
    """Fractions and prototypes have no pixels without it."""
    outputs: dict[str, Array] = {"o": np.zeros((1, 9, 7), np.float32), "m": np.zeros((1, 2, 4, 4), np.float32)}
    with pytest.raises(ConfigError, match=r"set width and height in \[image\]"):
        step(text, outputs, 0, (None, 48))


def test_open_axes_are_checked_when_they_are_known() -> None:
    """A model whose file leaves the sizes open is refused by request, with the same words."""
    specs = [TensorSpec("o", Datatype.FP32, (-1, -1, -1))]
    made = KeptBoxes(DETECTION({"boxes": "o"}, Place(Path("model.toml"))), specs, 80, SIZE)
    with pytest.raises(ModelFailed, match=r"80 labels, and output 'o' has rows of 90 numbers"):
        made({"o": np.zeros((1, 100, 90), np.float32)})
    with pytest.raises(BadTensor, match="of 2 pictures"):
        made({"o": np.zeros((2, 100, 84), np.float32)})


PROTOTYPES = np.zeros((1, 2, 12, 16), np.float32)
PROTOTYPES[0, 0] = 1
PROTOTYPES[0, 1, :, 8:] = -1
FACTORS = np.array([[1, 0], [1, 2]], np.float32)
"""The first object is everywhere within its box, the second only left of column 32."""


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        ('boxes = "o"\nbox_format = "cxcywh"\nmasks = "m"', joined(CENTRES, SCORES, FACTORS).T[None]),
        ('boxes = "o"\nbox_format = "cxcywh"\nmasks = "m"', joined(CENTRES, [1, 1], SCORES, FACTORS)[None]),
        (
            'boxes = "o"\ncolumns = ["box", "score", "class"]\nmasks = "m"',
            joined(CORNERS, [0.9, 0.8], [1, 0], FACTORS)[None],
        ),
    ],
)
def test_masks_of_prototypes(text: str, rows: Floats) -> None:
    """YOLOv8-seg, YOLOv5-seg and finished rows: a sum of prototypes, cut off at the box, a quarter of the picture."""
    outputs: dict[str, Array] = {"o": rows, "m": PROTOTYPES}
    made = step(text, outputs)
    found = made(outputs)
    np.testing.assert_array_equal(found["boxes"], CORNERS)
    first, second = np.zeros((2, 12, 16), np.uint8)
    first[1:5, 2:6] = 1
    second[2:10, 7:8] = 0  # its box begins at 30: the centre of column 7
    second[2:10, 7] = 1
    np.testing.assert_array_equal(found["masks"], [first, second])
    assert made.makes[-1] == TensorSpec("masks", Datatype.UINT8, (-1, 12, 16))


@pytest.mark.parametrize("kind", [np.float32, np.uint8, np.bool_])
@pytest.mark.parametrize("axes", [(2, HEIGHT, WIDTH), (2, 1, HEIGHT, WIDTH), (1, 2, HEIGHT, WIDTH)])
def test_a_mask_for_each_candidate(kind: type, axes: tuple[int, ...]) -> None:
    """Mask R-CNN of torchvision: those of the kept boxes, in their order."""
    masks = np.zeros((2, HEIGHT, WIDTH), np.float32)
    masks[0, 10:40, 30:50] = 0.4 if kind is np.float32 else 1
    masks[0, 10:20, 30:50] = masks[1, 4:20, 8:24] = 1
    outputs: dict[str, Array] = {
        "b": CORNERS[::-1],
        "s": np.array([0.8, 0.9], np.float32),
        "c": np.array([0, 1]),
        "m": masks.reshape(axes).astype(kind),
    }
    found = step('boxes = "b"\nscores = "s"\nclasses = "c"\nmasks = "m"', outputs)(outputs)
    assert found["masks"].dtype == np.uint8
    assert found["masks"].sum(axis=(1, 2)).tolist() == [16 * 16, (10 if kind is np.float32 else 30) * 20]


def test_masks_within_their_boxes_are_said_to_be() -> None:
    """Those of 28 x 28 pixels a box can't be told from a small picture's, except by the model's size."""
    outputs: dict[str, Array] = {"b": CORNERS, "s": np.ones(2, np.float32), "m": np.ones((2, 1, 28, 28), np.float32)}
    with pytest.raises(ConfigError, match="if each is of its box, set masks_in_boxes = true"):
        step('boxes = "b"\nscores = "s"\nmasks = "m"', outputs)
    with pytest.raises(ConfigError, match=r"set width and height in \[image\]"):
        step('boxes = "b"\nscores = "s"\nmasks = "m"\nmasks_in_boxes = true', outputs, size=(None, 48))


IN_BOXES = np.zeros((2, 4, 4), np.float32)
IN_BOXES[0, :, 2:] = 1  # the right half
IN_BOXES[1, :2] = 0.75  # the upper half
ZOO = 'boxes = "b"\nscores = "s"\nclasses = "c"\nbackground = "first"\nmasks = "m"\nmasks_in_boxes = true\n'


@pytest.mark.parametrize(
    ("text", "boxes", "axes"),
    [
        (ZOO, CORNERS, (2, 1, 4, 4)),
        (ZOO, CORNERS, (2, 4, 4)),
        (f'{ZOO}box_format = "yxyx"\nnormalised = true', FRACTIONS[None][..., [1, 0, 3, 2]], (1, 2, 4, 4)),
        (f'{ZOO}box_format = "yxyx"\nnormalised = true', FRACTIONS[:, [1, 0, 3, 2]], (2, 4, 4)),
    ],
)
def test_masks_within_boxes_are_laid_into_the_picture(text: str, boxes: Array, axes: tuple[int, ...]) -> None:
    """Of the ONNX zoo's Mask R-CNN and of TensorFlow's, with class numbers from 1: each half is known to the pixel."""
    outputs: dict[str, Array] = {
        "b": boxes,
        "s": np.array([0.9, 0.8], np.float32),
        "c": np.array([2, 1], np.int64),
        "m": IN_BOXES.reshape(axes),
    }
    made = step(text, outputs)
    found = made(outputs)
    expected = np.zeros((2, HEIGHT, WIDTH), np.uint8)
    expected[0, 4:20, 16:24] = 1  # of 8 to 24
    expected[1, 10:24, 30:50] = 1  # of 10 to 40: 0.75 turns to 0 from 21.25 to 28.75, and is above 0.5 up to 23.75
    np.testing.assert_array_equal(found["masks"], expected)
    assert found["classes"].tolist() == [1, 0]
    assert made.makes[-1] == TensorSpec("masks", Datatype.UINT8, (-1, HEIGHT, WIDTH))


def test_a_box_beyond_the_picture_has_the_part_of_its_mask_inside() -> None:
    """Also one that is narrower than a pixel, and one that lies outside."""
    outputs: dict[str, Array] = {
        "b": np.array([[-8, -8, 8, 8], [60, 40, 90, 90], [10.1, 10.1, 10.2, 30], [70, 50, 80, 60]], np.float32),
        "s": np.array([0.9, 0.8, 0.7, 0.6], np.float32),
        "c": np.ones(4, np.int64),
        "m": np.ones((4, 1, 28, 28), np.float32),
    }
    found = step(ZOO, outputs)(outputs)
    assert found["masks"].sum(axis=(1, 2)).tolist() == [64, 4 * 8, 0, 0]


POINTS = np.arange(2 * 17 * 3, dtype=np.float32).reshape(2, 17, 3) / 128
POINTS[..., :2] *= 32
ROWS_FIRST_POINTS = POINTS[..., [1, 0, 2]] / np.array([48, 64, 1], np.float32)
KEYPOINTS = 'boxes = "o"\nbox_format = "cxcywh"\ncolumns = ["box", "score", "keypoints"]'
MOVENET = 'boxes = "o"\nbox_format = "yxyx"\nnormalised = true\nscore_threshold = 0\ncolumns = '
POSES: dict[str, tuple[str, dict[str, Array]]] = {
    "torchvision's keypointrcnn": (
        'boxes = "b"\nscores = "s"\nclasses = "l"\nbackground = "first"\nkeypoints = "keypoints"',
        {"b": CORNERS, "s": np.array([0.9, 0.8], np.float32), "l": np.array([1, 1]), "keypoints": POINTS},
    ),
    "YOLOv8-pose, YOLO11-pose: turned": (KEYPOINTS, {"o": joined(CENTRES, [0.9, 0.8], POINTS, count=90).T[None]}),
    "YOLO26-pose, and others with their suppression": (
        'boxes = "o"\ncolumns = ["box", "score", "class", "keypoints"]',
        {"o": joined(CORNERS, [0.9, 0.8], [0, 0], POINTS, count=0)},
    ),
    "MoveNet of several people": (
        f'{MOVENET}["keypoints", "box", "score"]',
        {"o": joined(ROWS_FIRST_POINTS, FRACTIONS[:, [1, 0, 3, 2]], [0.9, 0.8], count=0)[None]},
    ),
}


@pytest.mark.parametrize("form", POSES)
def test_every_published_form_of_poses(form: str) -> None:
    """The same two people, whatever the form; their boxes and points in pixels."""
    text, outputs = POSES[form]
    made = step(text, outputs, labels=0)
    found = made(outputs)
    np.testing.assert_allclose(floats(found["boxes"]), CORNERS, atol=1e-4)
    np.testing.assert_allclose(floats(found["keypoints"]), POINTS, rtol=1e-5)
    assert found["classes"].tolist() == [0, 0]
    assert made.makes[-1] == TensorSpec("keypoints", Datatype.FP32, (-1, 17, 3))


def test_movenet_of_one_person_has_no_box() -> None:
    """It is that of the points, and its score their mean."""
    outputs: dict[str, Array] = {"o": ROWS_FIRST_POINTS[:1, None]}
    found = step(f'{MOVENET}["keypoints"]', outputs, labels=0)(outputs)
    np.testing.assert_allclose(floats(found["keypoints"]), POINTS[:1], rtol=1e-5)
    np.testing.assert_allclose(floats(found["boxes"]), [[*POINTS[0, 0, :2], *POINTS[0, -1, :2]]], rtol=1e-5)
    np.testing.assert_allclose(floats(found["scores"]), [POINTS[0, :, 2].mean()], rtol=1e-5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('boxes = "o"\ncolumns = ["keypoints", "score"]', "or only keypoints"),
        ('boxes = "o"\ncolumns = ["keypoints"]\nbox_format = "xywh"', "the order of the points"),
        ('boxes = "o"\ncolumns = ["box", "score", "keypoints"]', "mean 56 numbers a row; output 'o' .* has 60"),
        (f'{KEYPOINTS}\nkeypoints = "o"', "leave one of the two out"),
        ('boxes = "o"\nmasks = "m"\nmasks_in_boxes = true', "name masks and scores"),
    ],
)
def test_key_points_and_masks_that_do_not_fit_are_refused(text: str, words: str) -> None:
    """With the key, and what to do."""
    with pytest.raises(ConfigError, match=words):
        step(text, {"o": np.zeros((1, 300, 60), np.float32), "m": np.zeros((1, 2, 9, 9), np.float32)}, 0)


def test_the_masks_of_a_picture_are_bounded() -> None:
    """Of prototypes of 4096 x 4096 pixels 4 masks are made, and as many boxes."""
    count = 6
    boxes = np.array([[8 * n, 0, 8 * n + 8, 8] for n in range(count)], np.float32)
    rows = np.concatenate([boxes, np.ones((count, 2), np.float32)], axis=1)
    outputs: dict[str, Array] = {"o": rows, "m": np.ones((1, 1, 4096, 4096), np.float32)}
    found = step('boxes = "o"\nmasks = "m"', outputs, 1)(outputs)
    assert [len(each) for each in found.values()] == [4] * 4


def test_nothing_found_has_masks_too() -> None:
    """Of no instance."""
    outputs: dict[str, Array] = {"o": np.zeros((1, 20, 9), np.float32), "m": PROTOTYPES}
    assert step('boxes = "o"\nmasks = "m"', outputs)(outputs)["masks"].shape == (0, 12, 16)
