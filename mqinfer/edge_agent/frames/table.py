"""The frames of a run from their reading to their outcome, the stages' contract, and the table of those without one.

A frame is read, waits in its stream's queue or in the spool, enters the window, is prepared and sent, and is settled:
once, whatever happens. The stages share the table; they guard it by one lock, and do the work between two steps. It is
pure: no thread, no I/O, an injected clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeAlias, TypeVar

from mqinfer.answers.outputs import Picture
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.client.window import Policy, StreamWindow
from mqinfer.edge_agent.frames.by_source import Priorities
from mqinfer.edge_agent.frames.encoding import FrameEncoding
from mqinfer.edge_agent.frames.times import NO_TIMES, FrameTimes, Laps
from mqinfer.images.placement import Placement
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
from mqinfer.protocol.types import Capture, EncodedTensor, ErrorInfo, Outcome
from mqinfer.telemetry.around import Around
from mqinfer.value_object import value_object

T = TypeVar("T")


@value_object(eq=False)
class PreparedFrame:
    """A frame as it will be sent.

    Attributes:
        tensors: The model's image inputs, which one request carries; the first is the main picture.
        placement: Where the recorded frame lies in what the model will see.
        picture: Returns the recorded frame as RGB, for the sinks. One that was resized is decoded again by this call,
            so that waiting frames take no memory for their pixels; so is an untouched JPEG.
        bytes_raw: Size of the pixels before encoding.
        worker: The one that has what the tensors are encoded against; empty where any can decode them.
        encoding: How they were encoded; None where the quality ladder, or an earlier run, chose that.
        joined: The parts of it that the frames are which go with it.
    """

    tensors: tuple[EncodedTensor, ...]
    placement: Placement
    picture: Callable[[], Picture]
    bytes_raw: int
    worker: str = ""
    encoding: FrameEncoding | None = None
    joined: tuple[PreparedFrame, ...] = ()


@dataclass(slots=True, eq=False)
class PendingFrame:
    """A frame that was read and has no outcome yet. Each field has one owner, which alone writes it.

    Attributes:
        number: Of the reader: in the order of reading, from 0.
        frame: Of the reader: as it was read; of the spool, which takes its pixels, once it is there.
        stream: Of the reader: the stream that it belongs to.
        read_at: Of the reader: when it was read, or taken up from the spool of an earlier run, in seconds of the
            monotonic clock.
        laps: Of the reader: measures its stages.
        spans: Of the reader: its span in a trace; None where spans are not exported.
        edge_answers: Of the cascade: whether it can answer the frame while the model is silent.
        spooled_as: Of the spool: its number there; 0 if it is not there.
        request_id: Of the last stage: of its latest request; empty before the first one.
        earlier: Of the retries: the outcomes of its requests before the present one, as one; None before the second.
        is_whole: Of the retries: whether any worker must be able to decode it on its own.
        ends_at: Of the retries: when its time is over, in seconds of the monotonic clock; 0 before the second request.
        picture: Of its preparation: returns what the model gets, where that is to be previewed; held until the request
            was sent.
    """

    number: int
    frame: Frame
    stream: StreamWindow[PendingFrame]
    spooled_as: int = 0
    read_at: float = field(default_factory=time.monotonic)
    laps: Laps = field(default_factory=lambda: Laps(time.monotonic_ns()))
    spans: Around | None = None
    edge_answers: bool = False
    request_id: str = ""
    earlier: InferResult | None = None
    is_whole: bool = False
    ends_at: float = 0.0
    picture: Callable[[], Picture] | None = None

    def keep_picture(self, picture: Callable[[], Picture]) -> None:
        """Keep what the model gets for a preview."""
        self.picture = picture

    @property
    def capture(self) -> Capture:
        """Where the frame comes from, as it travels with a request."""
        return capture_of(self.frame)


def capture_of(frame: Frame) -> Capture:
    """Return where a frame comes from, as it travels with a request."""
    return Capture(frame.source, frame.sequence, frame.capture_time_ns, frame.frame_id)


@value_object(eq=False)
class FinishedFrame:
    """A frame with its outcome, on its way to the sinks; `prepared` is None if it never became a request."""

    pending: PendingFrame
    prepared: PreparedFrame | None
    result: InferResult
    times: FrameTimes = NO_TIMES


def failed_frame(model: str, pending: PendingFrame, error: MqinferError) -> InferResult:
    """Make the outcome of a frame that never became a request."""
    info = ErrorInfo(error.code, str(error))
    return InferResult("", error.outcome, model, error=info, capture=pending.capture)


Settle: TypeAlias = Callable[[PendingFrame, PreparedFrame | None, InferResult], None]
"""Receives a frame with its outcome, and how it was prepared; None where it never was."""


class FrameStage(Protocol):
    """One of the stages that a frame passes: a cascade, the spool, the model that is far away. Thread-safe.

    Each stage hands a frame to the next one or ends it, and knows no other stage. What it handed on comes back to it
    with its outcome, so the first stage is where frames of the source begin, and where each of them ends.

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
        """End the frames that the next run can go on with, and take back what it can't; the run is stopped.

        It is called again and again until every frame has its outcome.
        """

    def close(self) -> None:
        """End its threads; every frame has its outcome, and the stages before are closed."""


