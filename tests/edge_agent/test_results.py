from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.table import ReadingOrder
from mqinfer.edge_agent.results import FirstResults
from mqinfer.protocol.errors import ConfigError, ModelNotFound, NotAuthorized, NoWorker, error_from_code
from mqinfer.protocol.types import Capture, ErrorInfo, Outcome


@given(st.integers(0, 30).flatmap(lambda count: st.permutations(range(count))))
def test_whatever_the_order_of_arrival_the_order_of_reading_comes_out(arrivals: list[int]) -> None:
    """Items come out by their number, each as soon as all before it are there."""
    order: ReadingOrder[int] = ReadingOrder()
    given_out: list[int] = []
    for index, number in enumerate(arrivals):
        given_out += order.put(number, number)
        arrived = set(arrivals[: index + 1])
        expected = next((n for n in range(len(arrivals) + 1) if n not in arrived), 0)
        assert given_out == list(range(expected))
    assert given_out == sorted(arrivals)


def outcome_of(code: str, source: str = "/left") -> InferResult:
    """Make the outcome of a frame that failed with a code, or of one that is well."""
    if code == "ok":
        return InferResult("", Outcome.OK, "m", capture=Capture(source))
    outcome = error_from_code(code, "").outcome
    return InferResult("", outcome, "m", error=ErrorInfo(code, "why"), capture=Capture(source))


@pytest.mark.parametrize(
    ("codes", "refusal"),
    [
        (["not_authorized"], NotAuthorized),
        (["model_not_found"] * 3, ModelNotFound),
        (["no_worker"] * 3, NoWorker),
        (["bad_tensor"] * 3, ConfigError),
        (["superseded", "bad_tensor", "superseded", "bad_tensor", "cancelled", "bad_tensor"], ConfigError),
        (["bad_tensor"] * 2, None),
        (["ok", *["bad_tensor"] * 9], None),
        (["ok", "not_authorized"], None),
        (["bad_image", *["bad_tensor"] * 9], None),
        (["bad_encoding"] * 9, None),
        (["expired"] * 9, None),
        (["model_failed"] * 9, None),
    ],
)
def test_a_run_is_refused_by_its_first_results(codes: list[str], refusal: type[Exception] | None) -> None:
    """Only if all of them fail for a reason that later frames would meet too."""
    first = FirstResults(1)
    for code in codes:
        first.add(outcome_of(code))
    assert first.refusal is None if refusal is None else isinstance(first.refusal, refusal)


def test_every_stream_is_tried() -> None:
    """A model that does not take one topic may take the other, which comes later."""
    first = FirstResults(2)
    for _ in range(9):
        first.add(outcome_of("bad_tensor", "/depth"))
    was_refused = first.refusal is not None
    assert not was_refused
    for _ in range(3):
        first.add(outcome_of("bad_tensor", "/rgb"))
    assert isinstance(first.refusal, ConfigError)
    assert "bad_tensor: why" in str(first.refusal)
