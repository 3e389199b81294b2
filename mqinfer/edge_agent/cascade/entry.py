"""A frame on its way through a cascade."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqinfer.client.result import InferResult
from mqinfer.edge_agent.frames.pending import PendingFrame
from mqinfer.edge_agent.frames.prepared import PreparedFrame
from mqinfer.judging.results import ResultMaker
from mqinfer.judging.thumbnail import Thumbnail

__all__ = ["CascadeFrame", "SmallAnswer"]


@dataclass(slots=True, eq=False)
class SmallAnswer:
    """What the small model found: its confidence, what it saw, its own result, and that of the frame if it counts."""

    confidence: float
    prepared: PreparedFrame
    found: InferResult
    result: InferResult


@dataclass(slots=True, eq=False)
class CascadeFrame:
    """A frame that follows no other one, or did not yet.

    Attributes:
        pending: The frame.
        seen: Its thumbnail; None if nothing needs it.
        now: The settings when it was read, which hold for it, and the form of its answer.
        followers: Frames that get its answer.
        ticket: Its place among the frames of its stream that the small model has got.
        answer: The small model's; None if there is none.
        small_request: Id of the request to the small model in the cloud.
        bytes_sent: Size of that request.
        prepared: As it was shown to the model that answered.
        result: Its outcome, once that is `ok`.
    """

    pending: PendingFrame
    seen: Thumbnail | None
    now: ResultMaker
    followers: list[CascadeFrame] = field(default_factory=list)
    ticket: int = 0
    answer: SmallAnswer | None = None
    small_request: str = ""
    bytes_sent: int = 0
    prepared: PreparedFrame | None = None
    result: InferResult | None = None
