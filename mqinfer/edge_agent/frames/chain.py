"""The contract of the stages that a frame passes: a cascade, the spool, the model that is far away.

Each stage hands a frame to the next one or ends it, and knows no other stage. What it handed on comes back to it with
its outcome, so the first stage is where frames of the source begin, and where each of them ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.pending import PendingFrame, PreparedFrame

Settle: TypeAlias = Callable[[PendingFrame, PreparedFrame | None, InferResult], None]
"""Receives a frame with its outcome, and how it was prepared; None where it never was."""


class FrameStage(Protocol):
    """One stage. Thread-safe.

    Attributes:
        left: Frames that are there before any is taken, of an earlier run; they count as taken once it has started.
    """

    left: Sequence[PendingFrame]

    def start(self, settle: Settle) -> None:
        """Start, with the stages behind it.

        Args:
            settle: Receives each frame that was taken, once, on any thread.
        """

    def take(self, pending: PendingFrame, prepared: PreparedFrame | None = None) -> None:
        """Take a frame, in the order of reading.

        Args:
            pending: The frame.
            prepared: As it is to be sent, where a stage has prepared it and counted it into its stream's window.
        """

    def leave(self) -> None:
        """End the frames that the next run can go on with, and take back what it can't; the run is stopped."""

    def close(self) -> None:
        """End its threads; every frame has its outcome, and the stages before are closed."""
