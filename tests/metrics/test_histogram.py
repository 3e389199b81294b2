import math

from hypothesis import given
from hypothesis import strategies as st

from mqinfer.metrics.histogram import Histogram, Percentiles

DURATIONS = st.lists(st.integers(0, 10**16), min_size=1, max_size=200)


def filled(values: list[int]) -> Histogram:
    """Make a histogram of values."""
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram


@given(DURATIONS, st.floats(0.1, 100))
def test_percentile_is_within_one_part_in_128_of_the_exact_one(values: list[int], percent: float) -> None:
    """The stated error bound holds against the nearest rank of the sorted list, for any values."""
    rank = max(math.ceil(percent / 100 * len(values)), 1)
    exact = sorted(values)[rank - 1]
    found = filled(values).percentile(percent)
    assert found is not None
    assert abs(found - exact) <= exact / 128


@given(DURATIONS)
def test_hundredth_percentile_is_the_exact_maximum(values: list[int]) -> None:
    """The largest duration is kept as it was."""
    assert filled(values).percentile(100) == max(values)


@given(st.integers(0, 127))
def test_small_values_are_exact(value: int) -> None:
    """Below 128 ns each value has its own bucket."""
    assert filled([value, value, 10**9]).percentile(50) == value


@given(DURATIONS, DURATIONS)
def test_merging_equals_recording_together(first: list[int], second: list[int]) -> None:
    """Two merged histograms answer as one that saw everything."""
    merged = filled(first)
    merged.merge(filled(second))
    together = filled(first + second)
    assert merged.count == together.count
    assert merged.percentiles() == together.percentiles()


def test_an_empty_histogram_has_no_percentiles() -> None:
    """Nothing recorded is None and not zero, also after merging another empty one."""
    histogram = Histogram()
    histogram.merge(Histogram())
    assert histogram.percentiles() == Percentiles(None, None, None)


def test_a_negative_duration_counts_as_zero() -> None:
    """A clock that was set back between two readings spoils nothing."""
    assert filled([-5]).percentile(50) == 0
