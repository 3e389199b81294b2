"""Frames through a real broker and a real worker: times, the model's answers, and what a thin link lets through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import numpy as np

from mqinfer.answers.outputs import find_mask
from mqinfer.bags.frame import Frame
from mqinfer.bench.thin_link import ThinLink
from mqinfer.client.connection import connect, random_name
from mqinfer.client.result import InferResult
from mqinfer.client.window import Policy
from mqinfer.edge_agent.frames.times import EdgeStage
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.preparing.choices import choose_output_encoding
from mqinfer.edge_agent.preparing.preparer import Preparer
from mqinfer.edge_agent.replay import Pacer, Replay
from mqinfer.edge_agent.reporting.statistics import ReplayStatistics
from mqinfer.edge_agent.settings import ReplayOptions
from mqinfer.lab.comparing.tolerance import Deviation, NumberTolerance, deviation
from mqinfer.protocol.card import ModelCard
from mqinfer.protocol.datatypes import Array
from mqinfer.protocol.errors import ModelFailed
from mqinfer.protocol.types import Outcome

_TIMEOUT_S = 300.0
_FRESH_S = 2.0
"""Time limit of a live frame, as that of `mqinfer replay --policy latest`."""
_TOLERANCE = 0.01
"""Numbers differ if they differ by more than this share of the largest."""


class CollectingSink:
    """A sink that keeps what came back of each frame.

    Attributes:
        outputs: By name.
        milliseconds: From its preparation to its outcome.
        finishing: Share of post-processing and encoding in the worker's time, 0 to 1; waiting is not in it.
        failure: Of the first frame without a result; None where each has one.
    """

    def __init__(self) -> None:
        self.outputs: list[dict[str, Array]] = []
        self.milliseconds: list[float] = []
        self.finishing: list[float] = []
        self.failure: str | None = None

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Keep one result."""
        if result.outcome is not Outcome.OK:
            why = result.error.message if result.error else result.outcome
            self.failure = self.failure or f"{frame.source}, frame {frame.sequence}: {why}"
            return
        self.outputs.append(dict(result.outputs))
        waited = sum(view.times.stages.get(stage, 0) for stage in (EdgeStage.READ, EdgeStage.QUEUE))
        self.milliseconds.append((view.times.total - waited) / 1e6)
        took = result.timings
        finishing = took.postprocess + took.encode
        self.finishing.append(finishing / (took.decode + took.preprocess + took.inference + finishing))

    def close(self) -> tuple[Path, ...]:
        """Have no files."""
        return ()


def _replay(
    port: int, preparer: Preparer, frames: Iterator[Frame], options: ReplayOptions, sink: CollectingSink | None = None
) -> ReplayStatistics:
    """Send frames over a port, and return the counters."""
    statistics = ReplayStatistics()
    with closing(connect(f"mqtt://127.0.0.1:{port}", random_name())) as requester:
        Replay(requester, preparer, options, statistics, sink).run(frames)
    return statistics


def send_all(port: int, card: ModelCard, preparer: Preparer, frames: Sequence[Frame]) -> CollectingSink:
    """Send frames to a model one at a time, and return the answers.

    Args:
        port: Of the broker, on this machine.
        card: Of the model.
        preparer: Of the encoding.
        frames: In order.

    Raises:
        ModelFailed: A frame got none.
    """
    answers, encoding = CollectingSink(), choose_output_encoding(None, card)
    options = ReplayOptions(card.name, window=1, timeout=_TIMEOUT_S, output_encoding=encoding)
    _replay(port, preparer, iter(frames), options, answers)
    if answers.failure:
        raise ModelFailed(f"model {card.name!r}, {preparer.encoding}: {answers.failure}")
    return answers


def changed_share(answers: CollectingSink, first: CollectingSink) -> float:
    """Return how much of the answers is another one: the share of a mask's pixels, or of all outputs' numbers."""
    pairs = zip(answers.outputs, first.outputs, strict=True)
    return float(np.mean([_changed(outputs, expected) for outputs, expected in pairs]))


def keep_over_link(port: int, card: ModelCard, preparer: Preparer, frames: Iterator[Frame], mbit: float) -> int:
    """Send live frames over a link of so many Mbit/s each way; return how many came back with a result."""
    encoding = choose_output_encoding(None, card)
    options = ReplayOptions(card.name, timeout=_FRESH_S, policy=Policy.LATEST, output_encoding=encoding)
    with ThinLink(port, mbit * 1e6 / 8) as link:
        statistics = _replay(link.port, preparer, frames, options)
    return statistics.snapshot().outcomes[Outcome.OK]


def camera(frames: Sequence[Frame], rate: float, seconds: float) -> Iterator[Frame]:
    """Yield frames when they are due.

    Args:
        frames: Played forth and back, so that the scene never jumps.
        rate: Frames a second.
        seconds: How long.
    """
    there_and_back, pacer = cycle([*frames, *frames[-2:0:-1]]), Pacer()
    for number in range(round(seconds * rate)):
        pacer.wait_for(round(number / rate * 1e9))
        yield replace(next(there_and_back), sequence=number)


def _changed(outputs: dict[str, Array], expected: dict[str, Array]) -> float:
    mask, first = find_mask(outputs), find_mask(expected)
    if mask and first:
        return float(np.mean(mask[1] != first[1]))
    found = [_deviation(array, expected[name]) for name, array in outputs.items()]
    return sum(each.outside for each in found) / max(1, sum(each.values for each in found))


def _deviation(array: Array, expected: Array) -> Deviation:
    largest = float(np.max(np.abs(expected), initial=0.0)) if expected.dtype.kind == "f" else 0.0
    return deviation(expected, array, NumberTolerance(0.0, _TOLERANCE * largest))
