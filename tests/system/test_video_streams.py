"""H.264 from the edge's replay to real worker processes: one is killed, and every picture is right."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mqinfer.bags.frame import Frame
from mqinfer.client.connection import connect, random_name
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.replay import Replay
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics, Snapshot
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.images.picture import RawImage
from mqinfer.lab.drives.synthetic import SyntheticDrive
from mqinfer.protocol.card import ImageContract
from mqinfer.protocol.topics import Topics
from mqinfer.protocol.types import Outcome
from tests.patience import PATIENT

pytestmark = [pytest.mark.broker, pytest.mark.slow]
HEIGHT, WIDTH, FRAMES = 64, 96, 40


@cache
def scene(number: int) -> Any:
    """Render a picture of a drive."""
    return np.ascontiguousarray(SyntheticDrive(1, WIDTH, HEIGHT).scene(number).picture)


@dataclass
class Seen:
    """A sink that keeps the results, which hold the pictures that the workers decoded."""

    results: list[InferResult] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:  # noqa: ARG002 - the sinks' signature
        """Keep one result."""
        with self.changed:
            self.results.append(result)
            self.changed.notify_all()

    def close(self) -> tuple[Path, ...]:
        """Have no files."""
        return ()

    def wait_for(self, count: int) -> str:
        """Wait for so many results; return the worker of the last one."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.results) >= count, 60)
            return self.results[-1].worker


def frames(count: int) -> Iterator[Frame]:
    """Yield a drive."""
    for number in range(count):
        image = RawImage("rgb8", HEIGHT, WIDTH, 3 * WIDTH, is_bigendian=False, data=scene(number).tobytes())
        yield Frame("/camera", number, number, number, "camera", image)


def replay(url: str, topics: Topics, source: Callable[[Seen], Iterator[Frame]], encoding: str) -> tuple[Seen, Snapshot]:
    """Send frames to the model `eye`; assert one outcome each, in order, and that each picture is its own frame's."""
    seen, statistics = Seen(), ReplayStatistics()
    with closing(connect(url, random_name(), topics, PATIENT)) as requester:
        preparer = Preparer(ImageContract("image", WIDTH, HEIGHT), encoding)
        Replay(requester, preparer, ReplayOptions("eye", timeout=60), statistics, seen).run(source(seen))
        counters = requester.counters()
    assert (counters.pending, counters.submitted) == (0, sum(counters.outcomes.values()))
    snapshot = statistics.snapshot()
    snapshot.check()
    assert [each.capture.sequence for each in seen.results] == list(range(FRAMES))
    for number, result in enumerate(seen.results):
        assert result.outcome is Outcome.OK, result.error
        errors = {
            other: np.abs(result.outputs["image"][0].astype(int) - scene(other)).mean()
            for other in (number - 2, number, number + 2)
            if other >= 0
        }
        assert min(errors, key=errors.__getitem__) == number, f"frame {number}: broken, or another one: {errors}"
    return seen, snapshot


def test_a_killed_worker_loses_no_frame_of_a_stream(
    write_echo: Callable[..., Path], managed: Callable[..., Any], broker_url: str
) -> None:
    """A stream stays with one worker; when that is killed, its frames are sent anew, and it goes on elsewhere."""
    server = managed(write_echo("eye", ("image", "UINT8", [-1, HEIGHT, WIDTH, 3]), delay_ms=2), instances=2)
    for _ in range(2):
        assert server.events.get(timeout=60).kind == "ready"
    first: list[str] = []

    def source(seen: Seen) -> Iterator[Frame]:
        for frame in frames(FRAMES):
            if 0 < frame.sequence <= FRAMES // 3:  # one by one: until the first is answered, any worker gets the next
                first.append(seen.wait_for(frame.sequence))
            elif frame.sequence == FRAMES // 2:
                os.kill(server.supervisor.pids[first[0]], signal.SIGKILL)
            yield frame

    _, snapshot = replay(broker_url, server.topics, source, "h264:20")
    assert set(first) == {first[0]}
    assert snapshot.bytes_sent < snapshot.bytes_raw / 5
