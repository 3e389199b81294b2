"""Comparison of products: differences, agreement, scores, and the tolerance."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mqinfer.lab.optimize.parity import Parity, Tolerance, compare, parse_tolerance
from mqinfer.protocol.errors import ConfigError

Array = np.ndarray[Any, Any]
FLOATS = hnp.arrays(np.float32, hnp.array_shapes(max_dims=3), elements=st.floats(-1e3, 1e3, width=32))
PRECISIONS = ["fp32", "fp16", "bf16", "int8"]


def parity(one: Array, other: Array, truth: Array | None = None, classes: int = 0) -> Parity:
    """Compare one output of one sample."""
    return compare([{"y": one}], [{"y": other}], [truth], [str(n) for n in range(classes)])


@given(FLOATS, st.sampled_from(PRECISIONS))
def test_equal_outputs_are_kept(array: Array, precision: str) -> None:
    """A product with the original's outputs has difference 0 and is within any tolerance."""
    found = parity(array, array.copy())
    assert (found.difference, found.relative) == (0, 0)
    assert Tolerance(1, 0, 0).judge(found, precision) == ""


@given(FLOATS, st.floats(0.25, 100))
def test_the_largest_difference_counts(array: Array, step: float) -> None:
    """One different element counts, wherever it is; the relative difference of large values is smaller."""
    other = array.astype(np.float64)
    other.flat[array.size // 2] += step
    found = parity(array, other)
    assert found.difference == pytest.approx(step, rel=1e-3)
    assert found.relative == pytest.approx(step / max(1, np.abs(array).max()), rel=1e-3)


def test_not_a_number_is_refused() -> None:
    """A product with a NaN is never within the tolerance, even if other samples are equal."""
    good, bad = np.ones((1, 3), np.float32), np.array([[1, np.nan, 1]], np.float32)
    for outputs in ([good, bad], [bad, good]):
        found = compare([{"y": good}] * 2, [{"y": each} for each in outputs], [None, None])
        assert "difference nan" in Tolerance(difference=1, agreement=0).judge(found, "int8")


def test_the_same_infinity_is_no_difference() -> None:
    """NaN and infinities that the original has too are no difference; the other elements count."""
    one = np.array([np.nan, np.inf, -np.inf, 8.0], np.float32)
    other = one + np.array([0, 0, 0, 2], np.float32)
    found = parity(one, other)
    assert (found.difference, found.relative) == (2, 0.25)
    assert parity(one, -one).difference == np.inf


@given(st.integers(0, 100))
def test_masks_agree_pixel_by_pixel(wrong: int) -> None:
    """The agreement is the share of equal pixels; masks have no difference in value."""
    mask = np.zeros((1, 10, 10), np.uint8)
    other = mask.copy()
    other.flat[:wrong] = 3
    found = parity(mask, other)
    assert found.agreement == pytest.approx(1 - wrong / 100)
    assert found.difference is None


def test_scores_agree_in_the_best_class() -> None:
    """Of scores [N,classes] the best class must stay, whatever the values are."""
    one = np.array([[0.1, 0.2], [0.9, 0.1], [0.3, 0.4], [0.5, 0.6]], np.float32)
    other = np.array([[0.0, 0.9], [0.8, 0.1], [0.3, 0.2], [0.5, 0.6]], np.float32)
    assert parity(one, other).agreement == 0.75


def test_the_truth_gives_masks_a_score() -> None:
    """Mean intersection over union of both, by the classes of the model; the truth may lack the batch axis."""
    truth = np.array([[0, 0, 1, 1]])
    found = parity(truth[None].astype(np.uint8), np.array([[[0, 1, 1, 1]]], np.uint8), truth, classes=2)
    assert found.original_score == 1
    assert found.score == pytest.approx((1 / 2 + 2 / 3) / 2)


def test_a_truth_of_another_size_is_resized() -> None:
    """Each pixel of the mask is compared with the nearest one of the truth."""
    truth = np.repeat(np.repeat([[0, 1], [1, 0]], 3, 0), 3, 1)
    mask = np.array([[[0, 1], [1, 0]]], np.uint8)
    assert parity(mask, mask, truth, classes=2).score == 1


def test_the_truth_gives_classifiers_an_accuracy() -> None:
    """The score is the share of correct classes; without a truth for each sample there is none."""
    scores = [{"y": np.eye(3, dtype=np.float32)[[n]]} for n in (0, 1, 2, 2)]
    labels = [np.array(n) for n in (0, 1, 2, 0)]
    assert compare(scores, scores, labels).score == 0.75
    assert compare(scores, scores, [*labels[:3], None]).score is None


def test_other_shapes_are_refused() -> None:
    """A product whose output has another shape is refused with the output's name."""
    with pytest.raises(ConfigError, match=r"'y' has the shape \[3\] in the product, expected \[2\]"):
        parity(np.zeros(2), np.zeros(3))


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (Parity(relative=0.002), "difference 0.002 is above 0.001"),
        (Parity(agreement=0.95), "agreement 0.9500 is below 0.99"),
        (Parity(score=0.6, original_score=0.7), "0.1000 of the score is lost, more than 0.01"),
        (Parity(score=0.7, original_score=0.6), ""),
        (Parity(relative=0.0009, agreement=0.99), ""),
        (Parity(), ""),
    ],
)
def test_reasons_of_refusals(found: Parity, reason: str) -> None:
    """The first exceeded bound is reported with both figures; a better score is no loss."""
    assert Tolerance().judge(found, "fp32") == reason


def test_lower_precision_may_differ_more() -> None:
    """The bound of the difference depends on the precision, unless it is set."""
    kept = [precision for precision in PRECISIONS if not Tolerance().judge(Parity(relative=0.04), precision)]
    assert kept == ["bf16", "int8"]
    assert Tolerance(difference=0.01).judge(Parity(relative=0.04), "int8")


def test_tolerances_are_read() -> None:
    """Bounds that are not set have their default."""
    assert parse_tolerance(["agreement=0.9", "difference=0.5"]) == Tolerance(0.9, 0.01, 0.5)
    assert parse_tolerance([]) == Tolerance()


@pytest.mark.parametrize("text", ["agreement", "agreement=x", "accord=1", "loss=2", "loss=-1", "loss=nan", ""])
def test_wrong_tolerances_are_named(text: str) -> None:
    """An unknown name, no number, or a number outside 0 to 1 is refused."""
    with pytest.raises(ConfigError, match="--tolerance"):
        parse_tolerance([text])
