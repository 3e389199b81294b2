from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.bags.frame import Frame, StreamInfo
from mqinfer.edge_agent.replay import Pacer, replay
from mqinfer.images.picture import CompressedImage
from mqinfer.protocol.errors import ConfigError

SECOND = 1_000_000_000
IMAGE = CompressedImage("", b"")


@dataclass
class Time:
    """A clock that moves only when somebody waits or says so."""

    now: float = 1000.0
    waits: list[float] = field(default_factory=list)

    def clock(self) -> float:
        """Return the time."""
        return self.now

    def wait(self, seconds: float) -> None:
        """Move the time."""
        self.waits.append(seconds)
        self.now += seconds


@dataclass
class Recording:
    """A source with given log times on one topic."""

    log_times: list[int]

    def streams(self) -> tuple[StreamInfo, ...]:
        """Nothing to say."""
        return ()

    def frames(self) -> Iterator[Frame]:
        """One pass."""
        return (Frame("/front", number, 0, log_time, "", IMAGE) for number, log_time in enumerate(self.log_times))

    def close(self) -> None:
        """Nothing is open."""


def due_times(rate: float, log_times: list[int]) -> list[float]:
    """Play log times and tell when each was due, from the first."""
    time = Time()
    pacer = Pacer(rate, time.clock, time.wait)
    due = []
    for log_time in log_times:
        pacer.wait_for(log_time)
        due.append(time.now - 1000.0)
    return due


@given(st.lists(st.integers(0, 10 * SECOND), min_size=1).map(sorted), st.sampled_from([0.25, 1.0, 2.0, 7.0]))
def test_frames_are_due_as_recorded(log_times: list[int], rate: float) -> None:
    """Each frame comes at its distance from the first, divided by the rate, without drift."""
    wanted = [(log_time - log_times[0]) / SECOND / rate for log_time in log_times]
    assert due_times(rate, log_times) == pytest.approx(wanted, abs=1e-6)


def test_rate_zero_never_waits() -> None:
    """Rate 0 is as fast as results allow."""
    time = Time()
    pacer = Pacer(0, time.clock, time.wait)
    for log_time in (0, SECOND, 100 * SECOND):
        pacer.wait_for(log_time)
    assert time.waits == []


def test_slow_consumer_catches_up() -> None:
    """Frames that are overdue come at once; the recorded times are met again as soon as they can be."""
    time = Time()
    pacer = Pacer(1.0, time.clock, time.wait)
    pacer.wait_for(0)
    time.now += 2.5
    for log_time in (1, 2, 3):
        pacer.wait_for(log_time * SECOND)
    assert time.waits == pytest.approx([0.5])


def test_step_backwards_begins_anew() -> None:
    """A recorder whose clock was set back neither stalls the replay nor lets it run free."""
    assert due_times(1.0, [100 * SECOND, 101 * SECOND, 5 * SECOND, 7 * SECOND]) == pytest.approx([0, 1, 1, 3])


def test_early_return_of_wait() -> None:
    """A wait that is cut short, as by a stop event, ends the waiting."""
    time = Time()
    asked: list[float] = []
    pacer = Pacer(1.0, time.clock, asked.append)
    pacer.wait_for(0)
    pacer.wait_for(3600 * SECOND)
    assert asked == [3600.0]


@pytest.mark.parametrize("rate", [-1.0, float("nan"), float("inf")])
def test_impossible_rate(rate: float) -> None:
    """A rate below zero or without end is a mistake in the options."""
    with pytest.raises(ConfigError, match="rate is"):
        Pacer(rate)


@pytest.fixture
def unpaced() -> Pacer:
    """A pacer that never waits."""
    return Pacer(0)


def test_replay_once(unpaced: Pacer) -> None:
    """Without loop a replay is one pass."""
    assert [frame.log_time_ns for frame in replay(Recording([1, 2, 3]), unpaced)] == [1, 2, 3]


def test_loop_goes_on_counting(unpaced: Pacer) -> None:
    """A loop begins again with sequence numbers that stay unique."""
    frames = replay(Recording([5, 6]), unpaced, loop=True)
    assert [(next(frames).sequence, next(frames).log_time_ns) for _ in range(3)] == [(0, 6), (2, 6), (4, 6)]


def test_a_part_keeps_its_numbers(unpaced: Pacer) -> None:
    """The numbers of the source stay in the first pass; later passes go on from the last one."""

    class Part(Recording):
        def frames(self) -> Iterator[Frame]:
            return (Frame("/front", 7 + number, 0, time, "", IMAGE) for number, time in enumerate(self.log_times))

    assert [frame.sequence for frame in replay(Part([5, 6]), unpaced)] == [7, 8]
    frames = replay(Part([5, 6]), unpaced, loop=True)
    assert [next(frames).sequence for _ in range(6)] == [7, 8, 9, 10, 11, 12]


def test_loop_over_nothing_ends(unpaced: Pacer) -> None:
    """A source without frames is not asked for ever."""
    assert list(replay(Recording([]), unpaced, loop=True)) == []


def test_loop_keeps_its_pace() -> None:
    """The second pass is paced like the first."""
    time = Time()
    frames = replay(Recording([0, SECOND]), Pacer(1.0, time.clock, time.wait), loop=True)
    assert [(next(frames).log_time_ns, time.now - 1000) for _ in range(4)] == [(0, 0), (SECOND, 1), (0, 1), (SECOND, 2)]


def test_stop(unpaced: Pacer) -> None:
    """A replay that is stopped yields nothing more, not even the frame it waited for."""
    stopped: list[bool] = []
    frames = replay(Recording([1, 2, 3]), unpaced, loop=True, is_stopped=lambda: bool(stopped))
    next(frames)
    stopped.append(True)
    assert list(frames) == []


def test_default_clock_and_wait() -> None:
    """The machine's own clock serves when none is given."""
    began = monotonic()
    pacer = Pacer(100.0)
    pacer.wait_for(0)
    pacer.wait_for(SECOND)
    assert monotonic() - began >= 0.01
