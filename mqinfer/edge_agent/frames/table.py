"""The frames of a run from their reading to their outcome. Pure: no thread, no I/O, an injected clock.

A frame is read, waits in its stream's queue or in the spool, enters the window, is prepared and sent, and is settled:
once, whatever happens. The stages share the table; they guard it by one lock, and do the work between two steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Generic, TypeVar

from mqinfer.client.result import InferResult
from mqinfer.client.window import Policy, StreamWindow
from mqinfer.edge_agent.frames.pending import PendingFrame
from mqinfer.protocol.errors import (
    Corrupted,
    Expired,
    LinkError,
    MessageTooLarge,
    MqinferError,
    NotAuthorized,
    NotConnected,
    NoWorker,
    Rejected,
    error_from_code,
)
from mqinfer.protocol.types import ErrorInfo, Outcome

T = TypeVar("T")


class ReadingOrder(Generic[T]):
    """Yields items by their number, without gaps. Not thread-safe; its owner bounds how far numbers run ahead."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, T] = {}

    def put(self, number: int, item: T) -> Iterator[T]:
        """Add an item, and yield every item that has no gap before it.

        Args:
            number: From 0, each number once.
            item: To be yielded.
        """
        self._early[number] = item
        while self._next in self._early:
            item = self._early.pop(self._next)
            self._next += 1
            yield item


_ABSENT = (Expired, Rejected, Corrupted, NoWorker, LinkError)
_PRESENT = (MessageTooLarge, NotAuthorized)
"""Errors of a link that are no sign of a model that is gone."""


def absence(result: InferResult) -> MqinferError | None:
    """Return why a model can't be reached, by the error of an outcome; None for any other outcome."""
    if result.error is None:
        return None
    error = error_from_code(result.error.code, result.error.message)
    return error if isinstance(error, _ABSENT) and not isinstance(error, _PRESENT) else None


class Reach:
    """Whether one model answers, as the connection and the outcomes of requests show it. Not thread-safe.

    A model is silent from a lost connection or a request without a reply until its next reply, so also in the seconds
    of a reconnect. Meanwhile one frame at a time tries it all the same, the probe; the edge answers the others where it
    can.

    Attributes:
        silence: Why the model did not answer the last time; None while it answers.
        is_connected: Whether there is a connection.
    """

    def __init__(self, *, is_connected: bool = True) -> None:
        """Start with a model of which nothing is known, so that every frame may try it."""
        self.silence: MqinferError | None = None
        self.is_connected = is_connected
        self._probe: int | None = None

    def on_connection(self, *, is_connected: bool) -> None:
        """Follow the connection: once it was lost, only a reply ends the silence."""
        if not is_connected:
            self.silence = _not_connected()
        self.is_connected = is_connected

    def why_not(self, number: int) -> MqinferError | None:
        """Return why a frame is not to be sent; None if it may try the model, which makes it the probe in a silence."""
        if not self.is_connected:
            return _not_connected()
        if self.silence is None:
            self._probe = None
        elif self._probe is None:
            self._probe = number
        elif self._probe != number:
            return self.silence
        return None

    def ended(self, number: int, result: InferResult) -> MqinferError | None:
        """Learn from the outcome of a frame, and have the next one try the model if this one was the probe.

        Returns:
            The silence that the outcome is owed to; None where the model, or the frame itself, is its reason.
        """
        if self._probe == number:
            self._probe = None
        if result.outcome is Outcome.OK:
            self.silence = None
            return None
        if result.outcome is Outcome.SUPERSEDED:  # of a model that answers nothing, the edge makes more
            return self.silence
        is_cut_off = result.outcome is Outcome.CANCELLED and not self.is_connected
        why = _not_connected() if is_cut_off else absence(result)
        self.silence = why or self.silence
        return why


def because(result: InferResult, why: MqinferError) -> InferResult:
    """Return an outcome with the silence that it is owed to as its error."""
    return replace(result, error=ErrorInfo(why.code, str(why)))


def _not_connected() -> NotConnected:
    return NotConnected("there is no connection to the broker")


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
