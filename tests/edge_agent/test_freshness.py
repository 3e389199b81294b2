from __future__ import annotations

import heapq
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer.client.result import InferResult
from mqinfer.client.window import DelayWindow, Policy, StreamWindow
from mqinfer.cloud_worker.batching.batcher import Batch, Batcher, FixedPolicy, Ready
from mqinfer.edge_agent.preparing.quality_ladder import FULL_QUALITY, QualityBounds, QualityLadder, QualityStep
from mqinfer.fair_queue import PRIORITY_TURNS, FairQueue
from mqinfer.protocol.types import Outcome, Timings


@dataclass
class Served:
    """What a simulated stream came to, in seconds."""

    ages: list[float]
    lost: int
    windows: list[int]


def live(frames: int, interval: float, service: float, workers: int = 1, most: int = 8) -> Served:
    """Simulate a stream of the policy `latest` against workers that share one queue, without any network."""
    stream: StreamWindow[float] = StreamWindow(Policy.LATEST, most)
    free = [0.0] * workers
    events: list[tuple[float, int, float, Timings]] = []
    served = Served([], 0, [])

    def send(taken: float, now: float) -> None:
        start = max(now, heapq.heappop(free))
        heapq.heappush(free, start + service)
        timings = Timings(server_queue=round((start - now) * 1e9), inference=round(service * 1e9))
        heapq.heappush(events, (start + service, len(served.ages) + len(events), taken, timings))

    def settle(until: float) -> None:
        while events and events[0][0] <= until:
            now, _, taken, timings = heapq.heappop(events)
            served.ages.append(now - taken)
            served.windows.append(stream.limit)
            stream.finish(InferResult("", Outcome.OK, "m", timings=timings), now)
            for following in stream.take():
                send(following, now)

    for number in range(frames):
        now = number * interval
        settle(now)
        served.lost += stream.put(now) is not None
        for entered in stream.take():
            send(entered, now)
    settle(float("inf"))
    assert stream.in_flight == 0
    assert stream.take() == [], "nothing is queued"
    assert len(served.ages) + served.lost == frames
    return served


@pytest.mark.parametrize("overload", [1.5, 5, 20])
def test_overload_makes_no_frame_old(overload: float) -> None:
    """No answered frame is older than 2.5 service times, from the first one on, and the worker is kept busy."""
    served = live(2000, 0.1 / overload, 0.1)
    assert max(served.ages) <= 2.5 * 0.1
    assert len(served.ages) >= 0.95 * 2000 / overload


def test_without_overload_nothing_is_lost() -> None:
    """Every frame is answered, as old as the model's time makes it."""
    served = live(500, 0.1, 0.05)
    assert served.lost == 0
    assert max(served.ages) <= 0.06


def test_the_window_follows_the_number_of_workers() -> None:
    """Three workers get three frames at a time, and all of their capacity is used."""
    served = live(3000, 0.01, 0.1, workers=3)
    assert 3 <= sorted(served.windows)[len(served.windows) // 2] <= 4
    assert len(served.ages) >= 0.9 * 3000 * 0.01 * 3 / 0.1


def test_slow_start_and_recovery() -> None:
    """It begins with one request, doubles each round trip, and begins anew after a time-out."""
    window = DelayWindow(16)
    quick = Timings(inference=10_000_000)
    assert window.limit == 1
    window.on_reply(quick, 0.0)
    assert window.limit == 2
    for _ in range(2):
        window.on_reply(quick, 0.0)
    assert window.limit == 4
    window.on_timeout()
    assert window.limit == 1
    for _ in range(20):
        window.on_reply(quick, 0.0)
    assert window.limit == 16


def test_a_long_way_is_filled_quickly() -> None:
    """Also where freshness counts: ten times the model's time on the way are ten requests that don't wait."""
    window = DelayWindow(16, 0.5)
    for _ in range(9):
        window.on_reply(Timings(inference=10_000_000, transmission=90_000_000), 0.0)
    assert window.limit == 10
    for _ in range(9):
        window.on_reply(Timings(inference=10_000_000, transmission=90_000_000), 0.0)
    assert window.limit == 10


def test_a_decrease_leaves_two_of_three() -> None:
    """The third one waited; with one alone a thin link would be idle while it is on its way. Of two one is left."""
    window = DelayWindow(16, 0.5)
    for _ in range(2):
        window.on_reply(Timings(inference=10_000_000, transmission=90_000_000), 0.0)
    assert window.limit == 3
    late = Timings(inference=10_000_000, transmission=490_000_000)
    window.on_reply(late, 10.0)
    assert window.limit == 2
    window.on_reply(late, 20.0)
    assert window.limit == 1


def test_a_thin_link_is_seen_in_the_transmission() -> None:
    """What waits on the way counts like what waits in the worker."""
    window = DelayWindow(16)
    window.on_reply(Timings(inference=10_000_000, transmission=5_000_000), 0.0)
    for number in range(1, 8):
        late = Timings(inference=10_000_000, transmission=5_000_000 + 30_000_000 * number)
        window.on_reply(late, float(number))
    assert window.limit == 1


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 10**9), st.integers(0, 10**9)), max_size=200))
def test_the_window_keeps_its_bounds(replies: list[tuple[bool, int, int]]) -> None:
    """Whatever the replies say, at least 1 and at most what the user allows."""
    window = DelayWindow(5)
    for number, (is_answered, queue, inference) in enumerate(replies):
        if is_answered:
            window.on_reply(Timings(server_queue=queue, inference=inference), float(number))
        else:
            window.on_timeout()
        assert 1 <= window.limit <= 5


