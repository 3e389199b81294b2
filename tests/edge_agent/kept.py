"""A sink that keeps what it gets."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from pathlib import Path

from mqinfer import InferResult, Outcome
from mqinfer.bags.frame import Frame
from mqinfer.edge_agent.frames.view import FrameView
from tests.patience import PATIENCE_S


@dataclass
class Kept:
    """A sink that keeps what it gets."""

    written: list[tuple[Frame, FrameView, InferResult]] = field(default_factory=list)
    changed: threading.Condition = field(default_factory=threading.Condition)

    def write(self, frame: Frame, view: FrameView, result: InferResult) -> None:
        """Keep one result."""
        with self.changed:
            self.written.append((frame, view, result))
            self.changed.notify_all()

    def close(self) -> tuple[Path, ...]:
        """Have no files."""
        return ()

    def wait_for(self, count: int) -> None:
        """Wait until so many frames were written."""
        with self.changed:
            assert self.changed.wait_for(lambda: len(self.written) >= count, PATIENCE_S)

    @property
    def results(self) -> list[InferResult]:
        """Their results, in the order in which they came."""
        return [result for _, _, result in self.written]

    @property
    def stages(self) -> list[str]:
        """Who answered each frame."""
        return [result.stage for result in self.results]

    @property
    def present(self) -> list[bool]:
        """Whether each answer says that the target is there."""
        return [bool(result.outputs["present"].item()) for result in self.results]

    @property
    def seen(self) -> list[tuple[int, int, Outcome]]:
        """Number of each frame, a pixel of its picture (-1 without one), and its outcome."""
        return [
            (frame.sequence, int(view.pixels[0, 0, 0]) if view.pixels.size else -1, result.outcome)
            for frame, view, result in self.written
        ]

    @property
    def said(self) -> list[str]:
        """Message of each error; empty where there is none."""
        return [result.error.message if result.error else "" for result in self.results]
