from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mqinfer.cloud_worker.serving.load import Admission, LoadMeter
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.protocol.control import Duration, ModelStatistics
from mqinfer.protocol.types import Outcome, Timings

TIMINGS = Timings(server_queue=1, decode=2, preprocess=3, inference=4, postprocess=5, encode=6)
runs = st.lists(st.tuples(st.integers(1, 8), *[st.integers(0, 1000)] * 3), max_size=20)


def test_stages_of_a_request() -> None:
    """Times go to the stages of the Open Inference Protocol; a request without a result counts as failed alone."""
    meter = LoadMeter(clock=lambda: 12.3456)
    for outcome in (Outcome.OK, Outcome.OK, Outcome.ERROR, Outcome.REJECTED):
        meter.answered(outcome, TIMINGS)
    found = meter.statistics()
    assert (found.stages.success, found.stages.fail) == (Duration(2, 42), Duration(2, 42))
    assert (found.stages.queue, found.stages.compute_input) == (Duration(2, 2), Duration(2, 10))
    assert (found.stages.compute_infer, found.stages.compute_output) == (Duration(2, 8), Duration(2, 22))
    assert found.last_inference == 12346
    assert meter.counters() == {Outcome.OK: 2, Outcome.ERROR: 1, Outcome.REJECTED: 1}


@given(runs, runs)
def test_statistics_of_two_processes_add_up(one: list[tuple[int, ...]], two: list[tuple[int, ...]]) -> None:
    """Two meters together say what one meter of all runs says."""

    def metered(figures: list[tuple[int, ...]]) -> ModelStatistics:
        meter = LoadMeter(clock=lambda: 1.0)
        for rows, input_ns, infer_ns, output_ns in figures:
            meter.ran(rows, input_ns, infer_ns, output_ns)
            meter.answered(Outcome.OK, TIMINGS)
        return replace(meter.statistics(), memory_bytes=len(figures))

    both = metered(one) + metered(two)
    assert both == metered([*one, *two])
    assert both.execution_count == len(one) + len(two)
    assert both.inference_count == sum(rows for rows, *_ in [*one, *two])
    entry = both.to_record("m", "1")
    assert sum(batch["compute_infer"]["ns"] for batch in entry["batch_stats"]) == sum(run[2] for run in [*one, *two])
    assert [batch["batch_size"] for batch in entry["batch_stats"]] == sorted({run[0] for run in [*one, *two]})


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


def test_who_sent_of_late_is_stated() -> None:
    """The sixteen that sent most, what is older counts half a minute by minute; names without end take no memory."""
    admission = Admission(WorkerOptions("w"), 1)
    for number in range(20):
        for _ in range(number):
            admission.enter(f"car-{number}", 1, 1.0)
    assert admission.accepted() == {f"car-{number}": number for number in range(4, 20)}
    admission.enter("car-1", 1, 62.0)
    assert admission.accepted()["car-19"] == 9
    for number in range(20_000):
        admission.enter(f"n-{number}", 1, 63.0)
    assert len(admission._accepted) <= 4097
