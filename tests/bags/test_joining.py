from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.bags.frame import Frame, StreamInfo
from mqinfer.bags.joining import FIRST, MOST_SAMPLES, MOST_WAITING, NO_PARTNER, STOPPED, Join, JoinedSource, TimeJoin
from mqinfer.images.picture import RawImage
from mqinfer.protocol.errors import ConfigError, SourceError
from tests.bags.point_messages import imu

MS = 1_000_000
NOTHING = RawImage("mono8", 1, 1, 1, is_bigendian=False, data=b"\0")


def frame(source: str, stamp: int, number: int = 0) -> Frame:
    """Make a frame."""
    return Frame(source, number, stamp, stamp, "", NOTHING)


def join_all(frames: Sequence[Frame], topics: Sequence[str], tolerance: float = 0.0) -> tuple[list[Frame], TimeJoin]:
    """Join frames, and what is left at their end."""
    joining = TimeJoin(topics, tolerance)
    found = [each for one in frames for each in joining.add(one)]
    return found + joining.flush(), joining


def stamps(found: Sequence[Frame]) -> list[tuple[int, ...]]:
    """Return the stamps of joined frames."""
    return [tuple(each.capture_time_ns for each in (one, *one.joined)) for one in found]


def test_equal_stamps_go_together() -> None:
    """At once, in the order of the topics named, and each frame without a partner is counted."""
    joining = TimeJoin(["/left", "/right"])
    assert joining.add(frame("/right", 1)) == []
    assert stamps(joining.add(frame("/left", 1))) == [(1, 1)]
    assert joining.add(frame("/left", 2)) == []
    assert joining.add(frame("/right", 3)) == []
    assert stamps(joining.add(frame("/left", 3))) == [(3, 3)]
    assert joining.add(frame("/right", 4)) == []
    assert joining.flush() == []
    assert joining.missed == {("/left", NO_PARTNER): 1, ("/right", NO_PARTNER): 1}


@pytest.mark.parametrize("topics", [("/left", "/right"), ("/left", "/right", "/rear")])
@pytest.mark.parametrize("tolerance", [0.012, 0.049])
@pytest.mark.parametrize("seed", range(3))
def test_no_pair_of_a_thousand_is_wrong(topics: tuple[str, ...], tolerance: float, seed: int) -> None:
    """At 10 Hz with 5 ms of jitter either way, a tenth of the frames dropped, and topics in any order."""
    dice = random.Random(seed)  # noqa: S311  jitter
    ticks: list[Frame] = []
    kept: dict[int, set[str]] = {}
    for number in range(1000):
        for topic in topics:
            if dice.random() < 0.9:
                kept.setdefault(number, set()).add(topic)
                ticks.append(frame(topic, number * 100 * MS + dice.randint(-5 * MS, 5 * MS), number))
    late = {topic: dice.randint(0, 400 * MS) for topic in topics}  # how long a topic's frames take to come
    ticks.sort(key=lambda each: each.capture_time_ns + late[each.source])
    found, joining = join_all(ticks, topics, tolerance)
    assert all(each.sequence == one.sequence for one in found for each in one.joined)
    assert {one.sequence for one in found} == {number for number, there in kept.items() if there == set(topics)}
    assert len(found) * len(topics) + joining.missed.total() == len(ticks)


TIMES = st.lists(st.integers(0, 60), unique=True, max_size=25).map(sorted)


@given(left=TIMES, right=TIMES, tolerance=st.integers(0, 8), order=st.randoms(use_true_random=False))
def test_pairs_depend_on_the_stamps_alone(
    left: list[int], right: list[int], tolerance: int, order: random.Random
) -> None:
    """However the topics take turns; each frame is in one pair or counted, and pairs keep to tolerance and order."""
    frames = {"/left": [frame("/left", each) for each in left], "/right": [frame("/right", each) for each in right]}
    one_by_one = frames["/left"] + frames["/right"]
    turns = ["/left"] * len(left) + ["/right"] * len(right)
    order.shuffle(turns)
    waiting = {topic: iter(each) for topic, each in frames.items()}
    shuffled = [next(waiting[topic]) for topic in turns]
    found, joining = join_all(one_by_one, ["/left", "/right"], tolerance / 1e9)
    assert stamps(join_all(shuffled, ["/left", "/right"], tolerance / 1e9)[0]) == stamps(found)
    pairs = stamps(found)
    assert pairs == sorted(pairs)
    assert all(abs(one - other) <= tolerance for one, other in pairs)
    assert len({other for _, other in pairs}) == len(pairs)
    assert 2 * len(pairs) + joining.missed.total() == len(one_by_one)
    assert set(left) & set(right) <= {one for one, other in pairs if one == other}


