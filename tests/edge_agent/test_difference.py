"""Frames as differences to one that a worker has answered: every frame arrives, whatever becomes of workers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import numpy as np
import pytest

from mqinfer import InferResult, Outcome
from mqinfer.bags.frame import Frame
from mqinfer.client.connection import connect
from mqinfer.client.options import ClientOptions
from mqinfer.client.requester import Requester
from mqinfer.cloud_worker.serving.stream_states import StreamStates
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.edge_agent.preparing.choices import check_alone
from mqinfer.edge_agent.preparing.preparer import PreparedFrame, Preparer
from mqinfer.edge_agent.replay import Replay, ReplayOptions
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics, Snapshot
from mqinfer.edge_agent.sinks.view import View
from mqinfer.images.picture import RawImage
from mqinfer.protocol.card import ImageContract
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ConfigError

ROWS, COLUMNS, COUNT = 24, 32, 40
SCENE = np.random.default_rng(1).integers(0, 256, (ROWS, COLUMNS, 3), np.uint8)


def pictures(count: int = COUNT) -> list[Array]:
    """A camera that stands still: noise in a few pixels, and a small thing that moves."""
    noise = np.random.default_rng(2)
    found = []
    for number in range(count):
        picture = SCENE.copy()
        picture[noise.integers(0, ROWS, 9), noise.integers(0, COLUMNS, 9)] += np.uint8(1)
        picture[4:8, number % 28 : number % 28 + 4] = 200
        found.append(picture)
    return found


def frames(sent: Iterable[Array], sources: int = 1) -> Iterator[Frame]:
    """Put pictures into frames of so many streams."""
    for number, pixels in enumerate(sent):
        image = RawImage("rgb8", len(pixels), COLUMNS, 3 * COLUMNS, is_bigendian=False, data=pixels.tobytes())
        source = f"/camera/{number % sources}"
        yield Frame(source, number // sources, number, number, "front", image)


class Seen:
    """A sink that keeps what came back, in the order of writing."""

    def __init__(self, on_written: Callable[[int], None] = lambda _: None) -> None:
        self.results: list[InferResult] = []
        self._on_written = on_written

    def write(self, frame: Frame, view: View, result: InferResult) -> None:  # noqa: ARG002 - a sink's
        """Keep a result."""
        self.results.append(result)
        self._on_written(len(self.results))

    def close(self) -> tuple[Path, ...]:
        """Have no files."""
        return ()


Run = Callable[..., Snapshot]


@pytest.fixture
def workers(
    serve: Callable[..., Worker], write_echo: Callable[..., Path], unique: Callable[[str], str]
) -> list[Worker]:
    """Two workers that return the pictures that they get."""
    url = f"memory://{unique('broker')}"
    repository = write_echo("echo", ("image", "UINT8", [-1, ROWS, COLUMNS, 3]))
    found = [serve(url, repository), serve(url, repository)]
    for worker in found:
        worker.url = url  # type: ignore[attr-defined] # for the client
    return found


@pytest.fixture
def requester(workers: list[Worker], unique: Callable[[str], str]) -> Iterator[Requester]:
    """A client of them; every request must have had one outcome."""
    made = connect(workers[0].url, unique("edge"), options=ClientOptions(window=16))  # type: ignore[attr-defined]
    yield made
    made.close()
    counters = made.counters()
    assert counters.submitted == sum(counters.outcomes.values())


def replay(requester: Requester, sent: Iterable[Frame], sink: Seen, encoding: str = "difference") -> Snapshot:
    """Replay frames, and return the counters, which must balance."""
    statistics = ReplayStatistics()
    preparer = Preparer(ImageContract("image", COLUMNS, ROWS), encoding)
    Replay(requester, preparer, ReplayOptions("echo", window=4, timeout=60.0), statistics, sink).run(sent)
    snapshot = statistics.snapshot()
    snapshot.check()
    assert snapshot.pending == 0
    return snapshot


def check(sink: Seen, sent: list[Array]) -> None:
    """Check that each frame came back once, in order, with the picture that was recorded."""
    assert [result.outcome for result in sink.results] == [Outcome.OK] * len(sent)
    for result, picture in zip(sink.results, sent, strict=True):
        np.testing.assert_array_equal(result.outputs["image"][0], picture)


def test_still_frames_are_small_and_exact(requester: Requester, workers: list[Worker]) -> None:
    """Of two workers that compete, each stream keeps to the one that has its reference, and none is asked in vain."""
    sent, sink, whole = pictures(), Seen(), Seen()
    small = replay(requester, frames(sent, 2), sink)
    check(sink, sent)
    large = replay(requester, frames(sent, 2), whole, "png")
    check(whole, sent)
    assert small.bytes_sent < large.bytes_sent / 2
    assert small.retries == 0
    assert sum(worker.counters().get("references_lost", 0) for worker in workers) == 0


@pytest.mark.parametrize("encoding", ["difference", "difference:lz4", "difference:shuffle-lz4"])
def test_workers_that_forget(
    requester: Requester, workers: list[Worker], encoding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a worker lacks is sent again on its own: each frame still has one outcome, and its cost is counted."""
    sent = pictures()

    def forget(written: int) -> None:
        if written % 10 == 0:
            for worker in workers:
                monkeypatch.setattr(worker._service, "_streams", StreamStates(worker._meter.count))

    sink = Seen(forget)
    snapshot = replay(requester, frames(sent), sink, encoding)
    check(sink, sent)
    lost = sum(worker.counters().get("references_lost", 0) for worker in workers)
    assert snapshot.retries == lost > 0
    assert [result.attempts for result in sink.results].count(2) == lost


def test_a_worker_that_stops_in_the_middle(requester: Requester, workers: list[Worker]) -> None:
    """Its frames go to the other worker: differences are refused there and sent again on their own."""
    sent = pictures()

    def stop(written: int) -> None:
        if written == 10:
            first = next(each for each in workers if each.name == sink.results[-1].worker)
            first.stop()

    sink = Seen(stop)
    replay(requester, frames(sent), sink)
    check(sink, sent)
    assert len({result.worker for result in sink.results}) == 2


def test_a_scene_that_changes_its_size_starts_anew() -> None:
    """A stream whose pictures change their size is encoded on its own until a worker has one of the new size."""
    sent = pictures(12)
    preparer = Preparer(ImageContract("image"), "difference")

    def prepared(*pictures: Array) -> list[PreparedFrame]:
        return [preparer.prepare(frame, lambda *_: None) for frame in frames(pictures)]

    first = prepared(*sent[:2], sent[2][:8])
    assert [frame.tensors[0].encoding for frame in first] == ["png"] * 3
    assert ["keep" in frame.tensors[0].parameters for frame in first] == [True, False, False]
    preparer.on_result(next(frames(sent)), first[0], InferResult("1", Outcome.OK, "echo", worker="w"))
    second = prepared(sent[2][:8], sent[3])
    assert [(frame.tensors[0].encoding, frame.worker) for frame in second] == [("png", ""), ("difference", "w")]


def test_a_spool_needs_frames_that_stand_on_their_own() -> None:
    """Differences to a spool are refused before anything is read; so are codecs that would lose something."""
    with pytest.raises(ConfigError, match=r"--encoding difference needs the frames before, .* jpeg:90, png or bayer"):
        check_alone("difference")
    for wish, words in (("difference:jpeg:90", "differences lose nothing"), ("difference:no", "unknown encoding 'no'")):
        with pytest.raises(ConfigError, match=words):
            check_alone(wish)
