from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mqinfer import InferResult, Outcome
from mqinfer.bags.frame import Frame
from mqinfer.client.connection import LiveRegistry, connect
from mqinfer.client.requester import Requester
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.edge_agent.frames.times import Clocks, EdgeStage, Laps, LinkStage
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.replay import Pacer, Replay
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.images.picture import RawImage
from mqinfer.protocol.card import ImageContract
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Scalar, Timings

MS = 1_000_000
WORKED = Timings(2 * MS, 30 * MS, 5 * MS, 1 * MS, 2 * MS, 20 * MS, 3 * MS, 4 * MS)
"""Of a worker whose stages take 35 ms; the network takes 30 ms."""


def result_of(
    submitted_ns: int, timings: Timings = WORKED, *, worker: str = "w", stamps: tuple[int, int] | None = None
) -> InferResult:
    """Make the outcome of a request."""
    parameters: dict[str, Scalar] = {} if stamps is None else {"received_time_ns": stamps[0], "sent_time_ns": stamps[1]}
    return InferResult(
        "1",
        Outcome.OK if worker else Outcome.EXPIRED,
        "m",
        worker=worker,
        timings=timings,
        attempts=1,
        parameters=parameters,
        submitted=submitted_ns / 1e9,
    )


def clocks_at(now_ms: int, wall_ms: int) -> Clocks:
    """Make the clocks of an edge."""
    return Clocks(lambda: now_ms * MS, lambda: wall_ms * MS)


@pytest.fixture
def requester(edge: Callable[..., Requester], write_echo: Callable[..., Path]) -> Requester:
    """A client of an echo model over an in-memory broker."""
    return edge(write_echo("echo", ("image", "UINT8", [-1, 12, 16, 3])))


def test_each_moment_of_a_frame_belongs_to_one_stage() -> None:
    """The stages of preparing, of the request and of the way back, with what no stage names beside them."""
    laps = Laps(100 * MS, read=10 * MS)
    laps.begin(EdgeStage.OTHER, 105 * MS)
    laps.measured(EdgeStage.DEMOSAIC, 7 * MS)
    laps.measured(EdgeStage.ENCODE, 8 * MS)
    laps.begin(EdgeStage.SPOOL, 121 * MS)
    # Submitted at 125, sent at 127, received by the worker at 147, replied at 184, received at 194, decoded at 196.
    result = result_of(125 * MS, stamps=(5_000_147 * MS, 5_000_184 * MS))
    times = laps.end(result, 196 * MS, clocks_at(200, 1_000_200))
    assert dict(times.stages) == {
        "edge_read": 10 * MS,
        "edge_queue": 5 * MS,
        "edge_demosaic": 7 * MS,
        "edge_encode": 8 * MS,
        "edge_other": 1 * MS,
        "edge_spool": 4 * MS,
        "client_queue": 2 * MS,
        "transmission_up": 14 * MS,
        "server_queue": 5 * MS,
        "decode": 1 * MS,
        "preprocess": 2 * MS,
        "inference": 20 * MS,
        "postprocess": 3 * MS,
        "encode": 4 * MS,
        "server_other": 2 * MS,
        "transmission_down": 14 * MS,
        "settle": 4 * MS,
    }
    assert sum(times.stages.values()) == times.total == 106 * MS
    assert times.offset is not None
    assert (times.offset.offset, times.offset.uncertainty) == (4_000_006 * MS, 14 * MS)


def test_a_worker_without_stamps_leaves_the_network_whole() -> None:
    """An older worker: up and down are not split, and its clock is not known."""
    laps = Laps(100 * MS)
    times = laps.end(result_of(100 * MS), 170 * MS, clocks_at(170, 170))
    assert times.stages["transmission"] == 30 * MS
    assert not {LinkStage.UP, LinkStage.DOWN, LinkStage.SERVER_OTHER} & times.stages.keys()
    assert (times.total, times.offset) == (70 * MS, None)


HALF = {"edge_read": 5 * MS, "edge_queue": 30 * MS}


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (InferResult("", Outcome.SUPERSEDED, "m"), {"edge_read": 5 * MS, "edge_queue": 60 * MS}),
        (result_of(130 * MS, worker=""), {**HALF, "unanswered": 30 * MS}),
        (result_of(130 * MS, Timings(inference=10**18)), {**HALF, "transmission": 30 * MS}),
    ],
    ids=["superseded", "no reply", "a worker that lies"],
)
def test_every_outcome_has_a_split(outcome: InferResult, expected: dict[str, int]) -> None:
    """Also frames that never became a request, got no reply, or a reply with impossible times."""
    times = Laps(100 * MS, read=5 * MS).end(outcome, 160 * MS, clocks_at(160, 160))
    assert dict(times.stages) == expected
    assert sum(times.stages.values()) == times.total == 65 * MS


