from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mqinfer.models.postprocess.classification import classify
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import BadTensor

FOUR = np.array([[1, 5, 10, 4], [7, 7, -1, 7]], np.float32)
CLASSES = tuple(ClassInfo(name, (0, 0, 0)) for name in ("cat", "dog", "grün", "a:b"))


def test_the_largest_come_first_with_index_and_label() -> None:
    """Triton's own example, and labels as UTF-8."""
    found = classify("y", FOUR, 2, CLASSES, batched=True)
    assert found.tolist() == [["10.000000:2:grün".encode(), b"5.000000:1:dog"], [b"7.000000:0:cat", b"7.000000:1:dog"]]
    assert classify("y", FOUR[0], 1, batched=False).tolist() == [b"10.000000:2"]


def test_labels_are_left_out_where_their_number_is_not_that_of_the_elements() -> None:
    """A wrong label would be worse than none."""
    assert classify("y", FOUR, 1, CLASSES[:3], batched=True).tolist() == [[b"10.000000:2"], [b"7.000000:0"]]


def test_without_a_batch_axis_all_elements_count_as_one_entry() -> None:
    """The index is that of the flat output, as Triton has it."""
    assert classify("y", FOUR, 3, batched=False).tolist() == [b"10.000000:2", b"7.000000:4", b"7.000000:5"]


def test_more_than_there_are_gives_all() -> None:
    """The count is bounded by the elements; an empty batch and rows of nothing stay so, as in Triton."""
    assert classify("y", FOUR, 99, batched=True).shape == (2, 4)
    assert classify("y", FOUR[:0], 2, batched=True).shape == (0, 2)
    assert classify("y", np.zeros((1, 0), np.float32), 2, batched=True).shape == (1, 0)
    assert classify("y", np.array(3), 2, batched=False).tolist() == [b"3:0"]


def test_what_is_not_a_number_comes_last() -> None:
    """A NaN never beats a number; values have six decimal places."""
    row = np.array([np.nan, -3.25, np.inf, 0.1, np.nan], np.float32)
    found = classify("y", row, 5, batched=False).tolist()
    assert found[:3] == [b"inf:2", b"0.100000:3", b"-3.250000:1"]
    assert {text[:3] for text in found[3:]} == {b"nan"}


@given(hnp.arrays(st.sampled_from(["f2", "f4", "f8", "i1", "u1", "i8", "u8"]), (2, 6)), st.integers(1, 6))
def test_values_fall_and_equal_ones_keep_their_order(scores: Array, count: int) -> None:
    """For every kind of number: sorted by value, then by index."""
    for row, texts in zip(scores, classify("y", scores, count, batched=True), strict=True):
        indices = [int(text.split(b":")[1]) for text in texts]
        clean = np.where(np.isnan(row), -np.inf, row) if row.dtype.kind == "f" else row
        keys = [(clean[index], -index) for index in indices]
        assert keys == sorted(((clean[index], -index) for index in range(6)), reverse=True)[:count]


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        (np.array([True]), "class result not available for output due to unsupported type 'BOOL'"),
        (np.array([b"a"], object), "class result not available for output due to unsupported type 'BYTES'"),
        (np.zeros((1, 1_000_001), np.int8), "classification output tensor too large"),
    ],
)
def test_what_has_no_order_or_no_end_is_refused(scores: Array, words: str) -> None:
    """BOOL, BYTES, and the logits of a picture, in Triton's words."""
    with pytest.raises(BadTensor, match=f"^{words}: output 'y' "):
        classify("y", scores, 1, batched=True)
