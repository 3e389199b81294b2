"""What a user chooses of the way frames are sent to a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mqinfer.edge_agent.quality_ladder import EconomyBounds
from mqinfer.edge_agent.stream import Policy

__all__ = ["ReplayOptions"]


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """How frames are sent.

    Attributes:
        model: Name of the model.
        version: Of the model, or None for the one that its policy prefers.
        window: Requests of one stream in flight at a time, at most.
        timeout: Of each request, in seconds.
        output_encoding: Codec of the results, one for all or by output; None for what suits the model's outputs.
        policy: What happens to a frame that comes while the window is full.
        economy: What may be given up where too few frames come through.
    """

    model: str
    version: str | None = None
    window: int = 8
    timeout: float = 60.0
    output_encoding: str | Mapping[str, str] | None = None
    policy: Policy = Policy.ALL
    economy: EconomyBounds = field(default_factory=EconomyBounds)
