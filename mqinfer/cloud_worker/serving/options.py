"""How a worker is set up."""

from __future__ import annotations

from dataclasses import dataclass, field

from mqinfer.protocol.limits import DEFAULT_LIMITS, Limits
from mqinfer.protocol.topics import Topics

__all__ = ["WorkerOptions"]


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """One worker: one instance of one version of one model.

    Attributes:
        name: In its topics and replies; unique on the broker.
        topics: Where everything lies.
        group: Share name of the competing consumers.
        capacity: Requests in hand at most; one more is answered `rejected` at once.
        capacity_bytes: The same for their payloads, all together; a single one above it is let in.
        threads: That decode, run and encode.
        memory_bytes: Of stored replies, for requests that come twice.
        limits: For requests.
    """

    name: str
    topics: Topics = field(default_factory=Topics)
    group: str = "workers"
    capacity: int = 64
    capacity_bytes: int = 256 << 20
    threads: int = 2
    memory_bytes: int = 64 << 20
    limits: Limits = DEFAULT_LIMITS
