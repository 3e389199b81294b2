import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.times import STAGES, EdgeStage, LinkStage
from mqinfer.edge_agent.reporting.statistics import Failure, ReplayStatistics
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.types import Capture, ErrorInfo, Outcome, Timings
from tests.clock import Clock

MILLISECOND = 1_000_000


def result_of(
    source: str, outcome: Outcome = Outcome.OK, *, attempts: int = 1, sent: int = 100, inference: int = MILLISECOND
) -> InferResult:
    """Make the outcome of a request of a stream."""
    return InferResult(
        id="0" * 32,
        outcome=outcome,
        model_name="m",
        attempts=attempts,
        bytes_sent=sent,
        timings=Timings(inference=inference),
        capture=Capture(source),
    )


@given(st.lists(st.tuples(st.sampled_from(["/a", "/b"]), st.none() | st.sampled_from(list(Outcome))), max_size=50))
def test_books_balance_at_any_moment(events: list[tuple[str, Outcome | None]]) -> None:
    """After any mixture of requests with and without outcomes, streams and total add up."""
    statistics = ReplayStatistics()
    for source, outcome in events:
        statistics.frame_read(source)
        statistics.request_sent(source)
        if outcome:
            statistics.finished(result_of(source, outcome), bytes_raw=1000)
    snapshot = statistics.snapshot()
    snapshot.check()
    assert set(snapshot.outcomes) == set(Outcome)
    assert snapshot.requests == len(events) == snapshot.done + snapshot.pending
    assert snapshot.requests == sum(stream.requests for stream in snapshot.streams)
    assert snapshot.bytes_raw == 1000 * snapshot.done


def test_a_second_outcome_for_one_request_is_found() -> None:
    """Two outcomes of one request unbalance the books, and the message names the stream."""
    statistics = ReplayStatistics()
    statistics.request_sent("/a")
    statistics.request_sent("/b")
    statistics.finished(result_of("/a"), bytes_raw=1)
    statistics.finished(result_of("/a"), bytes_raw=1)
    with pytest.raises(MqinferError, match="/a: 2 outcomes and -1 pending"):
        statistics.snapshot().check()


def test_rates_are_over_the_time_since_the_start() -> None:
    """Seconds and frame rate come from the injected clock."""
    clock = Clock(5e9)
    statistics = ReplayStatistics(lambda: int(clock()))
    for _ in range(10):
        statistics.request_sent("/a")
        statistics.finished(result_of("/a"), bytes_raw=1)
    assert statistics.snapshot().frame_rate == 0.0
    clock.now += 4e9
    snapshot = statistics.snapshot()
    assert (snapshot.seconds, snapshot.frame_rate) == (4.0, 2.5)


def test_retries_and_bytes_are_counted_by_stream() -> None:
    """Attempts beyond the first are retries; a request that was never sent has none."""
    statistics = ReplayStatistics()
    for source, attempts, sent in (("/a", 3, 300), ("/a", 0, 0), ("/b", 1, 100)):
        statistics.request_sent(source)
        statistics.finished(result_of(source, attempts=attempts, sent=sent), bytes_raw=1000)
    snapshot = statistics.snapshot()
    assert (snapshot.retries, snapshot.bytes_sent, snapshot.bytes_raw) == (2, 400, 3000)
    assert [(stream.source, stream.retries) for stream in snapshot.streams] == [("/a", 2), ("/b", 0)]


def test_only_answered_requests_tell_of_latency() -> None:
    """An expired request's time is its deadline, so it is left out of the percentiles."""
    statistics = ReplayStatistics()
    for outcome, inference in ((Outcome.OK, 2 * MILLISECOND), (Outcome.EXPIRED, 5_000 * MILLISECOND)):
        statistics.request_sent("/a")
        statistics.finished(result_of("/a", outcome, inference=inference), bytes_raw=1)
    snapshot = statistics.snapshot()
    assert snapshot.latency.p99 == 2 * MILLISECOND
    assert snapshot.stages["inference"].p50 == 2 * MILLISECOND


def test_stages_stand_in_the_order_of_the_path() -> None:
    """Edge stages come before the client's and the worker's; unrecorded ones are absent."""
    statistics = ReplayStatistics()
    statistics.stage("/a", EdgeStage.READ, 7)
    assert list(statistics.snapshot().stages) == ["edge_read"]
    statistics.request_sent("/a")
    statistics.finished(result_of("/a"), bytes_raw=1)
    assert list(statistics.snapshot().stages) == ["edge_read", *STAGES[len(EdgeStage) : -len(LinkStage)]]


def test_threads_lose_no_count() -> None:
    """Eight threads count a thousand each."""
    statistics = ReplayStatistics()

    def count() -> None:
        for _ in range(1000):
            statistics.request_sent("/a")
            statistics.finished(result_of("/a"), bytes_raw=1)

    threads = [threading.Thread(target=count, name=f"mqinfer-test-{number}") for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    snapshot = statistics.snapshot()
    snapshot.check()
    assert (snapshot.requests, snapshot.pending) == (8000, 0)


def test_failures_are_counted_by_code_with_the_first_message() -> None:
    """Over all streams and in each; superseded frames are none, and cancelled ones come last."""
    statistics = ReplayStatistics()

    def end(source: str, outcome: Outcome, code: str, message: str) -> None:
        statistics.request_sent(source)
        result = InferResult("", outcome, "m", error=ErrorInfo(code, message), capture=Capture(source))
        statistics.finished(result, bytes_raw=0)

    for number in range(3):
        end("/left", Outcome.ERROR, "bad_tensor", f"frame {number}")
        end("/right", Outcome.CANCELLED, "cancelled", "not sent")
        end("/right", Outcome.SUPERSEDED, "superseded", "a newer one came")
    end("/right", Outcome.ERROR, "bad_tensor", "another")
    end("/right", Outcome.ERROR, "not_authorized", "[/b] no")
    snapshot = statistics.snapshot()
    assert snapshot.failures == (
        Failure("bad_tensor", 4, "frame 0"),
        Failure("not_authorized", 1, "[/b] no"),
        Failure("cancelled", 3, "not sent"),
    )
    assert [failure.count for failure in snapshot.streams[0].failures] == [3]
    assert snapshot.failed == 8


def test_error_codes_from_outside_are_bounded() -> None:
    """A worker that makes up a code for each reply takes no more memory than one that has a few."""
    statistics = ReplayStatistics()
    for number in range(1000):
        statistics.request_sent("/left")
        error = ErrorInfo(f"made_up_{number}", "")
        result = InferResult("", Outcome.ERROR, "m", error=error, capture=Capture("/left"))
        statistics.finished(result, bytes_raw=0)
    failures = statistics.snapshot().failures
    assert len(failures) <= 33
    assert (failures[0].code, sum(failure.count for failure in failures)) == ("other", 1000)
