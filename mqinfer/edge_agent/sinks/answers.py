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
    """One model's answer to one frame; `model` is its number."""

    model: int
    view: FrameView
    result: InferResult

    @property
    def is_ok(self) -> bool:
        """Whether there are outputs."""
        return self.result.outcome is Outcome.OK


class Answers:
    """Collects what the sinks of several models receive, and passes each frame on once all models have answered.

    A frame that lacks answers is passed on with those that there are when too many wait, the oldest first, or at the
    end. Frames are passed on one at a time. Thread-safe.
    """

    def __init__(self, models: int, on_frame: Callable[[Frame, Sequence[Answer]], None], *, bound: int) -> None:
        """Prepare.

        Args:
            models: How many there are.
            on_frame: Receives a frame with the answers in the models' order.
            bound: Frames that are held at most.
        """
        self._models = models
        self._on_frame = on_frame
        self._bound = bound
        self._lock = threading.Lock()
        self._open: dict[tuple[str, int, int], tuple[Frame, list[Answer]]] = {}

    def sink(self, model: int, *files: Path) -> Sink:
        """Make the sink of a model, by its number; at its end it names these files."""
        return _AnswerSink(self, model, files)

    def put(self, frame: Frame, answer: Answer) -> None:
        """Add the answer of a model to a frame."""
        key = frame.source, frame.sequence, frame.capture_time_ns
        with self._lock:
            _, found = self._open.setdefault(key, (frame, []))
            found.append(answer)
            if len(found) == self._models:
                self._pass_on(key)
            elif len(self._open) > self._bound:
                self._pass_on(next(iter(self._open)))

    def close(self) -> None:
        """Pass on the frames that lack answers."""
        with self._lock:
            for key in [*self._open]:
                self._pass_on(key)

    def _pass_on(self, key: tuple[str, int, int]) -> None:
        frame, found = self._open.pop(key)
        self._on_frame(frame, sorted(found, key=lambda each: each.model))


@dataclass(frozen=True, slots=True)
class _AnswerSink:
    """The sink of one model."""

    answers: Answers
    model: int
    files: tuple[Path, ...]

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Pass a result on."""
        self.answers.put(frame, Answer(self.model, view, result))

    def close(self) -> tuple[Path, ...]:
        """Return the files."""
        return self.files
