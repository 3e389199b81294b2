"""A frame that has no outcome yet, one that has, and the contract of the stages that it passes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from mqinfer.answers.outputs import Picture
from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.client.window import StreamWindow
from mqinfer.edge_agent.frames.encoding import FrameEncoding
from mqinfer.edge_agent.frames.times import NO_TIMES, FrameTimes, Laps
from mqinfer.images.placement import Placement
from mqinfer.protocol.errors import MqinferError
from mqinfer.protocol.types import Capture, EncodedTensor, ErrorInfo
from mqinfer.telemetry.around import Around
from mqinfer.value_object import value_object


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
        """End the frames that the next run can go on with, and take back what it can't; the run is stopped."""

    def close(self) -> None:
        """End its threads; every frame has its outcome, and the stages before are closed."""
