"""Overload and a thin link with the policies `latest` and `all`, through the edge's own replay."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.faults.fault_proxy import FaultProxy
from mqinfer.bags.frame import Frame
from mqinfer.broker.address import BrokerAddress
from mqinfer.client.connection import connect, random_name
from mqinfer.client.result import InferResult
from mqinfer.client.window import Policy
from mqinfer.cloud_worker.serving.options import WorkerOptions
from mqinfer.cloud_worker.serving.worker import Worker
from mqinfer.cloud_worker.supervision.planning import plan
from mqinfer.cloud_worker.supervision.process import ProcessSpec, serve
from mqinfer.codecs import encode_tensor
from mqinfer.edge_agent.frames.published import PublishedCounts
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.preparing.quality_ladder import QualityBounds
from mqinfer.edge_agent.previews import PreviewDrop, Previews
from mqinfer.edge_agent.replay import Replay
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics, Snapshot
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.images.picture import CompressedImage
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.lab.profiling.memory import resident_bytes
from mqinfer.models.repository import Repository
from mqinfer.protocol.card import ImageContract
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.faults.figures import Figures

Start = Callable[..., Any]
WIDTH, HEIGHT = 968, 608


@dataclass
class Ages:
    """A sink that records the age of the answered frames, and their order.

    Attributes:
        ages: In seconds.
        overtaken: How many other frames were answered between the capture of each and its own answer.
        numbers: Their sequence numbers.
    """

    ages: list[float] = field(default_factory=list)
    overtaken: list[int] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    _answered: list[int] = field(default_factory=list)

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:  # noqa: ARG002 - the sinks' signature
        """Record one result."""
        if result.outcome is Outcome.OK:
            now = time.monotonic_ns()
            self.ages.append((now - frame.capture_time_ns) / 1e9)
            self.overtaken.append(sum(before > frame.capture_time_ns for before in self._answered))
            self._answered.append(now)
            self.numbers.append(frame.sequence)

    def close(self) -> tuple[Path, ...]:
        """Return no files."""
        return ()

    def percentile(self, share: float) -> float:
        """Return the age that a share of the answered frames did not exceed."""
        return sorted(self.ages)[min(len(self.ages) - 1, int(share * len(self.ages)))]


def pictures(width: int, height: int, count: int) -> list[CompressedImage]:
    """Render a drive as JPEG of quality 90, like a camera's."""
    drive = SyntheticDrive(1, width, height)
    scenes = [drive.scene(3 * number).picture for number in range(count)]
    jpegs = [encode_tensor("image", scene[None], "jpeg:90", {"image_encoding": "rgb8"}) for scene in scenes]
    return [CompressedImage("jpeg", bytes(np.asarray(memoryview(jpeg.data)))) for jpeg in jpegs]


def camera(images: list[CompressedImage], rate: float, seconds: float) -> Iterator[Frame]:
    """Yield frames in real time; a late reader gets the newest one, as from a camera's driver."""
    start = time.monotonic()
    taken = -1
    while (now := time.monotonic() - start) < seconds:
        number = int(now * rate)
        if number == taken:
            time.sleep((number + 1) / rate - now)
            continue
        taken = number
        stamp = time.monotonic_ns()
        yield Frame("/camera", number, stamp, stamp, "camera", images[number % len(images)])


@pytest.fixture
def served(tmp_path: Path, broker_url: str, topics: Topics) -> Iterator[Callable[..., None]]:
    """Serve a model that returns pictures of a size after a delay."""
    workers: list[Worker] = []

    def start(width: int, height: int, delay_ms: float) -> None:
        folder = tmp_path / "eye" / "1"
        folder.mkdir(parents=True)
        shape = [1, height, width, 3]
        text = f'delay_ms = {delay_ms}\n[[input]]\nname = "image"\ndatatype = "UINT8"\nshape = {shape}\n'
        (folder / "model.echo").write_text(text, encoding="utf-8")
        template = ProcessSpec(tmp_path, "", 0, BrokerAddress.parse(broker_url), WorkerOptions("eye-worker", topics))
        workers.extend(serve(spec) for spec in plan(Repository(tmp_path), template))

    yield start
    for worker in workers:
        worker.stop()


def replay(
    url: str,
    topics: Topics,
    frames: Iterator[Frame],
    size: tuple[int, int],
    *,
    counts: list[PublishedCounts] | None = None,
    **options: Any,
) -> tuple[Ages, Snapshot]:
    """Replay frames to the model `eye`; assert that the sums balance and the answered frames are in order.

    With a list for their counts there are previews.
    """
    requester = connect(url, random_name(), topics)
    ages, statistics = Ages(), ReplayStatistics()
    previews = None if counts is None else Previews(requester, "eye", 10.0)
    try:
        preparer = Preparer(ImageContract("image", *size), "jpeg:90")
        settings = ReplayOptions("eye", output_encoding="jpeg:10", **options)
        Replay(requester, preparer, settings, statistics, ages, previews=previews).run(frames)
    finally:
        requester.close()
    if previews is not None and counts is not None:
        counts.append(previews.total)
    snapshot = statistics.snapshot()
    snapshot.check()
    assert snapshot.pending == 0
    assert ages.numbers == sorted(set(ages.numbers)), "none came twice, none out of order"
    return ages, snapshot