class ReadingOrder(Generic[T]):
    """Yields items by number, from 0, without gaps. Not thread-safe; its owner bounds how far numbers run ahead."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, T] = {}

    def put(self, number: int, item: T) -> Iterator[T]:
        """Add an item, each number once, and yield every item that has no gap before it."""
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
    can. At first nothing is known of the model, so every frame may try it.

    Attributes:
        silence: Why the model did not answer the last time; None while it answers.
        is_connected: Whether there is a connection.
    """

    def __init__(self) -> None:
        self.silence: MqinferError | None = None
        self.is_connected = True
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


def _not_connected() -> NotConnected:
    return NotConnected("there is no connection to the broker")


@dataclass(slots=True, eq=False)
class FrameTable:
    """The frames without an outcome, the window of each stream, and whether the model answers. Not thread-safe.

    Attributes:
        policy: What happens to a frame that finds the window full.
        window: Upper bound of the frames of one stream in flight.
        priorities: Of the frames; None where they state none.
        clock: In seconds.
        frames: The frames without an outcome, by number; the oldest comes first.
        streams: The window of each stream.
        reach: What is known of the model.
        held: Number of frames in memory: those that were read, but for those in the spool and those that are written.
    """

    policy: Policy
    window: int
    priorities: Priorities | None = None
    clock: Callable[[], float] = time.monotonic
    frames: dict[int, PendingFrame] = field(default_factory=dict)
    streams: dict[str, StreamWindow[PendingFrame]] = field(default_factory=dict)
    reach: Reach = field(default_factory=Reach)
    held: int = 0

    def stream(self, source: str) -> StreamWindow[PendingFrame]:
        """Return the window of a stream, from its first frame on."""
        if source not in self.streams:
            priority = 0 if self.priorities is None else self.priorities.of(source)
            self.streams[source] = StreamWindow(self.policy, self.window, priority)
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
        frame.stream.finish(result, self.clock())

    def ended(self, frame: PendingFrame, result: InferResult) -> InferResult:
        """Learn from the outcome of a frame that the model was to answer.

        Returns:
            The outcome, whose error is the silence of the model where the edge can answer instead.
        """
        why = self.reach.ended(frame.number, result)
        if why is None or not frame.edge_answers:
            return result
        return replace(result, error=ErrorInfo(why.code, str(why)))

    def settle(self, frame: PendingFrame) -> None:
        """Remove a frame that has its outcome; a second one is a defect, and raises KeyError."""
        del self.frames[frame.number]

    def written(self, frame: PendingFrame) -> None:
        """Count a frame out that the sinks have: the spool has a bound of its own."""
        self.held -= not frame.spooled_as
