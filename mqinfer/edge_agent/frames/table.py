"""The frames of a run from their reading to their outcome. Pure: no thread, no I/O, an injected clock.

A frame is read, waits in its stream's queue, enters the window, is prepared and sent, and is settled: once, whatever
happens. Its owner guards the table by a lock and does the work between two steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from mqinfer.client.result import InferResult
from mqinfer.client.window import DelayWindow, Policy, StreamWindow
from mqinfer.edge_agent.frames.pending import PendingFrame
from mqinfer.protocol.errors import ReferenceLost

__all__ = ["FrameTable"]


class FrameTable:
    """The frames without an outcome, and the window of each stream. Not thread-safe.

    Attributes:
        frames: The frames without an outcome, by number; the oldest comes first.
        streams: The window of each stream.
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
        self._policy = policy
        self._window = window
        self._clock = clock

    def stream(self, source: str) -> StreamWindow[PendingFrame]:
        """Return the window of a stream, from its first frame on."""
        if source not in self.streams:
            self.streams[source] = StreamWindow(self._policy, DelayWindow.of(self._policy, self._window))
        return self.streams[source]

    def read(self, frame: PendingFrame) -> None:
        """Add a frame that was read."""
        self.frames[frame.number] = frame

    def queue(self, frame: PendingFrame) -> PendingFrame | None:
        """Queue a frame for the model; return the one that lost its place to it by the policy `latest`."""
        return frame.stream.put(frame)

    def take(self, stream: StreamWindow[PendingFrame]) -> list[PendingFrame]:
        """Return the frames of a stream that enter the window now, and are to be prepared and sent."""
        return stream.take()

    def replaceable(self, stream: StreamWindow[PendingFrame]) -> list[str]:
        """Return the requests that may give way where a newer frame of the stream waits for room, oldest first."""
        if not stream.wants_room:
            return []
        return self._requests(each for each in self.frames.values() if each.stream is stream)

    def sent(self) -> list[str]:
        """Return the requests of all frames that were sent, oldest first."""
        return self._requests(self.frames.values())

    def is_again(self, frame: PendingFrame, result: InferResult) -> bool:
        """Return whether a frame is sent once more, for any worker: the one that had what it needs has started anew."""
        if result.error is None or result.error.code != ReferenceLost.code or frame.lost is not None:
            return False
        frame.lost = result
        return True

    def leave(self, frame: PendingFrame, result: InferResult) -> None:
        """Make the room of a frame in the window free, and adapt the window to its outcome."""
        frame.stream.finish(result, self._clock())

    def settle(self, frame: PendingFrame) -> None:
        """Remove a frame that has its outcome; a second one is a defect, and raises KeyError."""
        del self.frames[frame.number]

    @staticmethod
    def _requests(frames: Iterable[PendingFrame]) -> list[str]:
        return [each.request_id for each in frames if each.request_id]