def test_latest_in_an_overload(
    served: Start,
    broker_url: str,
    topics: Topics,
    figure: Figures,
    pick: Start,
) -> None:
    """With five times more frames than the model can process, the answered ones are fresh and the model is busy."""
    service, seconds = 0.06, pick(4, 60)
    served(64, 48, service * 1e3)
    frames = camera(pictures(64, 48, 4), 5 / service, seconds)
    ages, snapshot = replay(broker_url, topics, frames, (64, 48), policy=Policy.LATEST, timeout=30.0)
    row = f"`latest`, 5x overload of a model of {service * 1e3:.0f} ms, {seconds} s"
    figure.bound(row, "p99 of the age of answered frames / service time", ages.percentile(0.99) / service, 3, ".1f")
    share = len(ages.ages) * service / seconds
    figure(row, "answered / capacity", f"{share:.2f}", ">= 0.9", passed=share >= 0.9)
    figure(row, "frames by outcome", {outcome.value: n for outcome, n in snapshot.outcomes.items() if n}, "each stated")
    assert snapshot.outcomes[Outcome.SUPERSEDED] > len(ages.ages), "it was no overload"
    assert max(ages.overtaken) <= 6, "in runs of the model, whose time a busy machine lengthens"


def test_all_in_an_overload(served: Start, broker_url: str, topics: Topics, figure: Figures, pick: Start) -> None:
    """A recording is read as fast as it is answered: every frame is answered, and memory stays flat."""
    count = pick(150, 2000)
    served(64, 48, 10)
    images = pictures(64, 48, 4)
    frames = (Frame("/camera", n, n, n, "camera", images[n % 4]) for n in range(count))
    before = resident_bytes(os.getpid())
    ages, snapshot = replay(broker_url, topics, frames, (64, 48), policy=Policy.ALL)
    growth = (resident_bytes(os.getpid()) - before) / 2**20
    row = f"`all`, a recording of {count} frames, as fast as it goes"
    figure(row, "answered", f"{len(ages.ages)}/{count}", "all", passed=len(ages.ages) == count)
    figure(row, "edge's growth", f"{growth:.1f} MB", "flat", passed=growth <= 20)
    assert snapshot.outcomes[Outcome.OK] == count


def test_thin_link(
    served: Start,
    proxy: Start,
    broker_url: str,
    topics: Topics,
    figure: Figures,
    pick: Start,
) -> None:
    """Over 2 Mbit/s and 100 ms each way, frames of 968x608 are answered all the time, and they are fresh."""
    served(WIDTH, HEIGHT, 50)
    between: FaultProxy = proxy(broker_url)
    between.both(bytes_per_s=250_000, delay_s=0.1)
    seconds = pick(6, 60)
    images = pictures(WIDTH, HEIGHT, 4)
    row = f"2 Mbit/s and 100 ms each way, JPEG frames of {WIDTH}x{HEIGHT} at 10/s, {seconds} s"
    look = partial(replay, between.url, topics, policy=Policy.LATEST, timeout=2.0)
    for name, bounds in (("full quality", QualityBounds()), ("at least 5/s asked for", QualityBounds(5.0))):
        ages, snapshot = look(camera(images, 10, seconds), (WIDTH, HEIGHT), quality=bounds)
        figure(row, f"{name}: frames answered a second", f"{len(ages.ages) / seconds:.1f}")
        each = snapshot.bytes_sent / max(1, snapshot.done - snapshot.outcomes[Outcome.SUPERSEDED]) / 1e3
        figure(row, f"{name}: kB a frame sent", f"{each:.0f}")
        median, worst = ages.percentile(0.5), ages.percentile(0.99)
        what, found = f"{name}: age of answered frames, p50; p99", f"{median:.2f} s; {worst:.2f} s"
        figure(row, what, found, "<= 2 s", passed=worst <= 2)
        figure(row, f"{name}: frames by outcome", {outcome.value: n for outcome, n in snapshot.outcomes.items() if n})
        assert len(ages.ages) >= seconds * 0.5


def test_previews_on_a_thin_link(served: Start, proxy: Start, broker_url: str, topics: Topics, figure: Figures) -> None:
    """Over 1 Mbit/s the frames are answered, and previews are given up for them; over a good link none is."""
    served(WIDTH, HEIGHT, 5)
    between: FaultProxy = proxy(broker_url)
    images = pictures(WIDTH, HEIGHT, 4)
    counts: list[PublishedCounts] = []
    for rate in (None, 125_000):
        if rate is not None:
            between.both(bytes_per_s=rate)
        frames = camera(images, 10, 6)
        ages, snapshot = replay(
            between.url, topics, frames, (WIDTH, HEIGHT), counts=counts, policy=Policy.LATEST, timeout=5.0
        )
        found = {outcome.value: n for outcome, n in snapshot.outcomes.items() if n}
        dropped = {why.value: n for why, n in counts[-1].dropped.items()}
        row = "previews at 10/s beside JPEG frames at 10/s, " + ("a good link" if rate is None else "1 Mbit/s")
        figure(row, "frames by outcome", found)
        figure(row, "previews published; dropped", f"{counts[-1].published}; {dropped}")
        assert ages.ages
        assert snapshot.outcomes[Outcome.OK] + snapshot.outcomes[Outcome.SUPERSEDED] >= snapshot.done - 2
    assert counts[0].published >= 1
    assert counts[1].dropped[PreviewDrop.LINK_BEHIND] >= 1