def test_a_topic_that_stops_costs_bounded_memory() -> None:
    """What waits too long is left out, oldest first; what comes again is joined again."""
    joining = TimeJoin(["/left", "/right"], 0.01)
    for number in range(500):
        assert joining.add(frame("/left", number * 100 * MS)) == []
    assert joining.missed == {("/left", STOPPED): 500 - MOST_WAITING}
    found = joining.add(frame("/right", 499 * 100 * MS))
    assert stamps(found) == [(499 * 100 * MS, 499 * 100 * MS)]
    assert joining.missed.total() == 499
    pixels = np.broadcast_to(np.zeros(1, np.uint8), 200 << 20).data  # one byte of memory
    large = replace(frame("/left", 0), image=replace(NOTHING, data=pixels))
    joining = TimeJoin(["/left", "/right"])
    for number in range(5):
        assert joining.add(replace(large, capture_time_ns=number)) == []
    assert joining.missed == {("/left", STOPPED): 3}


def test_a_stamp_that_steps_back_starts_anew() -> None:
    """A clock that was set on both cameras: pairs go on."""
    frames = [frame(topic, stamp) for stamp in (10, 20, 3, 13, 23) for topic in ("/left", "/right")]
    found, joining = join_all(frames, ["/left", "/right"])
    assert stamps(found) == [(10, 10), (20, 20), (3, 3), (13, 13), (23, 23)]
    assert not joining.missed


def sample(stamp: int) -> Frame:
    """Make a frame of an IMU."""
    return replace(frame("/imu", stamp), points=(imu(stamp % 2**31, stamp),))


def windows(found: Sequence[Frame]) -> dict[int, list[int]]:
    """Return the stamps of the samples, the last topic's, by the stamp of the frame that they go with."""
    return {one.capture_time_ns: [each.header.stamp.nanosec for each in one.joined[-1].points] for one in found}


@given(left=TIMES, right=TIMES, samples=st.lists(st.integers(0, 60), max_size=25).map(sorted), order=st.randoms())
def test_samples_until_each_frame(left: list[int], right: list[int], samples: list[int], order: random.Random) -> None:
    """However the topics take turns; a frame before the first sample or behind the last one is left out."""
    topics = {
        "/left": [frame("/left", each) for each in left],
        "/right": [frame("/right", each) for each in right],
        "/imu": [sample(each) for each in samples],
    }
    turns = [name for name, frames in topics.items() for _ in frames]
    order.shuffle(turns)
    waiting = {topic: iter(each) for topic, each in topics.items()}
    found, joining = join_all([next(waiting[name]) for name in turns], list(topics))
    assert [each.capture_time_ns for each in found] == [
        each for each in left if each in right and any(one <= each for one in samples) and samples[-1] >= each
    ]
    last = {each: [one for one in samples if one <= each] for each in left}
    got = windows(found)
    assert {each: (set(window), window[-1]) for each, window in got.items()} == {
        each: (set(last[each]), last[each][-1]) for each in got
    }
    assert joining.missed.total() == len(left) + len(right) - 2 * len(found)
    assert not [topic for topic, _ in joining.missed if topic == "/imu"]


