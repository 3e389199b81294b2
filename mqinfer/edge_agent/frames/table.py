"""The frames of a run from their reading to their outcome. Pure: no thread, no I/O, an injected clock.

A frame is read, waits in its stream's queue or in the spool, enters the window, is prepared and sent, and is settled:
once, whatever happens. The stages share the table; they guard it by one lock, and do the work between two steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from mqinfer.client.result import InferResult
from mqinfer.client.window import Policy, StreamWindow
from mqinfer.edge_agent.frames.pending import PendingFrame
from mqinfer.edge_agent.frames.reach import Reach, because
from mqinfer.protocol.errors import MqinferError, ReferenceLost

__all__ = ["FrameTable"]


class FrameTable:
    """The frames without an outcome, the window of each stream, and whether the model answers. Not thread-safe.

    Attributes:
        frames: The frames without an outcome, by number; the oldest comes first.
        streams: The window of each stream.
        reach: What is known of the model.
        held: Number of frames in memory: those that were read, but for those in the spool and those that are written.
    """

    def __init__(self, policy: Policy, window: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Start without a frame.

        Args:
            policy: What happens to a frame that finds the window full.
            window: Upper bound of the frames of one stream in flight.
            clock: In seconds.
        """
        self.frames: dict[int, PendingFrame] = {}
        self.streams: dict[str, StreamWindow[PendingFrame]] = {}
        self.reach = Reach()
        self.held = 0
        self._policy = policy
        self._window = window
        self._clock = clock

    def stream(self, source: str) -> StreamWindow[PendingFrame]:
        """Return the window of a stream, from its first frame on."""
        if source not in self.streams:
            self.streams[source] = StreamWindow(self._policy, self._window)
        return self.streams[source]

    def read(self, frame: PendingFrame) -> None:
        """Add a frame that was read, or that an earlier run has left in the spool."""
        self.frames[frame.number] = frame
        self.held += not frame.spooled_as

    def keep(self, frame: PendingFrame, number: int) -> None:
        """Count a frame out of memory that the spool keeps, under this number there."""
        self.held -= not frame.spooled_as
        frame.spooled_as = number

    def withdraw(self) -> list[PendingFrame]:
        """Return the queued frames that only the model can answer, oldest first; they are queued no more."""
        found = [each for stream in self.streams.values() for each in stream.withdraw(lambda it: not it.edge_answers)]
        return sorted(found, key=lambda each: each.number)

    def replaceable(self, stream: StreamWindow[PendingFrame]) -> list[str]:
        """Return the requests that may give way where a newer frame of the stream waits for room, oldest first."""
        if not stream.wants_room:
            return []
        return [each.request_id for each in self.sent() if each.stream is stream and not each.spooled_as]

    def sent(self) -> list[PendingFrame]:
        """Return all frames that were sent, oldest first."""
        return [each for each in self.frames.values() if each.request_id]

    def why_not(self, frame: PendingFrame) -> MqinferError | None:
        """Return why a frame is not to be sent: the model is silent, and the edge can answer it."""
        return self.reach.why_not(frame.number) if frame.edge_answers else None

    def is_again(self, frame: PendingFrame, result: InferResult) -> bool:
        """Return whether a frame is sent once more, for any worker: the one that had what it needs has started anew."""
        if result.error is None or result.error.code != ReferenceLost.code or frame.lost is not None:
            return False
        frame.lost = result
        return True

    def leave(self, frame: PendingFrame, result: InferResult) -> None:
        """Make the room of a frame in the window free, and adapt the window to its outcome."""
        frame.stream.finish(result, self._clock())

    def ended(self, frame: PendingFrame, result: InferResult) -> InferResult:
        """Learn from the outcome of a frame that the model was to answer.

        Returns:
            The outcome, whose error is the silence of the model where the edge can answer instead.
        """
        why = self.reach.ended(frame.number, result)
        return result if why is None or not frame.edge_answers else because(result, why)

    def settle(self, frame: PendingFrame) -> None:
        """Remove a frame that has its outcome; a second one is a defect, and raises KeyError."""
        del self.frames[frame.number]

    def written(self, frame: PendingFrame) -> None:
        """Count a frame out that the sinks have: the spool has a bound of its own."""
        self.held -= not frame.spooled_as
