"""Intersection over union, compared with counts by hand and with sets."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mqinfer.lab.scores import confusion, mean_iou, segmentation_score
from mqinfer.protocol.errors import InvalidRequest

NAMES = ("sky", "road", "car")
Masks = arrays(np.uint8, (4, 6), elements=st.integers(0, 2))


def test_by_hand() -> None:
    """Sky and road have 1 of 3 each; the car, which does not occur, is not counted."""
    found = mean_iou(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 0]), NAMES)
    assert found.per_class == {"sky": pytest.approx(1 / 3), "road": pytest.approx(1 / 3)}
    assert found.mean_iou == pytest.approx(1 / 3)


@given(prediction=Masks, truth=Masks)
def test_as_sets(prediction: np.ndarray[Any, Any], truth: np.ndarray[Any, Any]) -> None:
    """The result equals the definition by pixel sets; a mask against itself has 1."""
    found = mean_iou(prediction, truth, NAMES)
    for number, name in enumerate(NAMES):
        one, other = (set(zip(*np.nonzero(mask == number), strict=True)) for mask in (prediction, truth))
        if one | other:
            assert found.per_class[name] == pytest.approx(len(one & other) / len(one | other))
    assert mean_iou(truth, truth, NAMES).mean_iou == 1


@given(first=Masks, second=Masks, truth=Masks)
def test_counts_add_up(first: np.ndarray[Any, Any], second: np.ndarray[Any, Any], truth: np.ndarray[Any, Any]) -> None:
    """The sum of the counts of frames equals the counts of a stack."""
    apart = confusion(first, truth, 3) + confusion(second, truth, 3)
    stacked = mean_iou(np.stack([first, second]), np.stack([truth, truth]), NAMES)
    assert segmentation_score(apart, NAMES) == stacked


def test_ignored_pixels_and_nothing_at_all() -> None:
    """255 in the truth is ignored; without any other pixel the mean is 0."""
    truth = np.array([255, 1], np.uint8)
    assert mean_iou(np.array([0, 1], np.uint8), truth, NAMES).per_class == {"road": 1.0}
    assert mean_iou(np.zeros(0, np.uint8), np.zeros(0, np.uint8), NAMES).mean_iou == 0


def test_bad_masks() -> None:
    """Different shapes and numbers without a class are errors."""
    with pytest.raises(InvalidRequest, match="differ in shape"):
        mean_iou(np.zeros((2, 2), int), np.zeros((2, 3), int), NAMES)
    with pytest.raises(InvalidRequest, match="outside 0 to 2"):
        mean_iou(np.array([3]), np.array([1]), NAMES)