LENGTHS = st.integers(0, 10**10)


@given(
    steps=st.lists(st.tuples(st.sampled_from(list(EdgeStage)), LENGTHS), max_size=6),
    waits=st.tuples(LENGTHS, LENGTHS),
    timings=st.builds(Timings, *[LENGTHS] * 8),
    stamps=st.tuples(st.integers(-(2**63), 2**63 - 1), st.integers(-(2**63), 2**63 - 1)),
)
def test_the_stages_sum_to_the_total(
    steps: list[tuple[EdgeStage, int]], waits: tuple[int, int], timings: Timings, stamps: tuple[int, int]
) -> None:
    """Whatever the worker states, true or not."""
    now = 7 * 10**9
    laps = Laps(now, read=3)
    for stage, length in steps:
        now += length
        laps.begin(stage, now)
    submitted = now + waits[0]
    times = laps.end(result_of(submitted, timings, stamps=stamps), submitted + waits[1], clocks_at(7, 7))
    assert abs(sum(times.stages.values()) - times.total) < 10_000  # seconds as a float lose some nanoseconds
    assert min(times.stages.values(), default=0) >= 0


def test_waiting_until_a_frame_is_due_is_no_reading() -> None:
    """The pacer counts how long it has waited."""
    now = [50.0]
    pacer = Pacer(1.0, lambda: now[0], lambda seconds: now.__setitem__(0, now[0] + seconds))
    for stamp in (0, 250 * MS, 1000 * MS):
        pacer.wait_for(stamp)
    assert pacer.waited_ns == pytest.approx(1000 * MS)


def test_what_a_source_waited_is_no_reading(requester: Requester) -> None:
    """The replay takes it off the time of reading."""
    pacer = Pacer(0)

    def paced() -> Iterator[Frame]:
        for frame in Watched().frames(3):
            pacer.waited_ns += 10**12
            yield frame

    sink = Watched()
    preparer, options = Preparer(ImageContract("image", 16, 12), "lz4"), ReplayOptions("echo")
    Replay(requester, preparer, options, ReplayStatistics(), sink, pacer=pacer).run(paced())
    assert len(sink.found) == 3
    assert all("edge_read" not in view.times.stages for view, _ in sink.found)


@dataclass
class Watched:
    """A source and a sink that note when each frame came, and when its result was there."""

    asked: list[int] = field(default_factory=list)
    given: list[int] = field(default_factory=list)
    written: list[int] = field(default_factory=list)
    found: list[tuple[FrameView, InferResult]] = field(default_factory=list)

    def frames(self, count: int) -> Iterator[Frame]:
        """Yield frames."""
        for number in range(count):
            self.asked.append(time.monotonic_ns())
            pixels = np.full((24, 32, 3), number, np.uint8)
            image = RawImage("rgb8", 24, 32, 96, is_bigendian=False, data=pixels.tobytes())
            frame = Frame("/camera", number, number + 1, number + 1, "", image)
            self.given.append(time.monotonic_ns())
            yield frame

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Note a result."""
        del frame
        self.written.append(time.monotonic_ns())
        self.found.append((view, result))

    def close(self) -> tuple[Path, ...]:
        """Have no files."""
        return ()


@pytest.mark.broker
def test_a_run_through_a_broker(
    broker_url: str, serve: Callable[..., Worker], write_echo: Callable[..., Path], unique: Callable[[str], str]
) -> None:
    """Every frame's stages sum to its total, which fits what others saw; edge and worker have one clock here."""
    topics, watched, count = Topics(unique("root")), Watched(), 40
    serve(broker_url, write_echo("echo", ("image", "UINT8", [-1, 12, 16, 3])), topics=topics)
    with closing(connect(broker_url, unique("edge"), topics=topics)) as requester:
        LiveRegistry(requester).get("echo", 10.0)
        preparer = Preparer(ImageContract("image", 16, 12), "lz4")
        statistics = ReplayStatistics()
        replay = Replay(requester, preparer, ReplayOptions("echo", window=3), statistics, watched)
        replay.run(watched.frames(count))
    assert len(watched.found) == count
    for number, (view, result) in enumerate(watched.found):
        times = view.times
        assert abs(sum(times.stages.values()) - times.total) < MS
        least = round(result.submitted * 1e9) + result.timings.total - watched.given[number]
        assert least - MS <= times.total <= watched.written[number] - watched.asked[number]
        assert times.stages.keys() >= {"edge_encode", "transmission_up", "inference", "transmission_down", "settle"}
        assert times.offset is not None
        assert abs(times.offset.offset) <= times.offset.uncertainty + MS // 100
    snapshot = statistics.snapshot()
    assert snapshot.stages["transmission_up"].p50 is not None
    assert snapshot.frame_latency.p50 is not None
    assert list(replay.clocks.offsets()) == [watched.found[0][1].worker]