def test_an_imu_costs_bounded_memory() -> None:
    """Of ten times as many samples the last ones are kept; without new ones pictures wait no longer than others."""
    joining = TimeJoin(["/left", "/imu"])
    assert not [each for stamp in range(10 * MOST_SAMPLES) for each in joining.add(sample(stamp))]
    (found,) = joining.add(frame("/left", 10 * MOST_SAMPLES - 1))
    assert windows([found]) == {10 * MOST_SAMPLES - 1: list(range(9 * MOST_SAMPLES, 10 * MOST_SAMPLES))}
    assert (found.joined[0].capture_time_ns, found.joined[0].source) == (10 * MOST_SAMPLES - 1, "/imu")
    assert not [each for number in range(1, 100) for each in joining.add(frame("/left", 10**6 * number))]
    assert joining.missed == {("/left", STOPPED): 99 - MOST_WAITING}


class Source:
    """A source with two topics that may break off."""

    def __init__(self, frames: Sequence[Frame], *, breaks: bool = False) -> None:
        self._frames = frames
        self._breaks = breaks

    def streams(self) -> tuple[StreamInfo, ...]:
        """List the topics."""
        names = sorted({each.source for each in self._frames})
        return tuple(StreamInfo(name, "sensor_msgs/msg/Image", "mono8", 1, 1, 3, 10.0) for name in names)

    def frames(self) -> Iterator[Frame]:
        """Yield the frames."""
        yield from self._frames
        if self._breaks:
            raise SourceError("the bag is damaged")

    def close(self) -> None:
        """Have nothing open."""


def test_a_source_that_breaks_off() -> None:
    """What is complete comes before the error, with what was left out before it; the second pass starts anew."""
    frames = [frame("/left", 10), frame("/left", 20), frame("/right", 21), frame("/right", 90)]
    source = JoinedSource(Source(frames, breaks=True), Join(("/left", "/right"), (), 1e-9 * 5))
    for expected in (1, 2):
        reading = source.frames()
        first = next(reading)
        assert stamps([first]) == [(20, 21)]
        assert first.missed == {("/left", NO_PARTNER): 1, ("/right", NO_PARTNER): 1}
        with pytest.raises(SourceError, match="damaged"):
            next(reading)
        assert source.missed == {("/left", NO_PARTNER): expected, ("/right", NO_PARTNER): expected}
    assert [(each.source, each.count) for each in source.streams()] == [("/left", None)]


def test_each_frame_with_the_one_before() -> None:
    """Of its own stream; the first of each has none."""
    frames = [frame(topic, stamp, stamp) for stamp in range(3) for topic in ("/left", "/right")]
    source = JoinedSource(Source(frames), Join.parse(["previous"]))
    found = list(source.frames())
    assert [(each.source, each.sequence, each.joined[0].source, each.joined[0].sequence) for each in found] == [
        (topic, stamp, topic, stamp - 1) for stamp in (1, 2) for topic in ("/left", "/right")
    ]
    assert source.missed == Counter({("/left", FIRST): 1, ("/right", FIRST): 1})
    assert not found[-1].joined[0].joined


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["/left,/right"], Join(("/left", "/right"))),
        (["/left", "/right"], Join(("/left", "/right"))),
        (["l=/left", "r=/right"], Join(("/left", "/right"), ("l", "r"))),
        (["previous"], Join()),
        (["before=previous"], Join((), ("", "before"))),
    ],
)
def test_what_join_takes(options: list[str], expected: Join) -> None:
    """Topics, inputs with their topics, or the frame before."""
    assert Join.parse(options) == expected


@pytest.mark.parametrize(
    ("options", "tolerance", "message"),
    [
        (["/left"], 0.0, "two topics or more"),
        (["/left,"], 0.0, "expected different topics"),
        (["/left", "/left"], 0.0, "expected different topics"),
        (["l=/left", "/right"], 0.0, "name an input for each topic"),
        (["l=/left", "l=/right"], 0.0, "name an input for each topic"),
        (["/left,previous"], 0.0, "goes without topics"),
        (["previous"], 0.1, "needs no --tolerance"),
        (["/left,/right"], math.nan, "--tolerance nan: expected seconds"),
        (["/left,/right"], math.inf, "--tolerance inf: expected seconds"),
        (["/left,/right"], -0.1, "--tolerance -0.1: expected seconds"),
    ],
)
def test_what_join_refuses(options: list[str], tolerance: float, message: str) -> None:
    """With what to write instead."""
    with pytest.raises(ConfigError, match=message):
        Join.parse(options, tolerance)
