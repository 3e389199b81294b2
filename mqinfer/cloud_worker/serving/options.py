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
        name: Its name in topics and replies; unique on the broker. Empty in what a command line states.
        topics: The site's topics.
        group: Share name of the competing consumers.
        capacity: Requests accepted and not replied to, at most; one more is rejected at once.
        capacity_bytes: The same for their payloads, all together; a single larger one is accepted.
        threads: Threads that prepare, run and reply.
        inline_s: An idle worker serves a request on the link's thread, without a switch of threads, while requests
            keep a thread busy for less than so many seconds; 0 for never.
        inline_bytes: Largest payload that is served so, in bytes.
        memory_bytes: Stored replies, for requests that come twice, in bytes.
        limits: Bounds for what requests hold.
    """

    name: str = ""
    topics: Topics = field(default_factory=Topics)
    group: str = "workers"
    capacity: int = 64
    capacity_bytes: int = 256 << 20
    threads: int = 2
    inline_s: float = 0.0005
    inline_bytes: int = 64 << 10
    memory_bytes: int = 64 << 20
    limits: Limits = DEFAULT_LIMITS
