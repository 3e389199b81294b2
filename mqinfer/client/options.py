"""How a client is set up."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.topics import Topics

__all__ = ["NAME_HINT", "RequesterConfig"]

NAME_HINT = "where access rules hold, its name (--name) is to be that of its certificate or login"


@dataclass(frozen=True, slots=True)
class RequesterConfig:
    """How a client sends.

    Attributes:
        name: The client's name, in its topics.
        topics: Where everything lies.
        window: Requests in flight at a time.
        max_pending: Requests without an outcome at a time; `submit` waits for room beyond that.
        patience: Seconds during which a request that finds no worker, or only busy ones, is tried again.
        settling: Seconds after a reconnection during which patience does not end: workers come back in their own time.
        backoff: Seconds before such a request is sent again the first time; doubled each time, at most one second.
        limits: For replies.
        lanes: Whether requests go to workers that the client chooses; False: over the models' channels, dealt in turn.
    """

    name: str
    topics: Topics = field(default_factory=Topics)
    window: int = 16
    max_pending: int = 1024
    patience: float = 2.0
    backoff: float = 0.02
    settling: float = 6.0
    limits: Limits = DEFAULT_LIMITS
    lanes: bool = True
