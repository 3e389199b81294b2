"""Collect during a run what its report shows, within a bound."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.reporting.series import Series
from mqinfer.edge_agent.reporting.worst import WorstFrames
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.types import Outcome

_MOST_ANSWERERS = 64


@dataclass(frozen=True, slots=True)
class Answerer:
    """What computed results: a worker, or a stage of a cascade at the edge.

    Attributes:
        worker: Name of the worker; empty at the edge.
        stage: Of a cascade.
        version: Of the model.
        model_hash: Of that version's files.
        precision: As the worker's state names it, empty where it does not; so are the other two.
        backend: The engine, with its version.
        device: The device.
    """

    worker: str
    stage: str
    version: str
    model_hash: str
    precision: str
    backend: str
    device: str


class RunRecorder:
    """A sink that writes no file: it keeps the series, the worst frames, and who answered.

    Attributes:
        series: Outcomes and times over the run.
        worst: Frames with their pictures.
        answerers: Results by what computed them.

    Args:
        classes: Names and colours from the model's card.
        clock: Monotonic seconds.
    """

    def __init__(self, classes: Sequence[ClassInfo] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self.series = Series()
        self.worst = WorstFrames(classes)
        self.answerers: Counter[Answerer] = Counter()
        self._clock = clock
        self._began = clock()

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Look at a result, whatever its outcome.

        Raises:
            MissingExtra: There is a picture to keep, and OpenCV is not installed.
        """
        code = result.error.code if result.error else result.outcome.value
        ended_as = result.outcome.value if result.outcome in {Outcome.OK, Outcome.SUPERSEDED} else code
        self.series.add(self._clock() - self._began, ended_as, view.times.stages)
        self.worst.add(frame, view, result)
        if result.outcome is Outcome.OK:
            engine = (view.engine[key] or "" for key in ("precision", "backend", "device"))
            who = Answerer(result.worker, result.stage, result.model_version, result.model_hash, *engine)
            if who in self.answerers or len(self.answerers) < _MOST_ANSWERERS:
                self.answerers[who] += 1

    def close(self) -> tuple[Path, ...]:
        """Return no path: the report is written when the run has ended."""
        return ()
