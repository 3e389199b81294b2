"""The trace context beside a request, by the grammar of W3C."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.protocol.trace import TraceContext, read_trace, trace_of

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
GOOD = f"00-{TRACE}-{SPAN}-01"


@pytest.mark.parametrize("good", [GOOD, f"00-{TRACE}-{SPAN}-00", f"00-{TRACE}-{SPAN}-ff", f"cc-{TRACE}-{SPAN}-01-more"])
def test_what_is_well_formed_is_passed_on(good: str) -> None:
    """Unknown flags and later versions included."""
    assert read_trace(good) == TraceContext(good)


@pytest.mark.parametrize(
    "bad",
    [
        "", "x", GOOD.upper(), f" {GOOD}", f"{GOOD}\n", f"{GOOD}-", f"{GOOD}-more", f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01", f"00-{TRACE}-{'0' * 16}-01", f"00-{TRACE[1:]}-{SPAN}-01", f"00-{TRACE}-{SPAN}-1",
        f"00-{TRACE}-{SPAN}", f"cc-{TRACE}-{SPAN}-01more", f"cc-{TRACE}-{SPAN}-01-" + "x" * 600, f"{GOOD},{GOOD}",
    ],
)  # fmt: skip
def test_what_is_malformed_is_ignored(bad: str) -> None:
    """As if there were none."""
    assert read_trace(bad, "a=1") is None


def test_a_trace_state_goes_along() -> None:
    """Two properties are joined; one that W3C does not have everybody pass on is left out alone."""
    found = trace_of([("xxh3", "0"), ("tracestate", "a=1"), ("traceparent", GOOD), ("tracestate", "b=2")])
    assert found == TraceContext(GOOD, "a=1,b=2")
    assert found.properties() == (("traceparent", GOOD), ("tracestate", "a=1,b=2"))
    assert read_trace(GOOD, "a=1,\tb=2") == TraceContext(GOOD, "a=1, b=2")  # no string of MQTT has a tab
    for broken in ("x" * 513, "a=\x00", "ä=1", ",".join(f"v{n}=1" for n in range(33))):
        assert read_trace(GOOD, broken) == TraceContext(GOOD)


def test_two_parents_or_none_are_no_context() -> None:
    """A state alone says nothing."""
    assert trace_of([("traceparent", GOOD), ("traceparent", GOOD)]) is None
    assert trace_of([("tracestate", "a=1")]) is None


@given(st.text(), st.text())
def test_no_text_raises(parent: str, state: str) -> None:
    """Neither of the two."""
    read_trace(parent, state)
    trace_of([("traceparent", parent), ("tracestate", state)])
