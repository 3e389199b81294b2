"""Collect during a run what its report shows, within a bound."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from types import MappingProxyType

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.reporting.answers import AnswerRecorder, Counted
from mqinfer.edge_agent.reporting.worst import WorstFrames
from mqinfer.protocol.card import ClassInfo
from mqinfer.protocol.types import Outcome

_MOST_SPANS = 120
_SHORTEST_S = 0.25
_MOST_ENDINGS = 12
_LONGEST_ENDING = 80
"""Codes of errors come from outside, so number and length are bounded; the others are counted together."""
OTHER = "other"
_NO_ANSWERS: Mapping[Counted, float] = MappingProxyType({})


@dataclass(slots=True)
class TimeBin:
    """What ended within one span of time.

    Attributes:
        outcomes: Frames by what they ended as: an outcome, or the code of an error.
        stages: Nanoseconds by stage, summed over the frames with a result.
        answers: What the results count of each class, summed likewise.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    answers: dict[Counted, float] = field(default_factory=dict)

    @property
    def answered(self) -> int:
        """Frames with a result."""
        return self.outcomes[Outcome.OK]

    def merge(self, other: TimeBin) -> TimeBin:
        """Return both in one."""
        answers = {key: self.answers.get(key, 0) + other.answers.get(key, 0) for key in self.answers | other.answers}
        return TimeBin(self.outcomes + other.outcomes, self.stages + other.stages, answers)


class Series:
    """Equal spans of time from the start of a run, at most 120; each time they run out, two become one.

    Attributes:
        spans: Up to the last one in which a frame ended.
        seconds: Length of each.
    """

    def __init__(self) -> None:
        self.spans: list[TimeBin] = []
        self.seconds = _SHORTEST_S
        self._endings = {str(Outcome.OK)}

    def add(
        self, at: float, ended_as: str, stages: Mapping[str, int], answers: Mapping[Counted, float] = _NO_ANSWERS
    ) -> None:
        """Count a frame.

        Args:
            at: When it ended, in seconds from the start of the run.
            ended_as: Its outcome, or the code of its error.
            stages: Nanoseconds by stage; of frames with a result.
            answers: What the result counts of each class.
        """
        while at >= self.seconds * _MOST_SPANS:
            pairs = zip_longest(self.spans[::2], self.spans[1::2], fillvalue=TimeBin())
            self.spans = [first.merge(second) for first, second in pairs]
            self.seconds *= 2
        index = int(at / self.seconds)
        while len(self.spans) <= index:
            self.spans.append(TimeBin())
        ended_as = ended_as[:_LONGEST_ENDING]
        if ended_as not in self._endings and len(self._endings) >= _MOST_ENDINGS:
            ended_as = OTHER
        self._endings.add(ended_as)
        span = self.spans[index]
        span.outcomes[ended_as] += 1
        if ended_as == Outcome.OK:
            span.stages.update(stages)
            for key, count in answers.items():
                span.answers[key] = span.answers.get(key, 0) + count

    def total(self) -> TimeBin:
        """Return all spans in one."""
        total = TimeBin()
        for span in self.spans:
            total = total.merge(span)
        return total


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
    """A sink that writes no file: it keeps the series, the answers, the worst frames, and who answered.

    Attributes:
        series: Outcomes, times and answers over the run.
        answers: Scores, and outputs without classes.
        worst: Frames with their pictures.
        answerers: Results by what computed them.

    Args:
        classes: Names and colours from the model's card.
        clock: Monotonic seconds.
    """

    def __init__(self, classes: Sequence[ClassInfo] = (), clock: Callable[[], float] = time.monotonic) -> None:
        self.series = Series()
        self.answers = AnswerRecorder(classes)
        self.worst = WorstFrames()
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
        answers = self.answers.add(view) if result.outcome is Outcome.OK else {}
        self.series.add(self._clock() - self._began, ended_as, view.times.stages, answers)
        self.worst.add(frame, view, result)
        if result.outcome is Outcome.OK:
            engine = (view.engine[key] or "" for key in ("precision", "backend", "device"))
            who = Answerer(result.worker, result.stage, result.model_version, result.model_hash, *engine)
            if who in self.answerers or len(self.answerers) < _MOST_ANSWERERS:
                self.answerers[who] += 1

    def close(self) -> tuple[Path, ...]:
        """Return no path: the report is written when the run has ended."""
        return ()
