"""What a worker says of its speed."""

import pytest

from mqinfer.cloud_worker.load import LoadMeter


def test_the_first_reading_counts_whole() -> None:
    """Nothing is known before it."""
    meter = LoadMeter()
    meter.served(0.2, 2)
    assert meter.service_s == pytest.approx(0.1)


def test_one_halt_does_not_make_a_worker_slow() -> None:
    """A batch during which the process was stopped for seconds raises the smoothed time by less than half."""
    meter = LoadMeter()
    for seconds in (0.02, 0.02, 3.0):
        meter.served(seconds, 1)
    assert 0.02 < meter.service_s < 0.03


def test_a_worker_that_has_become_slow_says_so_soon() -> None:
    """Ten times slower is within a factor of 1.3 after a dozen batches."""
    meter = LoadMeter()
    meter.served(0.02, 1)
    for _ in range(12):
        meter.served(0.2, 1)
    assert meter.service_s > 0.2 / 1.3
