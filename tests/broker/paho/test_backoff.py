"""Waits follow what was waited so far, begin anew with a connection that stood, and go on growing in a loop."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mqinfer.broker.paho.connecting import Backoff

ULP = 1 + 1e-12  # a ceiling is reached by way of a product and a sum
draws = st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=60)


def highest() -> Backoff:
    """A back-off that always waits for as long as it may."""
    return Backoff(0.1, 5.0, draw=lambda: 1.0)


def losses(backoff: Backoff, times: list[float]) -> list[bool]:
    """Let connections end at these times; gives which of the ends were found to be a loop."""
    return [backoff.lost(now) for now in times]


def test_waits_grow_by_half_up_to_the_longest() -> None:
    """Whoever draws the highest adds half of what was waited so far; whoever draws the lowest waits the shortest."""
    most = highest()
    assert [round(most.next(), 2) for _ in range(5)] == [0.1, 0.15, 0.23, 0.34, 0.51]
    assert [most.next() for _ in range(20)][-1] == 5.0
    least = Backoff(0.1, 5.0, draw=lambda: 0.0)
    assert {least.next() for _ in range(20)} == {0.1}


@given(st.floats(0.001, 10), st.floats(0, 100), draws)
def test_a_wait_is_within_its_bounds(shortest: float, more: float, drawn: list[float]) -> None:
    """Never above the longest, never below the shortest, and above that by half of what was waited so far at most."""
    longest, each = shortest + more, iter(drawn)
    backoff = Backoff(shortest, longest, draw=lambda: next(each))
    waited = 0.0
    for _ in drawn:
        wait = backoff.next()
        assert shortest <= wait <= longest * ULP
        assert wait <= (shortest + waited / 2) * ULP
        waited += wait


@given(st.integers(1, 30), st.lists(st.floats(0.56, 60), max_size=40))
def test_it_begins_anew_after_each_loss_that_is_no_loop(waits: int, gaps: list[float]) -> None:
    """Connections that end so seldom that ten of them take five seconds, one each second say, are no loop."""
    backoff, now = highest(), 0.0
    for gap in [1.0, *gaps]:
        now += gap
        for _ in range(waits):
            backoff.next()
        assert not backoff.lost(now)
        assert backoff.next() == 0.1


@given(st.floats(0, 1e6), st.lists(st.floats(0, 4.99), min_size=10, max_size=30).map(sorted))
def test_ten_ends_within_five_seconds_are_a_loop(start: float, times: list[float]) -> None:
    """Nine are not; from the tenth on a loop is told, and the waits grow on."""
    backoff = highest()
    assert losses(backoff, [start + time for time in times]) == [False] * 9 + [True] * (len(times) - 9)
    before = [backoff.next() for _ in range(3)]
    assert backoff.lost(start + times[-1])
    assert backoff.next() > before[-1]


def test_five_seconds_are_long_enough() -> None:
    """The tenth end exactly five seconds after the first is no loop; a little sooner it is one."""
    assert [losses(highest(), [0.0] * 9 + [tenth])[-1] for tenth in (5.0, 4.999)] == [False, True]


def test_a_loop_ends() -> None:
    """After a connection that held, nine more may end at once before it is a loop again."""
    backoff = highest()
    assert losses(backoff, [0.0] * 10)[-1]
    assert losses(backoff, [60.0] * 10) == [False] * 9 + [True]
