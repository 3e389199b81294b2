"""A replay in H.264 over an in-memory broker: connections and workers are lost, and each picture is its own frame's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.bags.frame import Frame
from mqinfer.broker.memory import MemoryLink
from mqinfer.client.connection import connect
from mqinfer.client.window import Policy
from mqinfer.cloud_worker.serving.stream_states import StreamStates
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.replay import Replay
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics, Snapshot
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.images.picture import RawImage
from mqinfer.protocol.card import ImageContract
from mqinfer.protocol.types import Outcome
from tests.edge_agent.kept import Kept
from tests.patience import STEADY, wait_until

HEIGHT, WIDTH, FRAMES = 32, 48, 60


@cache
def picture(number: int) -> Any:
    """Return the picture of a frame: its brightness and its noise tell its number."""
    noise = np.random.default_rng(number).integers(0, 60, (HEIGHT, WIDTH, 1), np.uint8)
    return np.repeat(noise + np.uint8(37 * number % 190), 3, axis=2)


@dataclass
class Stand:
    """Two workers that return the pictures that they decoded, and an edge."""

    url: str
    workers: list[Worker]
    links: list[MemoryLink]

    def replay(
        self, disturb: Callable[[int, Stand, MemoryLink, Kept], None], policy: Policy = Policy.ALL
    ) -> tuple[Kept, Snapshot]:
        """Send frames, and disturb before each; assert one outcome each, in order, and its own frame's picture."""
        seen, statistics = Kept(), ReplayStatistics()
        with closing(connect(self.url, "edge", options=STEADY)) as requester:
            link = requester.link
            assert isinstance(link, MemoryLink)
            # A request to all workers of a model, while none is known, may reach one that lacks the pictures before it.
            wait_until(lambda: len(requester.registry.models.ready_workers("echo")) == len(self.workers))

            def frames() -> Iterator[Frame]:
                for number in range(FRAMES):
                    disturb(number, self, link, seen)
                    data = picture(number).tobytes()
                    image = RawImage("rgb8", HEIGHT, WIDTH, 3 * WIDTH, is_bigendian=False, data=data)
                    yield Frame("/camera", number, number, number, "camera", image)
                link.restore()

            preparer = Preparer(ImageContract("image", WIDTH, HEIGHT), "h264:15")
            Replay(requester, preparer, ReplayOptions("echo", policy=policy), statistics, seen).run(frames())
            counters = requester.counters()
        assert (counters.pending, counters.submitted) == (0, sum(counters.outcomes.values()))
        snapshot = statistics.snapshot()
        snapshot.check()
        assert [each.capture.sequence for each in seen.results] == list(range(FRAMES))
        for number, result in enumerate(seen.results):
            if result.outcome is Outcome.OK:
                error = np.abs(result.outputs["image"][0].astype(int) - picture(number)).mean()
                assert error < 10, f"frame {number}: the picture is broken or another one"
        return seen, snapshot


@pytest.fixture
def stand(url: str, serve: Callable[..., Worker], write_echo: Callable[..., Path]) -> Stand:
    """Two workers on a broker of this test's own."""
    links = list[MemoryLink]()
    repository = write_echo("echo", ("image", "UINT8", [-1, HEIGHT, WIDTH, 3]))
    workers = [serve(url, repository, links=links) for _ in range(2)]
    return Stand(url, workers, links)


def test_a_calm_stream_is_small_and_asks_for_nothing_in_vain(stand: Stand) -> None:
    """Of two workers that compete, the stream keeps to the one that has its pictures."""
    _, snapshot = stand.replay(lambda *_: None)
    assert snapshot.outcomes[Outcome.OK] == FRAMES
    assert snapshot.retries == 0
    assert snapshot.bytes_sent < FRAMES * HEIGHT * WIDTH * 3 / 2
    assert sum(worker.statistics().counters.get("references_lost", 0) for worker in stand.workers) == 0


def test_workers_that_forget(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a worker lacks is sent again on its own: each frame still has one outcome, and its cost is counted."""

    def disturb(number: int, stand: Stand, link: MemoryLink, seen: Kept) -> None:
        del link
        if number % 10 == 5:
            wait_until(lambda: len(seen.results) >= number - 12)
            for worker in stand.workers:
                monkeypatch.setattr(worker._service, "_streams", StreamStates(worker._meter.count))

    seen, snapshot = stand.replay(disturb)
    assert snapshot.outcomes[Outcome.OK] == FRAMES
    lost = sum(worker.statistics().counters.get("references_lost", 0) for worker in stand.workers)
    assert snapshot.retries == lost > 0
    assert [result.attempts for result in seen.results].count(2) == lost


def test_connections_and_workers_that_are_lost(stand: Stand) -> None:
    """With `all` every frame has its result, whoever is away for a while; the workers say what they lacked."""

    def disturb(number: int, stand: Stand, link: MemoryLink, seen: Kept) -> None:
        if number % 10 == 5:
            wait_until(lambda: len(seen.results) >= number - 12)
            link.drop()
        elif number % 10 == 7:
            link.restore()
        elif number in {28, 48}:  # the one that has the stream
            wait_until(lambda: len(seen.results) >= number - 12)
            names = [worker.name for worker in stand.workers]
            stand.links[names.index(seen.results[-1].worker)].drop()
        elif number in {34, 54}:
            for each in stand.links:
                each.restore()

    seen, snapshot = stand.replay(disturb)
    assert snapshot.outcomes[Outcome.OK] == FRAMES
    assert len({each.worker for each in seen.results}) == 2
    assert sum(worker.statistics().counters.get("references_lost", 0) for worker in stand.workers) >= 1


def test_frames_that_are_superseded_break_no_picture(stand: Stand) -> None:
    """With `latest` and a connection that comes and goes, each frame that has a result has its own picture."""

    def disturb(number: int, stand: Stand, link: MemoryLink, seen: Kept) -> None:
        del stand, seen
        if number % 6 == 3:
            link.drop()
        elif number % 6 == 5:
            link.restore()

    seen, snapshot = stand.replay(disturb, Policy.LATEST)
    assert snapshot.outcomes[Outcome.OK] + snapshot.outcomes[Outcome.SUPERSEDED] == FRAMES
    assert snapshot.outcomes[Outcome.SUPERSEDED]
    assert seen.results[-1].outcome is Outcome.OK
