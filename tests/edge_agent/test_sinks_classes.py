"""The best classes of a classifier's result."""

from __future__ import annotations

import numpy as np
import pytest

from mqinfer.answers.outputs import TopClass, find_top, top_label
from mqinfer.answers.words import describe_top
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array

SCORES = np.zeros(1000, np.float32)
SCORES[[281, 282, 7]] = 0.75, 0.125, 0.0625
CLASSES = tuple(ClassInfo(f"class {number}", (0, 0, 0)) for number in range(1000))


@pytest.mark.parametrize("shape", [(1, 1000), (1000,), (1, 1000, 1, 1), (1, 1, 1, 1000)])
@pytest.mark.parametrize("classes", [CLASSES, ()])
def test_the_best_classes_with_their_labels(shape: tuple[int, ...], classes: tuple[ClassInfo, ...]) -> None:
    """Best first, of equal ones the lower number; a number stands for its name without labels."""
    name = "class {}" if classes else "{}"
    found = find_top({"scores": SCORES.reshape(shape)}, classes)
    assert found == tuple(
        TopClass(name.format(number), number, score)
        for number, score in [(281, 0.75), (282, 0.125), (7, 0.0625), (0, 0.0), (1, 0.0)]
    )
    assert top_label(found[0]) == f"{name.format(281)} 0.75"
    described = describe_top(found[:1])
    assert described == {"top": [{"class": name.format(281), "number": 281, "score": 0.75}]}


def test_logits_stay_logits() -> None:
    """No softmax is applied; what is not finite is left out."""
    logits = np.array([[-3.5, np.nan, 12.0, np.inf, 0.0]], np.float32)
    assert [(each.number, each.score) for each in find_top({"y": logits})] == [(2, 12.0), (4, 0.0), (0, -3.5)]
    assert describe_top(find_top({"y": np.full((1, 3), np.nan, np.float32)})) == {}


@pytest.mark.parametrize(
    "outputs",
    [
        {"boxes": np.zeros((2, 4), np.float32), "scores": np.zeros(1000, np.float32)},
        {"mask": np.ones((1, 4, 6), np.uint8), "scores": np.zeros(1000, np.float32)},
        {"scores": np.zeros((1, 999), np.float32)},
        {"scores": np.zeros((2, 1000), np.float32)},
        {"names": np.full((1, 1000), b"x", np.object_)},
        {},
    ],
)
def test_what_is_no_classifier(outputs: dict[str, Array]) -> None:
    """Boxes, a mask, another number of values than labels, several rows, text."""
    assert find_top(outputs, CLASSES) == ()


def test_the_labels_choose_the_output() -> None:
    """Also integers, of a quantised classifier; without labels two outputs are ambiguous."""
    outputs: dict[str, Array] = {"features": np.ones((1, 64), np.float32), "scores": np.eye(3, dtype=np.uint8)[1:2]}
    assert [each.number for each in find_top(outputs, CLASSES[:3])] == [1, 0, 2]
    assert find_top(outputs) == ()
    assert find_top({"y": np.zeros((1, 1), np.float32)}) == ()
    assert find_top({"y": np.zeros((1, 9), np.int64)}) == ()
