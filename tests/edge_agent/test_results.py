from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqinfer.edge_agent.results import ReadingOrder


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
