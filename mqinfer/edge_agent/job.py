"""A frame on its way through a replay, and a frame with its outcome."""

from __future__ import annotations

from dataclasses import dataclass

from mqinfer.bags.frame import Frame
from mqinfer.client.result import InferResult
from mqinfer.edge_agent.preparation import PreparedFrame
from mqinfer.edge_agent.stream import Stream
from mqinfer.protocol.types import Capture

__all__ = ["Ended", "Job", "capture_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """A frame, numbered in the order of reading, its stream, and its number in the spool; 0 where it is not there."""

    number: int
    frame: Frame
    stream: Stream[Job]
    spooled_as: int = 0


@dataclass(frozen=True, slots=True, eq=False)
class Ended:
    """A frame with its outcome, on its way to the sinks; `prepared` is None where it never became a request."""

    job: Job
    prepared: PreparedFrame | None
    result: InferResult


def capture_of(frame: Frame) -> Capture:
    """Say where a frame comes from, as it travels."""
    return Capture(frame.source, frame.sequence, frame.capture_time_ns, frame.frame_id)