@dataclass
class Player:
    """Plays seconds of a stream to a ladder, from time 0."""

    ladder: QualityLadder
    now: int = 0

    def play(self, seconds: int, offered: int, answered: int) -> list[QualityStep]:
        """Count so many frames and results in each second; return the step after each."""
        steps = []
        for second in range(self.now, self.now + seconds):
            for number in range(offered):
                self.ladder.on_frame(second + number / offered)
            for _ in range(answered):
                self.ladder.on_result()
            steps.append(self.ladder.step)
        self.now += seconds
        return steps


def test_quality_goes_before_size_and_both_stay_within_bounds() -> None:
    """With too few frames answered: quality 80, 70, 60, then 0.8 and 0.64 of the size, and no further."""
    ladder = QualityLadder(QualityBounds(min_rate=5, min_quality=60, min_scale=0.6), 90)
    steps = Player(ladder).play(30, offered=10, answered=1)
    distinct = [step for number, step in enumerate(steps) if number == 0 or step != steps[number - 1]]
    assert distinct == [
        FULL_QUALITY,
        QualityStep(80),
        QualityStep(70),
        QualityStep(60),
        QualityStep(60, 0.8),
        QualityStep(60, 0.8 * 0.8),
    ]


def test_what_was_given_up_comes_back() -> None:
    """Where more frames come through than need, a step back is tried after a while."""
    ladder = QualityLadder(QualityBounds(min_rate=5), 90)
    player = Player(ladder)
    player.play(8, offered=10, answered=1)
    assert ladder.step != FULL_QUALITY
    player.play(60, offered=10, answered=10)
    assert ladder.step == FULL_QUALITY


def test_without_a_least_rate_only_frames_are_given_up() -> None:
    """The user has to say below which rate a worse picture is better than fewer."""
    ladder = QualityLadder(QualityBounds(), 90)
    assert set(Player(ladder).play(20, offered=10, answered=0)) == {FULL_QUALITY}


def test_a_slow_source_asks_for_no_more_than_it_has() -> None:
    """Two frames a second that are all answered are enough, whatever the least rate says."""
    ladder = QualityLadder(QualityBounds(min_rate=5), 90)
    assert set(Player(ladder).play(20, offered=2, answered=2)) == {FULL_QUALITY}


def test_frames_that_are_no_jpeg_have_only_size_to_give() -> None:
    """There is no quality to lower."""
    ladder = QualityLadder(QualityBounds(min_rate=5, min_scale=0.8), None)
    assert Player(ladder).play(10, offered=10, answered=0)[-1] == QualityStep(None, 0.8)


def shares(*priorities: int) -> list[list[float]]:
    """Simulate streams of the policy `latest` at 3x overload of one worker, and return the ages of their results."""
    service, seconds = 0.05, 100.0
    interval = len(priorities) * service / 3
    streams: list[StreamWindow[float]] = [StreamWindow(Policy.LATEST, 8, priority) for priority in priorities]
    batcher: Batcher[tuple[int, float, float]] = Batcher(lambda: FixedPolicy(1))
    turns: FairQueue[None] = FairQueue()
    ages: list[list[float]] = [[] for _ in priorities]
    frames = [(interval * (number + which / 2), which) for which in range(len(streams)) for number in range(4000)]
    heapq.heapify(frames)
    running: tuple[float, float, tuple[int, float, float]] | None = None  # ends, began, what

    def send(which: int, now: float) -> None:
        for taken in streams[which].take():
            level = (priorities[which] or 2) - 1
            batcher.add(Ready((which, taken, now), "", 1, str(which), level), now, turns.next_turn(str(which)))

    now = 0.0
    while now < seconds:
        if running is None and (batch := batcher.take(now)) is not None:
            assert isinstance(batch, Batch)
            turns.served(batch.turn)
            running = now + service, now, batch.items[0]
        if running is not None and running[0] <= frames[0][0]:
            now, began, (which, taken, sent) = running
            running = None
            ages[which].append(now - taken)
            timings = Timings(server_queue=round((began - sent) * 1e9), inference=round(service * 1e9))
            streams[which].finish(InferResult("", Outcome.OK, "m", timings=timings), now)
        else:
            now, which = heapq.heappop(frames)
            streams[which].put(now)
        send(which, now)
    return ages


def test_the_share_of_a_priority() -> None:
    """Without one two streams have half each; one of priority 1 most, no older than before, and the other its part."""
    equal, preferred = shares(0, 0), shares(1, 0)
    assert len(equal[0]) == pytest.approx(len(equal[1]), rel=0.05)
    total = sum(map(len, preferred))
    assert total >= 0.95 * sum(map(len, equal))
    assert len(preferred[0]) > 0.8 * total
    assert len(preferred[1]) >= total // (1 + PRIORITY_TURNS)
    assert max(preferred[0]) <= 4 * 0.05
