"""The answers of several models to the same frame, brought together from their sinks."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.view import FrameView
from mqinfer.edge_agent.sinks.sink import Sink
from mqinfer.protocol.types import Outcome


@dataclass(frozen=True, slots=True)
class Answer:
    """One model's answer to one frame."""

    view: FrameView
    result: InferResult

    @property
    def is_ok(self) -> bool:
        """Whether there are outputs."""
        return self.result.outcome is Outcome.OK


class Answers:
    """Collects what the sinks of several models receive, and passes each frame on once all models have answered.

    Frames are passed on one at a time, in the order of reading. Thread-safe.

    Attributes:
        missed: Frames that were dropped since one model was too far behind the others, or ended early.
    """

    def __init__(self, models: int, on_frame: Callable[[Frame, Sequence[Answer]], None], *, bound: int) -> None:
        """Prepare.

        Args:
            models: How many there are.
            on_frame: Receives a frame with the answers in the models' order.
            bound: Frames that are held at most.
        """
        self.missed = 0
        self._models = models
        self._on_frame = on_frame
        self._bound = bound
        self._lock = threading.Lock()
        self._open: dict[int, dict[int, Answer]] = {}

    def sink(self, model: int) -> Sink:
        """Make the sink of a model, by its number."""
        return _AnswerSink(self, model)

    def put(self, model: int, index: int, frame: Frame, answer: Answer) -> None:
        """Add the answer of a model to the frame that it received as number `index`."""
        with self._lock:
            found = self._open.setdefault(index, {})
            found[model] = answer
            if len(found) == self._models:
                del self._open[index]
                self._on_frame(frame, [found[number] for number in range(self._models)])
            elif len(self._open) > self._bound:
                del self._open[min(self._open)]
                self.missed += 1

    def close(self) -> None:
        """Count the frames that some models have not answered as missed."""
        with self._lock:
            self.missed += len(self._open)
            self._open.clear()


class _AnswerSink:
    def __init__(self, answers: Answers, model: int) -> None:
        self._answers, self._model, self._next = answers, model, 0

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Pass a result on."""
        self._answers.put(self._model, self._next, frame, Answer(view, result))
        self._next += 1

    def close(self) -> tuple[Path, ...]:
        """Return no file."""
        return ()
